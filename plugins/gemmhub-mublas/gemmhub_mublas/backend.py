"""Products by muBLAS. Candidates are its functions: "sgemm", "ex_strided", "ex_tensor_op" and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemmhub_musa.backend import NOTHING, MusaBackend

from gemmhub.backend import Kernel, Run
from gemmhub.capability import Absent, Copy, Ready, Refusal
from gemmhub.kit.machine import NOTHING_TO_DO
from gemmhub.problem import GemmProblem
from gemmhub_mublas import addend, choose, lower, model, probe
from gemmhub_mublas.choose import Candidate
from gemmhub_mublas.launch import Gemm
from gemmhub_mublas.library import BATCHED, GEMM, STRIDED
from gemmhub_mublas.lower import Lowered
from gemmhub_mublas.probe import Machine
from gemmhub_mublas.proof import Proofs

_FEW_LAUNCHES = 8
"""Up to here, an uneven batch costs less in launches than in copying arrays of addresses to the device."""


@dataclass(frozen=True)
class Analysis:
    """A problem that the library runs."""

    lowered: Lowered
    candidates: tuple[Candidate, ...]
    """At least one, the default first; all proven on the problem's device."""

    def named(self, name: str) -> Candidate | None:
        """The candidate of that name."""
        return next((each for each in self.candidates if each.name == name), None)

    def launches(self, candidate: Candidate) -> int:
        """The number of calls of the library that a product takes."""
        return 1 if candidate.kind == BATCHED else len(self.lowered.offsets)


class MublasBackend(MusaBackend[Machine, Analysis]):
    """See the module."""

    name = "mublas"

    def __init__(self, look: Callable[[], Machine | Absent] = probe.look) -> None:
        """For tests: another function that looks at the machine."""
        super().__init__(look)
        self._proofs: Proofs[Candidate] = Proofs("muBLAS", self._unproven)

    def _ready(self, machine: Machine) -> Ready:
        return probe.ready(machine)

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal:
        lowered = lower.lowered(problem, fused=False)
        if isinstance(lowered, Refusal):
            return lowered
        found = choose.candidates(lowered.forms[0], self.machine.library, _kinds(lowered))
        if isinstance(found, Refusal):
            return found
        answers = [(each, self._proofs.of(self.machine, problem, each)) for each in found]
        proven = tuple(each for each, refusal in answers if refusal is None)
        first = next((refusal for _, refusal in answers if refusal is not None), None)
        return first if first is not None and not proven else Analysis(lowered, proven)

    def _unproven(self, problem: GemmProblem, candidate: Candidate) -> Run | Refusal:
        lowered = lower.lowered(problem, fused=False)
        if isinstance(lowered, Refusal):
            return lowered
        return Gemm(self.machine, problem, lowered, candidate).run

    def estimate(self, problem: GemmProblem) -> float | None:
        analysis = self.analysis(problem)
        launches = analysis.launches(analysis.candidates[0]) if isinstance(analysis, Analysis) else 0
        copied = sum(2 * copy.nbytes for copy in addend.copies(problem))
        arch = self.machine.runtime.arch(problem.device.index)
        return model.seconds(problem, arch, launches + bool(copied), copied)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        analysis = self.analysis(problem)
        chosen = analysis.named(candidate) if isinstance(analysis, Analysis) else None
        if chosen is None or not isinstance(analysis, Analysis):
            return ""
        parts = [chosen.function]
        if analysis.launches(chosen) > 1:
            parts.append(f"{analysis.launches(chosen)} launches, as the batch is not evenly spaced")
        if chosen.kind == BATCHED:
            parts.append("addresses copied to the device when they change")
        if problem.precision != "ieee" and chosen.label != "tf32":
            parts.append("in full precision")
        if self.machine.library.codes.without_header is not None:
            parts.append("by public numbers, without the header")
        return ", ".join(parts + self.machine.guard.remarks())

    def copies(self, problem: GemmProblem) -> Sequence[Copy]:
        return addend.copies(problem)

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        analysis = self.analysis(problem)
        return [each.name for each in analysis.candidates] if isinstance(analysis, Analysis) else (NOTHING,)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Raises ValueError for a candidate that is none, or does not fit, and AllocationError without memory."""
        analysis = self.runnable(problem)
        if analysis is None:
            return NOTHING_TO_DO
        chosen = analysis.named(candidate)
        if chosen is None:
            raise ValueError(
                f"muBLAS runs no {candidate!r} here, but {', '.join(each.name for each in analysis.candidates)}"
            )
        gemm = Gemm(self.machine, problem, analysis.lowered, chosen)
        description = f"muBLAS {self.machine.version} {chosen.function}"
        self.check_workspace(gemm.workspace_bytes, workspace_limit, problem)
        return Kernel(gemm.run, description, gemm.workspace_bytes)


def _kinds(lowered: Lowered) -> tuple[str, ...]:
    """Kinds of launches for a batch like this, best first."""
    calls, each = len(lowered.offsets), lowered.forms[0].count
    one = STRIDED if each > 1 else GEMM
    if calls * each == 1:
        return (GEMM,)
    return (BATCHED, one) if calls > _FEW_LAUNCHES else (one, BATCHED)
