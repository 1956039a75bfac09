"""The backend for Hopper GPUs. Its candidates are tile shapes of handwritten kernels (:attr:`Choice.name`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gemmhub.backend import Array, Kernel, Run
from gemmhub.capability import Copy, Device, Ready, Refusal
from gemmhub.errors import KernelError
from gemmhub.kit import cuda_clusters, locks, nvrtc
from gemmhub.kit.corrections import NOTE, UNMEASURED
from gemmhub.kit.cuda import Driver, DriverError
from gemmhub.kit.machine import NOTHING_TO_DO, MachineBackend
from gemmhub.kit.nvrtc import Compiler, Source
from gemmhub.problem import GemmProblem
from gemmhub_hopper import (
    choose,
    complex_operands,
    corrections,
    f16_planes,
    gemv,
    lower,
    model,
    packed,
    prepass,
    probe,
    sources,
)
from gemmhub_hopper.candidate import Choice, named, runnable
from gemmhub_hopper.config import BF16X3, Variant
from gemmhub_hopper.f16_staged import F16Staged
from gemmhub_hopper.gemv import GemvChoice, GemvKernel
from gemmhub_hopper.gemv_launch import GemvLaunch
from gemmhub_hopper.k_passes import KPasses
from gemmhub_hopper.launch import Launch
from gemmhub_hopper.lower import Lowering
from gemmhub_hopper.model import Card
from gemmhub_hopper.shapes import shapes
from gemmhub_hopper.staged import Staged

_PROPOSED = 8
"""Number of candidates that tuning times."""
MARGIN = 1.02
"""Factor on every estimate that is compared with other backends. The least of many estimates is too low on average
(selection bias), and where another backend is nearly as fast, a wrong choice costs more than a right one gains.
"""
_F16_PREPASS = -1
"""Key of that pre-pass among the loaded functions."""
_NOTHING = "nothing"
"""Name of the only candidate for a result without elements."""


@dataclass(frozen=True)
class Analysis:
    """The lowerings and the fastest candidates of a problem."""

    lowerings: tuple[Lowering, ...]
    choices: tuple[Choice | GemvChoice, ...]
    """The fastest candidates, the fastest first."""
    seconds: float
    """The estimate of the first."""


class HopperBackend(MachineBackend[probe.Machine]):
    """Handwritten TMA and wgmma kernels for Hopper GPUs."""

    name = "hopper"

    def __init__(
        self,
        open_driver: Callable[[], Driver] = probe.open_driver,
        open_compiler: Callable[[], Compiler] = nvrtc.load,
    ) -> None:
        """Tests pass other functions that open the driver and the compiler."""
        super().__init__(lambda: probe.look(open_driver, open_compiler))
        self._functions: dict[tuple[int, Variant | GemvKernel | int], int] = {}
        """Handles by device index and kernel; the key of a pre-pass is its number in ``prepass.KINDS``."""
        self._cards: dict[int, Card] = {}
        self._loading = locks.lock()

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def supports(self, problem: GemmProblem) -> Refusal | None:
        """Return None, or the reason why no kernel runs ``problem``."""
        answer = self._analyse(problem)
        return answer if isinstance(answer, Refusal) else None

    def default_workspace(self, device: Device) -> int:
        """Return a 256th of the device's memory, for copies of operands and planes of float32."""
        return self.machine.gpus[device.index].default_workspace

    def _card(self, problem: GemmProblem) -> Card:
        return self._card_of(problem.device.index)

    def _card_of(self, index: int) -> Card:
        """Return the facts of a device that the model uses; they are read once."""
        card = self._cards.get(index)
        if card is None:
            gpu = self.machine.gpus[index]
            card = self._cards[index] = Card(gpu.sms, gpu.clock, gpu.bandwidth, cuda_clusters.asked(gpu), gpu.name)
        return card

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal | None:
        """Return the analysis or refusal of ``problem``; None where the result has no elements."""
        indices = [gpu.index for gpu in self.machine.hoppers]
        if problem.device.kind != "cuda" or problem.device.index not in indices:
            return Refusal(
                f"the operands are on {problem.device}, which is no Hopper GPU",
                f"copy them to {' or '.join(f'cuda:{i}' for i in indices)}",
            )
        if problem.empty:
            return lower.check_types(problem)
        return self.remembered(problem, lambda: self._choose(problem))

    def _choose(self, problem: GemmProblem) -> Analysis | Refusal:
        lowerings = lower.lowerings(problem)
        if isinstance(lowerings, Refusal):
            return lowerings
        workspace = self.default_workspace(problem.device)
        timed = self._timed(lowerings, self._card(problem), workspace)
        if not timed:
            why = runnable(Choice(lowerings[0], shapes(lowerings[0].form)[-1], 1), workspace)
            narrow = lowerings[0].copied and lowerings[0].form.output != "float32"
            return Refusal(
                f"no tile shape of the kernel runs it: {why}",
                "ask for a float32 result, or multiply in parts" if narrow else "multiply in parts",
            )
        return Analysis(lowerings, tuple(choice for _, choice in timed[:_PROPOSED]), timed[0][0])

    @staticmethod
    def _timed(lowerings: tuple[Lowering, ...], card: Card, workspace: int) -> list[tuple[float, Choice | GemvChoice]]:
        """Return the estimates and choices that run in ``workspace`` bytes, the fastest first."""
        kinds = dict.fromkeys(lowering.form.scheme for lowering in lowerings)
        by_kind = [tuple(x for x in lowerings if x.form.scheme == kind) for kind in kinds]
        every: list[Sequence[tuple[float, Choice | GemvChoice]]]
        every = [choose.choices(some, card, workspace) for some in by_kind]
        every.append(choose.vectors(lowerings, card))
        timed: list[tuple[float, Choice | GemvChoice]] = []
        for found in every:  # all choices of a list have one kind of correction
            factor = UNMEASURED if found and not _measured(found[0][1], card) else 1.0
            timed += [(seconds * factor, choice) for seconds, choice in found]
        return sorted(timed, key=lambda x: x[0])

    def estimate(self, problem: GemmProblem) -> float:
        """Return the seconds of the fastest candidate."""
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return model.LAUNCH
        return MARGIN * analysis.seconds

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        """Return a description of ``candidate``: tile, cluster, split-K, copies."""
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return ""
        choice = _named(analysis.lowerings, candidate)
        words = _gemv_words(choice) if isinstance(choice, GemvChoice) else _words(choice)
        return words if _measured(choice, self._card(problem)) else f"{words}, {NOTE}"

    def copies(self, problem: GemmProblem) -> Sequence[Copy]:
        """Return the copies of the fastest candidate."""
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return ()
        choice = analysis.choices[0]  # the copies of other candidates are in their remarks
        lowering = choice.lowering
        return [Copy(x.name, x.copy_bytes(lowering.form, lowering.k), x.why) for x in choice.copied]

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        """Return the names of the fastest candidates, the fastest first."""
        analysis = self._analyse(problem)
        return [choice.name for choice in analysis.choices] if isinstance(analysis, Analysis) else (_NOTHING,)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Return ``candidate`` ready to run, or the fastest one that fits where it does not fit into the workspace.

        Raises ValueError for an unknown candidate, CompilerError, DriverError or AllocationError.
        """
        analysis = self._analyse(problem)
        if analysis is None:
            return NOTHING_TO_DO
        if isinstance(analysis, Refusal):
            raise ValueError(f"{analysis.reason}; {analysis.remedy}")
        index = problem.device.index
        choice, note = _named(analysis.lowerings, candidate), ""
        why = None if isinstance(choice, GemvChoice) else self._why_another(problem, choice, workspace_limit)
        if why is not None:
            fitting = self._timed(analysis.lowerings, self._card(problem), workspace_limit)
            if not fitting:
                raise ValueError(f"{candidate} does not run {problem}: {why}; raise the setting workspace_mib")
            choice, note = fitting[0][1], f" ({candidate}: {why})"
        if isinstance(choice, GemvChoice):
            run = _unpacked(self.gemv(index, choice).run, choice.lowering, "tf32")
            return Kernel(run, _gemv_words(choice) + note)
        passes = runnable(choice, workspace_limit)
        assert not isinstance(passes, str), passes
        if passes.nbytes:
            self.machine.workspaces[index].reserve(passes.nbytes, workspace_limit)
        launch = self.launch(index, choice, workspace_limit)
        run = launch.run
        if isinstance(launch, Launch):
            form = choice.lowering.form
            run = _unpacked(run, choice.lowering, "tf32" if form.split_planes_b else form.input)
        return Kernel(run, _words(choice, passes) + note, passes.nbytes)

    def _why_another(self, problem: GemmProblem, choice: Choice, workspace: int) -> str | None:
        """Return why another choice may be faster in this workspace, or the only one that runs; else None."""
        passes = runnable(choice, workspace)
        if isinstance(passes, str) or passes == runnable(choice, self.default_workspace(problem.device)):
            return passes if isinstance(passes, str) else None
        return f"{passes.count} K passes in {workspace} bytes of workspace"

    def launch(self, index: int, choice: Choice, limit: int) -> Launch | Staged:
        """Return ``choice`` ready to run on a device, in a workspace of at most ``limit`` bytes, into which it fits."""
        gpu, workspace = self.machine.gpus[index], self.machine.workspaces[index]
        form, card = choice.lowering.form, self._card_of(index)
        with gpu:  # encoding tensor maps needs a context, and this thread may have none
            if form.input == f16_planes.INPUT:
                return self._by_float16_planes(index, choice, limit)
            if choice.lowering.copied or (form.input == "split" and not (form.split_planes_b and choice.splits == 1)):
                copier = self._prepass(index, form.input) if choice.lowering.copied else 0
                return Staged(
                    gpu, card, choice, lambda variant: self._function(index, variant), copier, workspace, limit
                )
            alone = len(self.machine.gpus) == 1
            return Launch(gpu, card, choice, self._function(index, choice.variant), workspace, limit, alone)

    def _by_float16_planes(self, index: int, choice: Choice, limit: int) -> F16Staged:
        """Return a product by float16 planes, with one by bfloat16 planes for operands that these do not hold."""
        gpu, workspace, card = self.machine.gpus[index], self.machine.workspaces[index], self._card_of(index)
        passes = choice.k_passes(limit)
        assert not isinstance(passes, str), passes

        def kernel(variant: Variant) -> int:
            return self._function(index, variant)

        other = choose.by_bfloat16_planes(choice, passes, card)
        fallback = Staged(gpu, card, other, kernel, self._prepass(index, "split"), workspace, limit, passes)
        return F16Staged(gpu, card, choice, kernel, self._f16_prepass(index), workspace, limit, fallback)

    def gemv(self, index: int, choice: GemvChoice) -> GemvLaunch:
        """Return ``choice`` ready to run on a device."""
        kernel = choice.kernel
        function = self._loaded(index, kernel, lambda: sources.gemv(kernel), sources.GEMV, kernel.shared_bytes)
        return GemvLaunch(self.machine.gpus[index], choice, function, len(self.machine.gpus) == 1)

    def _function(self, index: int, variant: Variant) -> int:
        """Return the handle of a variant on a device; it is compiled and loaded once."""
        return self._loaded(index, variant, lambda: sources.source(variant), sources.KERNEL, variant.shared_bytes)

    def _prepass(self, index: int, kind: str) -> int:
        return self._loaded(index, prepass.KINDS[kind], lambda: sources.prepass(kind), sources.PREPASS, 0)

    def _f16_prepass(self, index: int) -> int:
        return self._loaded(index, _F16_PREPASS, sources.f16_prepass, sources.F16_PREPASS, 0)

    def _loaded(
        self, index: int, what: Variant | GemvKernel | int, source: Callable[[], Source], name: str, shared: int
    ) -> int:
        with self._loading:  # a lock of its own: analysing other problems need not wait for a compiler
            key = index, what
            if key not in self._functions:
                image = nvrtc.cubin(self.machine.compiler, source())
                self._functions[key] = self.machine.gpus[index].function(image, name, shared)
            return self._functions[key]

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        """Return ``b`` packed, or the reason why it cannot be."""
        analysis = self._analyse(problem)
        if isinstance(analysis, Refusal):
            return analysis
        if problem.b.dtype.name == complex_operands.DTYPE:
            return Refusal("b is complex", "pass it as it is")
        if problem.a.dtype != problem.b.dtype:
            return Refusal(f"b is packed for operands of one dtype, and a is {problem.a.dtype}", "pass b as it is")
        if any(problem.b.layout.batch_strides):
            return Refusal("b is a stack of matrices", "pack them one by one")
        if problem.b.alignment < problem.b.dtype.itemsize:
            return Refusal(
                f"the address of b is aligned to {problem.b.alignment} bytes, less than an element",
                "pass a contiguous copy of b",
            )
        index, dtype = problem.device.index, problem.b.dtype.name
        kinds = ("tf32", "split") if dtype == "float32" else (dtype,)
        try:
            copiers = {kind: self._prepass(index, kind) for kind in kinds}
            if dtype == "float32" and problem.k >= f16_planes.FEWEST_K:
                copiers[f16_planes.INPUT] = self._f16_prepass(index)
            return packed.pack(self.machine.gpus[index], copiers, b, problem)
        except (KernelError, DriverError, nvrtc.CompilerError) as error:
            return Refusal(f"packing failed: {error}", "check whether earlier work on the device failed")


def _named(lowerings: tuple[Lowering, ...], name: str) -> Choice | GemvChoice:
    """Return the choice called ``name``. Raises ValueError where there is none."""
    vectors = {choice.name: choice for choice in gemv.choices(lowerings)}
    return vectors.get(name) or named(lowerings, name)


def _measured(choice: Choice | GemvChoice, card: Card) -> bool:
    """Return whether a correction for candidates of this kind was fitted on this card."""
    return corrections.find(corrections.kind_of(choice), card) is not None


def _unpacked(run: Run, lowering: Lowering, kind: str) -> Run:
    """Return ``run``, which reads an input of ``kind``, for a b that may be packed."""
    if not lowering.packed:
        return run

    def packed(a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        run(a, b.of(kind), out, c, bias, alpha, beta, stream)

    return packed


_SCHEMES = {
    "split": "three bfloat16 planes, six products",
    BF16X3: "two bfloat16 planes, three products",
    f16_planes.INPUT: "two float16 planes, three products; by bfloat16 planes where exponents differ too much",
}
"""Descriptions of planes, by the kernel's input."""


