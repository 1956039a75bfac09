"""The backend for Hopper GPUs. Its candidates are tile shapes of handwritten kernels (:attr:`Choice.name`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gemmhub.backend import Array, Kernel, Run
from gemmhub.capability import Copy, Device, Ready, Refusal
from gemmhub.errors import KernelError
from gemmhub.kit import cuda_clusters, nvrtc
from gemmhub.kit.corrections import NOTE
from gemmhub.kit.cuda import Driver, DriverError
from gemmhub.kit.machine import NOTHING_TO_DO, MachineBackend
from gemmhub.kit.nvrtc import Compiler
from gemmhub.problem import GemmProblem
from gemmhub_hopper import (
    choose,
    complex_operands,
    f16_planes,
    gemv,
    lower,
    model,
    packed,
    prepass,
    probe,
    words,
)
from gemmhub_hopper.candidate import Choice, named, parsed, runnable
from gemmhub_hopper.choose import Timed
from gemmhub_hopper.compiled import F16_PREPASS, Code
from gemmhub_hopper.f16_staged import F16Staged
from gemmhub_hopper.gemv import GemvChoice
from gemmhub_hopper.gemv_launch import GemvLaunch
from gemmhub_hopper.k_passes import KPasses
from gemmhub_hopper.launch import Launch
from gemmhub_hopper.lower import Lowering
from gemmhub_hopper.model import Card
from gemmhub_hopper.offer import Offer, Offers
from gemmhub_hopper.shapes import shapes
from gemmhub_hopper.staged import Staged

MARGIN = 1.02
"""Factor on every estimate that is compared with other backends. The least of many estimates is too low on average
(selection bias), and where another backend is nearly as fast, a wrong choice costs more than a right one gains.
"""
_UNLIMITED = 2**62
_NOTHING = "nothing"
"""Name of the only candidate for a result without elements."""


@dataclass
class Analysis:
    """The lowerings and the candidates of a problem."""

    lowerings: tuple[Lowering, ...]
    timed: list[Timed]
    """The estimates and the candidates, the fastest first."""
    offer: Offer | None = None
    """The offer that was made last."""


class HopperBackend(MachineBackend[probe.Machine]):
    """Handwritten TMA and wgmma kernels for Hopper GPUs."""

    name = "hopper"
    by_bucket = True
    most_analyses = 128
    """Few, as each has all candidates, and what is decided is kept by gemmhub."""

    def __init__(
        self,
        open_driver: Callable[[], Driver] = probe.open_driver,
        open_compiler: Callable[[], Compiler] = nvrtc.load,
    ) -> None:
        """Tests pass other functions that open the driver and the compiler."""
        super().__init__(lambda: probe.look(open_driver, open_compiler))
        self._cards: dict[int, Card] = {}
        self._offers = Offers()

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

    def _elsewhere(self, problem: GemmProblem) -> Refusal | None:
        """Return a refusal where the operands are on no Hopper GPU."""
        indices = [gpu.index for gpu in self.machine.hoppers]
        if problem.device.kind == "cuda" and problem.device.index in indices:
            return None
        return Refusal(
            f"the operands are on {problem.device}, which is no Hopper GPU",
            f"copy them to {' or '.join(f'cuda:{i}' for i in indices)}",
        )

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal | None:
        """Return the analysis or refusal of ``problem``; None where the result has no elements."""
        refusal = self._elsewhere(problem)
        if refusal is not None or problem.empty:
            return refusal or lower.check_types(problem)
        return self.remembered(problem, lambda: self._choose(problem))

    def _choose(self, problem: GemmProblem) -> Analysis | Refusal:
        lowerings = lower.lowerings(problem)
        if isinstance(lowerings, Refusal):
            return lowerings
        workspace = self.default_workspace(problem.device)
        timed = choose.timed(lowerings, self._card(problem), workspace)
        if not timed:
            why = runnable(Choice(lowerings[0], shapes(lowerings[0].form)[-1], 1), workspace)
            narrow = lowerings[0].copied and lowerings[0].form.output != "float32"
            return Refusal(
                f"no tile shape of the kernel runs it: {why}",
                "ask for a float32 result, or multiply in parts" if narrow else "multiply in parts",
            )
        return Analysis(lowerings, timed)

    def _offer(self, problem: GemmProblem, analysis: Analysis) -> Offer:
        """Return the candidates of ``problem``; what is compiled by now decides which is the first."""
        kernels, offer = self.machine.kernels, analysis.offer
        if offer is None or offer.loaded != kernels.loaded:
            device = problem.device
            offer = analysis.offer = self._offers.of(
                kernels, device.index, analysis.lowerings, analysis.timed, self._card(problem),
                self.default_workspace(device), problem.deterministic,
            )  # fmt: skip
        return offer

    def estimate(self, problem: GemmProblem) -> float:
        """Return the seconds of the first candidate."""
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return model.LAUNCH
        return MARGIN * self._offer(problem, analysis).timed[0][0]

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        """Return a description of ``candidate``: tile, cluster, split-K, copies."""
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return ""
        choice, offer = _named(analysis.lowerings, candidate), self._offer(problem, analysis)
        said = [words.of(choice)] + [NOTE] * (not choose.measured(choice, self._card(problem)))
        first = offer.timed[0][1].name == candidate
        return "; ".join(filter(None, (", ".join(said), offer.remark if first else "")))

    def copies(self, problem: GemmProblem) -> Sequence[Copy]:
        """Return the copies of the first candidate."""
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return ()
        choice = self._offer(problem, analysis).timed[0][1]  # the copies of other candidates are in their remarks
        lowering = choice.lowering
        return [Copy(x.name, x.copy_bytes(lowering.form, lowering.k), x.why) for x in choice.copied]

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        """Return the names of the fastest candidates, the fastest first, or a compiled one that is nearly as fast.

        One of them runs in a workspace of 1 MiB if any candidate does.
        """
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return (_NOTHING,)
        return [choice.name for _, choice in self._offer(problem, analysis).timed]

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Return ``candidate`` ready to run: that one, in more K passes where its copies do not fit in one.

        Raises ValueError for an unknown candidate and for one that does not run in this workspace; CompilerError,
        DriverError or AllocationError.
        """
        refusal = self._elsewhere(problem) or (lower.check_types(problem) if problem.empty else None)
        if refusal is not None:
            raise ValueError(f"{refusal.reason}; {refusal.remedy}")
        if problem.empty:
            return NOTHING_TO_DO
        index, choice = problem.device.index, _choice(problem, candidate)
        if isinstance(choice, GemvChoice):
            return Kernel(_unpacked(self.gemv(index, choice).run, choice.lowering, "tf32"), words.of_vectors(choice))
        passes = runnable(choice, workspace_limit)
        if isinstance(passes, str):
            fits = not isinstance(runnable(choice, _UNLIMITED), str)
            remedy = "raise the setting workspace_mib, or name" if fits else "name"
            raise ValueError(
                f"{candidate} does not run {problem} in {workspace_limit} bytes of workspace: {passes}; {remedy} "
                "another candidate (candidates() returns the fastest)"
            )
        if passes.nbytes:
            self.machine.workspaces[index].reserve(passes.nbytes, workspace_limit)
        launch = self.launch(index, choice, workspace_limit, passes)
        run = launch.run
        if isinstance(launch, Launch):
            form = choice.lowering.form
            run = _unpacked(run, choice.lowering, "tf32" if form.split_planes_b else form.input)
        return Kernel(run, words.of_matrices(choice, passes), passes.nbytes)

    def launch(self, index: int, choice: Choice, limit: int, passes: KPasses | None = None) -> Launch | Staged:
        """Return ``choice`` ready to run on a device, in a workspace of at most ``limit`` bytes, into which it fits.

        ``passes``: the K passes in that workspace, where the caller knows them.
        """
        if passes is None:
            found = choice.k_passes(limit)
            assert not isinstance(found, str), found
            passes = found
        gpu, workspace = self.machine.gpus[index], self.machine.workspaces[index]
        form, card = choice.lowering.form, self._card_of(index)
        with gpu:  # encoding tensor maps needs a context, and this thread may have none
            if form.input == f16_planes.INPUT:
                return self._by_float16_planes(index, choice, limit, passes)
            if choice.lowering.copied or (form.input == "split" and not (form.split_planes_b and choice.splits == 1)):
                copier = self._function(index, prepass.KINDS[form.input]) if choice.lowering.copied else 0
                return Staged(
                    gpu, card, choice, lambda variant: self._function(index, variant), copier, workspace, limit, passes
                )
            alone = len(self.machine.gpus) == 1
            return Launch(gpu, card, choice, self._function(index, choice.variant), workspace, limit, passes, alone)

    def _by_float16_planes(self, index: int, choice: Choice, limit: int, passes: KPasses) -> F16Staged:
        """Return a product by float16 planes, with one by bfloat16 planes for operands that these do not hold."""
        gpu, workspace, card = self.machine.gpus[index], self.machine.workspaces[index], self._card_of(index)

        def kernel(what: Code) -> int:
            return self._function(index, what)

        other = choose.by_bfloat16_planes(choice, passes, card)
        fallback = Staged(gpu, card, other, kernel, kernel(prepass.KINDS["split"]), workspace, limit, passes, True)
        return F16Staged(gpu, card, choice, kernel, kernel(F16_PREPASS), workspace, limit, passes, fallback)

    def gemv(self, index: int, choice: GemvChoice) -> GemvLaunch:
        """Return ``choice`` ready to run on a device."""
        return GemvLaunch(
            self.machine.gpus[index], choice, self._function(index, choice.kernel), len(self.machine.gpus) == 1
        )

    def _function(self, index: int, what: Code) -> int:
        """Return the handle of a kernel on a device; it is compiled and loaded once."""
        return self.machine.kernels.function(index, what)

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
            copiers = {kind: self._function(index, prepass.KINDS[kind]) for kind in kinds}
            if dtype == "float32" and problem.k >= f16_planes.FEWEST_K:
                copiers[f16_planes.INPUT] = self._function(index, F16_PREPASS)
            return packed.pack(self.machine.gpus[index], copiers, b, problem)
        except (KernelError, DriverError, nvrtc.CompilerError) as error:
            return Refusal(f"packing failed: {error}", "check whether earlier work on the device failed")


