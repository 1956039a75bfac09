"""Products on Hopper GPUs by kernels of our own. Candidates are shapes of the kernel, named as Choice.name says."""

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
from gemmhub_hopper import choose, corrections, gemv, lower, model, packed, prepass, probe, sources
from gemmhub_hopper.candidate import Choice, named, runnable
from gemmhub_hopper.config import Variant
from gemmhub_hopper.gemv import GemvChoice, GemvKernel
from gemmhub_hopper.gemv_launch import GemvLaunch
from gemmhub_hopper.k_passes import Slabs
from gemmhub_hopper.launch import Launch
from gemmhub_hopper.lower import Lowered
from gemmhub_hopper.model import Card
from gemmhub_hopper.shapes import shapes
from gemmhub_hopper.staged import Staged

_PROPOSED = 8
"""Candidates for tuning to time."""
MARGIN = 1.02
"""Factor on every estimate beside other backends. The least of many estimates is too low on average (selection bias);
and where another backend is nearly as fast, a wrong choice costs more than a right one gains.
"""
_NOTHING = "nothing"
"""The one candidate for a result without elements."""


@dataclass(frozen=True)
class Analysis:
    """A problem that there are kernels for."""

    ways: tuple[Lowered, ...]
    choices: tuple[Choice | GemvChoice, ...]
    """The best ones, best first."""
    seconds: float
    """Expected of the first."""