def _words(choice: Choice, passes: KPasses | None = None) -> str:
    """Return the description of ``choice`` for remarks."""
    shape, lowering, form = choice.shape, choice.lowering, choice.lowering.form
    words = [f"tile {shape.m}x{shape.n}, {shape.stages} stages"]
    if shape.pingpong:
        words.append("ping-pong")
    if shape.cluster_size > 1:
        shared = f", K shared by {shape.cluster_k} CTAs" if shape.cluster_k > 1 else ""
        words.append(f"cluster {shape.cluster_m}x{shape.cluster_n}{shared}")
    if lowering.swapped:
        words.append("operands swapped")
    if choice.splits > 1:
        words.append(f"split-K of {choice.splits}")
    if form.registers_a:
        rows = ", as TMA cannot take its rows" if form.shifted_rows else ""
        words.append(f"{lowering.a.name} through registers{rows}")
    if form.stored_planes > 1:
        words.append(f"float32 split into {_SCHEMES[form.input]}")
        words += [f"planes of {x.name} made by a pre-pass" for x in lowering.copied]
        words += [f"planes of {lowering.b.name} made in shared memory"] if form.split_planes_b else []
    else:
        words += [f"{x.name} {x.why}" for x in lowering.copied]
    if passes is not None and passes.count > 1:
        words.append(f"{passes.count} K passes for a small workspace")
    if not form.tma_store and not form.shifted_rows:
        words.append("result stored without TMA: its address, rows or strides are not aligned to 16 bytes")
    return ", ".join(words)


def _gemv_words(choice: GemvChoice) -> str:
    """Return the description of ``choice`` for remarks."""
    words = f"few vectors by a matrix, {choice.kernel.threads_per_result} threads per result"
    words += f", cluster {choice.kernel.cluster_size}" if choice.kernel.cluster_size > 1 else ""
    return words + (", loads by cp.async" if choice.kernel.cp_async else "")
