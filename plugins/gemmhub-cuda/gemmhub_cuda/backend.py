"""Products on NVIDIA GPUs by handwritten kernels. Candidates are shapes of a kernel, named as Choice.name says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemmhub.backend import Kernel
from gemmhub.capability import Ready, Refusal
from gemmhub.kit import nvrtc
from gemmhub.kit.corrections import NOTE, UNMEASURED
from gemmhub.kit.cuda import Driver
from gemmhub.kit.machine import NOTHING_TO_DO, MachineBackend
from gemmhub.kit.nvrtc import Compiler
from gemmhub.problem import GemmProblem
from gemmhub_cuda import corrections, mma, model, probe, sources
from gemmhub_cuda.launch import Launch
from gemmhub_cuda.lower import Lowered, check_types, lowered
from gemmhub_cuda.model import Choice
from gemmhub_cuda.sources import Variant

WORKSPACE = 64 * 2**20
"""Bytes of workspace that candidates may ask for: gemmhub's default limit."""
_PROPOSED = 8
"""Candidates for tuning to time."""
MARGIN = 1.1
"""Factor on the smallest of many estimates, which is on average less than the time it estimates. Without it, beside
gemmhub-cublas and gemmhub-hopper, this backend was chosen for 14 of 2038 random 16-bit products: for 13 of them
another was faster, and it lost 9 % on the average.
"""
_NOTHING = "nothing"
"""The one candidate for a result without elements."""


@dataclass(frozen=True)
class Analysis:
    """A problem that there are kernels for."""

    way: Lowered
    choices: tuple[Choice, ...]
    """The best ones, best first."""
    seconds: float
    """The estimate of the first."""
    measured: bool
    """A correction serves on this card."""


class CudaBackend(MachineBackend[probe.Machine]):
    """See the module."""

    name = "cuda"

    def __init__(
        self,
        open_driver: Callable[[], Driver] = probe.open_driver,
        open_compiler: Callable[[], Compiler] = nvrtc.load,
    ) -> None:
        """For tests: other ways to come by the driver and the compiler."""
        super().__init__(lambda: probe.look(open_driver, open_compiler))
        self._functions: dict[tuple[int, Variant], int] = {}

    def _ready(self, machine: probe.Machine) -> Ready:
        return probe.ready(machine)

    def supports(self, problem: GemmProblem) -> Refusal | None:
        answer = self._analyse(problem)
        return answer if isinstance(answer, Refusal) else None

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal | None:
        """None where the result has no elements."""
        indices = [gpu.index for gpu in self.machine.usable]
        if problem.device.kind != "cuda" or problem.device.index not in indices:
            return Refusal(
                f"the operands are on {problem.device}, which there are no kernels for",
                f"copy them to {' or '.join(f'cuda:{i}' for i in indices)}",
            )
        if problem.empty:
            return check_types(problem, self.machine.cards[problem.device.index].capability)
        return self.remembered(problem, lambda: self._choose(problem))

    def _choose(self, problem: GemmProblem) -> Analysis | Refusal:
        card = self.machine.cards[problem.device.index]
        way = lowered(problem, card.capability)
        if isinstance(way, Refusal):
            return way
        correction = corrections.find(way, card)
        timed = corrections.ranked(way, card, WORKSPACE, correction)
        if not timed:
            return Refusal("the result has too many tiles", "multiply in parts")
        choices = tuple(choice for _, choice in timed[:_PROPOSED])
        return Analysis(way, choices, timed[0][0], correction is not None)

    def estimate(self, problem: GemmProblem) -> float:
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return model.LAUNCH
        return analysis.seconds * MARGIN * (1.0 if analysis.measured else UNMEASURED)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        analysis = self._analyse(problem)
        if not isinstance(analysis, Analysis):
            return ""
        words = _words(_named(analysis, candidate))
        return words if analysis.measured else f"{words}, {NOTE}"

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
        machine, index = self.machine, problem.device.index
        card, choice = machine.cards[index], _named(analysis, candidate)
        refusal, note = model.refusal(choice, card, workspace_limit), ""
        if refusal is not None and choice.splits > 1:
            note = f" ({candidate}: {refusal})"
            choice = Choice(choice.way, choice.shape, 1)
            refusal = model.refusal(choice, card, workspace_limit)
        if refusal is not None:
            raise ValueError(f"{candidate} does not run {problem}: {refusal}")
        if choice.workspace_bytes:
            machine.workspaces[index].reserve(choice.workspace_bytes, workspace_limit)
        launch = Launch(
            machine.gpus[index], choice, self._function(index, choice.variant),
            model.room(choice.variant, card) * card.sms, machine.workspaces[index], workspace_limit,
            alone=len(machine.gpus) == 1,
        )  # fmt: skip
        return Kernel(launch.run, _words(choice) + note, choice.workspace_bytes)

    def _function(self, index: int, variant: Variant) -> int:
        """The variant's kernel on a device; compiled and loaded once."""
        key = index, variant
        with self._lock:
            if key not in self._functions:
                gpu = self.machine.gpus[index]
                image = nvrtc.cubin(self.machine.compiler, sources.source(variant, gpu.capability))
                self._functions[key] = gpu.function(image, sources.KERNEL, variant.shared_bytes)
            return self._functions[key]


def _named(analysis: Analysis, name: str) -> Choice:
    """The choice of that name, proposed or not. ValueError where there is no such shape."""
    return next((x for x in analysis.choices if x.name == name), None) or model.named(analysis.way, name)


def _words(choice: Choice) -> str:
    shape, way = choice.shape, choice.way
    parts = [f"tile {shape.m}x{shape.n}x{shape.k}, {shape.threads} threads"]
    if isinstance(shape, mma.Shape):
        parts.append(f"tensor cores, {shape.stages} stages")
    if choice.splits > 1:
        parts.append(f"k in {choice.splits} parts")
    if way.form.aligned < 16:
        parts.append(f"operands loaded {way.form.aligned} bytes at a time, as that is what their rows are aligned to")
    launches = sum(1 for _ in way.offsets())
    if launches > 1:
        parts.append(f"{launches} launches, as the batch is not evenly spaced")
    return ", ".join(parts)
