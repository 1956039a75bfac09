"""The backend for NVIDIA GPUs by handwritten kernels. Its candidates are tile shapes (:attr:`Choice.name`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemmhub.backend import WORKSPACE, Kernel
from gemmhub.capability import Ready, Refusal
from gemmhub.kit import nvrtc
from gemmhub.kit.corrections import NOTE, UNMEASURED
from gemmhub.kit.cuda import Driver
from gemmhub.kit.machine import NOTHING_TO_DO, MachineBackend
from gemmhub.kit.nvrtc import Compiler
from gemmhub.problem import GemmProblem
from gemmhub_cuda import corrections, model, probe, sources, wave_model
from gemmhub_cuda.launch import Launch
from gemmhub_cuda.lower import Lowering, check_types, lowered
from gemmhub_cuda.model import Choice
from gemmhub_cuda.variant import Variant

_PROPOSED = 8
"""Number of candidates that tuning times."""
MARGIN = 1.1
"""Factor on the least of many estimates, which is too low on average (selection bias).

Without it, next to gemmhub-cublas and gemmhub-hopper, this backend was chosen for 14 of 2038 random 16-bit products:
for 13 of them another was faster, and it lost 9 % on average.
"""
_NOTHING = "nothing"
"""Name of the only candidate for a result without elements."""


@dataclass(frozen=True)
class Analysis:
    """The lowering and the fastest candidates of a problem."""

    lowering: Lowering
    choices: tuple[Choice, ...]
    """The fastest candidates, the fastest first."""
    seconds: float
    """The estimate of the first."""
    measured: bool
    """Whether a correction was fitted on this card."""


class CudaBackend(MachineBackend[probe.Machine]):
    """Handwritten CUDA kernels for every NVIDIA GPU."""

    name = "cuda"
    by_bucket = True

    def __init__(
        self,
        open_driver: Callable[[], Driver] = probe.open_driver,
        open_compiler: Callable[[], Compiler] = nvrtc.load,
    ) -> None:
        """Tests pass other functions that open the driver and the compiler."""
        super().__init__(lambda: probe.look(open_driver, open_compiler))
        self._functions: dict[tuple[int, Variant], int] = {}

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def supports(self, problem: GemmProblem) -> Refusal | None:
        """Return None, or the reason why no kernel runs ``problem``."""
        answer = self._analyse(problem)
        return answer if isinstance(answer, Refusal) else None

    def _lower(self, problem: GemmProblem) -> Lowering | Refusal | None:
        """Return the lowering or refusal of ``problem``; None where the result has no elements."""
        indices = [gpu.index for gpu in self.machine.usable]
        if problem.device.kind != "cuda" or problem.device.index not in indices:
            return Refusal(
                f"the operands are on {problem.device}, for which there are no kernels",
                f"copy them to {' or '.join(f'cuda:{i}' for i in indices)}",
            )
        capability = self.machine.cards[problem.device.index].capability
        return check_types(problem, capability) if problem.empty else lowered(problem, capability)

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal | None:
        """Return the analysis or refusal of ``problem``; None where the result has no elements."""
        return self.remembered(problem, lambda: self._choose(problem))

    def _choose(self, problem: GemmProblem) -> Analysis | Refusal | None:
        lowering = self._lower(problem)
        if not isinstance(lowering, Lowering):
            return lowering
        card = self.machine.cards[problem.device.index]
        correction = corrections.find(lowering, card)
        timed = corrections.ranked(lowering, card, WORKSPACE, correction)
        if not timed:
            return Refusal("the result has too many tiles for one launch", "multiply in parts")
        choices = tuple(choice for _, choice in timed[:_PROPOSED])
        measured = choices[0].shape.measured(card) or correction is not None
        return Analysis(lowering, choices, timed[0][0], measured)

    def estimate(self, problem: GemmProblem) -> float:
        """Return the seconds of the fastest candidate."""
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return wave_model.LAUNCH
        return analysis.seconds * MARGIN * (1.0 if analysis.measured else UNMEASURED)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        """Return a description of ``candidate``: tile, split-K, width of loads, launches."""
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return ""
        words = _words(model.named(analysis.lowering, candidate))
        return words if analysis.measured else f"{words}, {NOTE}"

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        """Return the names of the fastest candidates, the fastest first."""
        analysis = self._analyse(problem)
        return [choice.name for choice in analysis.choices] if isinstance(analysis, Analysis) else (_NOTHING,)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Return ``candidate`` ready to run, without split-K where it does not fit into the workspace.

        Raises ValueError for an unknown candidate, CompilerError, DriverError or AllocationError.
        """
        lowering = self._lower(problem)
        if lowering is None:
            return NOTHING_TO_DO
        if isinstance(lowering, Refusal):
            raise ValueError(f"{lowering.reason}; {lowering.remedy}")
        machine, index = self.machine, problem.device.index
        card, choice = machine.cards[index], model.named(lowering, candidate)
        refusal, note = model.refusal(choice, card, workspace_limit), ""
        if refusal is not None and choice.splits > 1:
            note = f" ({candidate}: {refusal})"
            choice = Choice(choice.lowering, choice.shape, 1)
            refusal = model.refusal(choice, card, workspace_limit)
        if refusal is not None:
            raise ValueError(f"{candidate} does not run {problem}: {refusal}")
        if choice.workspace_bytes:
            machine.workspaces[index].reserve(choice.workspace_bytes, workspace_limit)
        launch = Launch(
            machine.gpus[index], choice, self._function(index, choice.variant),
            choice.ctas_per_sm(card) * card.sms, machine.workspaces[index], workspace_limit,
            alone=len(machine.gpus) == 1,
        )  # fmt: skip
        return Kernel(launch.run, _words(choice) + note, choice.workspace_bytes)

    def _function(self, index: int, variant: Variant) -> int:
        """Return the handle of a variant on a device; it is compiled and loaded once."""
        key = index, variant
        with self._lock:
            if key not in self._functions:
                gpu = self.machine.gpus[index]
                image = nvrtc.cubin(self.machine.compiler, sources.source(variant, gpu.capability))
                self._functions[key] = gpu.function(image, sources.KERNEL, variant.shared_bytes)
            return self._functions[key]


def _words(choice: Choice) -> str:
    """Return the description of ``choice`` for remarks."""
    shape, lowering = choice.shape, choice.lowering
    words = [f"tile {shape.m}x{shape.n}x{shape.k}, {shape.threads} threads"]
    if shape.description:
        words.append(shape.description)
    if choice.splits > 1:
        words.append(f"split-K of {choice.splits}")
    if lowering.form.alignment < 16:
        words.append(f"operands loaded {lowering.form.alignment} bytes at a time, the alignment of their rows")
    if choice.launches > 1:
        words.append(f"{choice.launches} launches, as the batch is not evenly spaced")
    return ", ".join(words)