class HopperBackend(MachineBackend[probe.Machine]):
    """See the module."""

    name = "hopper"

    def __init__(
        self,
        open_driver: Callable[[], Driver] = probe.open_driver,
        open_compiler: Callable[[], Compiler] = nvrtc.load,
    ) -> None:
        """For tests: other ways to come by the driver and the compiler."""
        super().__init__(lambda: probe.look(open_driver, open_compiler))
        self._functions: dict[tuple[int, Variant | GemvKernel | int], int] = {}
        """By device and kernel; of a pre-pass its KIND."""
        self._cards: dict[int, Card] = {}
        self._loading = locks.lock()

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def supports(self, problem: GemmProblem) -> Refusal | None:
        answer = self._analyse(problem)
        return answer if isinstance(answer, Refusal) else None

    def default_workspace(self, device: Device) -> int:
        """A 256th of the device's memory, for copies of operands and planes of float32."""
        return self.machine.gpus[device.index].default_workspace

    def _card(self, problem: GemmProblem) -> Card:
        return self._card_of(problem.device.index)

    def _card_of(self, index: int) -> Card:
        """What the model knows of a device; asked of it once."""
        card = self._cards.get(index)
        if card is None:
            gpu = self.machine.gpus[index]
            card = self._cards[index] = Card(gpu.sms, gpu.clock, gpu.bandwidth, cuda_clusters.asked(gpu), gpu.name)
        return card

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal | None:
        """None where the result has no elements."""
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
        ways = lower.lowered(problem)
        if isinstance(ways, Refusal):
            return ways
        workspace = self.default_workspace(problem.device)
        timed = self._timed(ways, self._card(problem), workspace)
        if not timed:
            why = runnable(Choice(ways[0], shapes(ways[0].form)[-1], 1), workspace)
            narrow = ways[0].copied and ways[0].form.output != "float32"
            return Refusal(
                f"no shape of the kernel runs it: {why}",
                "ask for a float32 result, or multiply in parts" if narrow else "multiply in parts",
            )
        return Analysis(ways, tuple(choice for _, choice in timed[:_PROPOSED]), timed[0][0])

    @staticmethod
    def _timed(ways: tuple[Lowered, ...], card: Card, workspace: int) -> list[tuple[float, Choice | GemvChoice]]:
        """The choices that run in ``workspace`` bytes, with the seconds to expect; the fastest first."""
        timed: list[tuple[float, Choice | GemvChoice]] = []
        for found in (choose.choices(ways, card, workspace), choose.vectors(ways, card)):  # each of one kind
            factor = UNMEASURED if found and not _measured(found[0][1], card) else 1.0
            timed += [(seconds * factor, choice) for seconds, choice in found]
        return sorted(timed, key=lambda x: x[0])

    def estimate(self, problem: GemmProblem) -> float:
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return model.LAUNCH
        return MARGIN * analysis.seconds

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return ""
        choice = _named(analysis.ways, candidate)
        words = _gemv_words(choice) if isinstance(choice, GemvChoice) else _words(choice)
        return words if _measured(choice, self._card(problem)) else f"{words}, {NOTE}"

    def copies(self, problem: GemmProblem) -> Sequence[Copy]:
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return ()
        choice = analysis.choices[0]  # other candidates' copies are in their remarks
        way = choice.way
        return [Copy(x.name, x.copy_bytes(way.form, way.k), x.why) for x in choice.copied]

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        analysis = self._analyse(problem)
        return [choice.name for choice in analysis.choices] if isinstance(analysis, Analysis) else (_NOTHING,)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Raises ValueError for a candidate that is none, and CompilerError, DriverError or AllocationError."""
        analysis = self._analyse(problem)
        if analysis is None:
            return NOTHING_TO_DO
        if isinstance(analysis, Refusal):
            raise ValueError(f"{analysis.reason}; {analysis.remedy}")
        index = problem.device.index
        choice, note = _named(analysis.ways, candidate), ""
        why = None if isinstance(choice, GemvChoice) else self._otherwise(problem, choice, workspace_limit)
        if why is not None:
            fitting = self._timed(analysis.ways, self._card(problem), workspace_limit)
            if not fitting:
                raise ValueError(f"{candidate} does not run {problem}: {why}; raise the setting workspace_mib")
            choice, note = fitting[0][1], f" ({candidate}: {why})"
        if isinstance(choice, GemvChoice):
            run = _unpacked(self.gemv(index, choice).run, choice.way, "tf32")
            return Kernel(run, _gemv_words(choice) + note)
        cut = runnable(choice, workspace_limit)
        assert not isinstance(cut, str), cut
        if cut.nbytes:
            self.machine.workspaces[index].reserve(cut.nbytes, workspace_limit)
        launch = self.launch(index, choice, workspace_limit)
        run = launch.run
        if isinstance(launch, Launch):
            run = _unpacked(run, choice.way, "tf32" if choice.way.form.b_split else choice.way.form.input)
        return Kernel(run, _words(choice, cut) + note, cut.nbytes)

    def _otherwise(self, problem: GemmProblem, choice: Choice, workspace: int) -> str | None:
        """Why in this workspace another choice may be the fastest, or the only one that runs."""
        cut = runnable(choice, workspace)
        if isinstance(cut, str) or cut == runnable(choice, self.default_workspace(problem.device)):
            return cut if isinstance(cut, str) else None
        return f"k in {cut.count} slabs for {workspace} bytes of workspace"

    def launch(self, index: int, choice: Choice, limit: int) -> Launch | Staged:
        """``choice`` ready to run on a device, with a workspace of at most ``limit`` bytes, which it fits into."""
        gpu, workspace = self.machine.gpus[index], self.machine.workspaces[index]
        form, card = choice.way.form, self._card_of(index)
        with gpu:  # the driver encodes tensor maps in a context only, and this thread may have none
            if choice.way.copied or (form.input == "split" and not (form.b_split and choice.splits == 1)):
                copier = self._prepass(index, form.input) if choice.way.copied else 0
                return Staged(
                    gpu, card, choice, lambda variant: self._function(index, variant), copier, workspace, limit
                )
            alone = len(self.machine.gpus) == 1
            return Launch(gpu, card, choice, self._function(index, choice.variant), workspace, limit, alone)

    def gemv(self, index: int, choice: GemvChoice) -> GemvLaunch:
        """``choice`` ready to run on a device."""
        kernel = choice.kernel
        function = self._loaded(index, kernel, lambda: sources.gemv(kernel), sources.GEMV, kernel.shared_bytes)
        return GemvLaunch(self.machine.gpus[index], choice, function, len(self.machine.gpus) == 1)

    def _function(self, index: int, variant: Variant) -> int:
        """The variant's kernel on a device; compiled and loaded once."""
        return self._loaded(index, variant, lambda: sources.source(variant), sources.KERNEL, variant.shared_bytes)

    def _prepass(self, index: int, kind: str) -> int:
        return self._loaded(index, prepass.KINDS[kind], lambda: sources.prepass(kind), sources.PREPASS, 0)

    def _loaded(
        self, index: int, what: Variant | GemvKernel | int, source: Callable[[], Source], name: str, shared: int
    ) -> int:
        with self._loading:  # not the lock of what is known: new products need not wait for a compiler
            key = index, what
            if key not in self._functions:
                image = nvrtc.cubin(self.machine.compiler, source())
                self._functions[key] = self.machine.gpus[index].function(image, name, shared)
            return self._functions[key]

    def pack(self, b: Array, problem: GemmProblem) -> object | Refusal:
        analysis = self._analyse(problem)
        if isinstance(analysis, Refusal):
            return analysis
        if any(problem.b.layout.batch_strides):
            return Refusal("b is a stack of matrices", "pack them one by one")
        if problem.b.alignment < problem.b.dtype.itemsize:
            return Refusal("b has elements that are not aligned", "pass a contiguous copy of b")
        index, dtype = problem.device.index, problem.b.dtype.name
        kinds = ("tf32", "split") if dtype == "float32" else (dtype,)
        try:
            copiers = {kind: self._prepass(index, kind) for kind in kinds}
            return packed.pack(self.machine.gpus[index], copiers, b, problem)
        except (KernelError, DriverError, nvrtc.CompilerError) as error:
            return Refusal(f"packing failed: {error}", "see whether other work on the device failed before")