def _named(lowerings: tuple[Lowering, ...], name: str) -> Choice | GemvChoice:
    """Return the choice called ``name``. Raises ValueError where there is none."""
    return gemv.named(lowerings, name) or named(lowerings, name)


def _choice(problem: GemmProblem, name: str) -> Choice | GemvChoice:
    """Return the choice called ``name`` from the one lowering that it has. Raises ValueError where there is none."""
    vectors = name.startswith(gemv.PREFIX)
    parts = None if vectors else parsed(name)
    lowerings = lower.one_by_one(problem, None if parts is None else (parts.letters, parts.swapped))
    if isinstance(lowerings, Refusal):
        raise ValueError(f"{lowerings.reason}; {lowerings.remedy}")
    found = gemv.named(lowerings, name) if vectors else named(lowerings, name)
    if found is None:
        raise ValueError(f"there is no kernel called {name} for this problem")
    return found


def _unpacked(run: Run, lowering: Lowering, kind: str) -> Run:
    """Return ``run``, which reads an input of ``kind``, for a b that may be packed."""
    if not lowering.packed:
        return run

    def packed(a: Any, b: Any, out: Any, c: Any, bias: Any, alpha: Any, beta: Any, stream: Any) -> None:
        run(a, b.of(kind), out, c, bias, alpha, beta, stream)

    return packed