def _named(ways: tuple[Lowered, ...], name: str) -> Choice | GemvChoice:
    """ValueError where there is none."""
    vectors = {choice.name: choice for choice in gemv.choices(ways)}
    return vectors.get(name) or named(ways, name)


def _measured(choice: Choice | GemvChoice, card: Card) -> bool:
    """Whether a correction for candidates of this kind was fitted on this card."""
    return corrections.find(corrections.kind_of(choice), card) is not None


def _unpacked(run: Run, way: Lowered, kind: str) -> Run:
    """``run``, which reads an input of ``kind``, for a b that may be packed."""
    if not way.packed:
        return run

    def packed(a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        run(a, b.of(kind), out, c, bias, alpha, beta, stream)

    return packed


def _words(choice: Choice, cut: Slabs | None = None) -> str:
    shape = choice.shape
    parts = [f"tile {shape.m}x{shape.n}, {shape.stages} stages"]
    if shape.pingpong:
        parts.append("two tiles at a time")
    if shape.cluster > 1:
        shared = f", k shared by {shape.cluster_k} blocks" if shape.cluster_k > 1 else ""
        parts.append(f"cluster {shape.cluster_m}x{shape.cluster_n}{shared}")
    if choice.way.swapped:
        parts.append("operands exchanged")
    if choice.splits > 1:
        parts.append(f"k in {choice.splits} parts")
    if choice.way.form.a_registers:
        parts.append(f"{choice.way.a.name} through registers")
    if choice.way.form.input == "split":
        parts.append("float32 split into three planes of bfloat16, six products")
        parts += [f"planes of {x.name} made beforehand" for x in choice.way.copied]
        parts += [f"planes of {choice.way.b.name} made in shared memory"] if choice.way.form.b_split else []
    parts += [f"{x.name} {x.why}" for x in choice.way.copied if choice.way.form.input != "split"]
    if cut is not None and cut.count > 1:
        parts.append(f"k in {cut.count} slabs for a small workspace")
    if not choice.way.form.tma_store:
        parts.append("result stored without TMA, as its address, rows or distances are no multiples of 16 bytes")
    return ", ".join(parts)


def _gemv_words(choice: GemvChoice) -> str:
    words = f"few vectors by a matrix, {choice.kernel.sharers} threads a result"
    words += f", cluster {choice.kernel.cluster}" if choice.kernel.cluster > 1 else ""
    return words + (", loads by way of shared memory" if choice.kernel.ahead else "")
