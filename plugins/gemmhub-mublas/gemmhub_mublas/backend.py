"""Products by muBLAS. Candidates are its functions: "sgemm", "ex_strided", "ex_tensor_op" and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemmhub.backend import Kernel, Run
from gemmhub.capability import Absent, Copy, Ready, Refusal
from gemmhub.problem import GemmProblem
from gemmhub_mublas import addend, lower, model, probe
from gemmhub_mublas.base import NOTHING, NOTHING_TO_DO, LibraryBackend
from gemmhub_mublas.choose import Way, ways
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
    ways: tuple[Way, ...]
    """At least one, the usual one first; all proven on the problem's device."""

    def way(self, candidate: str) -> Way | None:
        """The one of that name."""
        return next((way for way in self.ways if way.name == candidate), None)

    def launches(self, way: Way) -> int:
        return 1 if way.kind == BATCHED else len(self.lowered.offsets)


class MublasBackend(LibraryBackend[Machine, Analysis]):
    """See the module."""

    name = "mublas"

    def __init__(self, look: Callable[[], Machine | Absent] = probe.look) -> None:
        """For tests: another way to look at the machine."""
        super().__init__(look)
        self._proofs: Proofs[Way] = Proofs("muBLAS", self._unproven)

    def _ready(self, machine: Machine) -> Ready:
        return probe.ready(machine)

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal:
        lowered = lower.lowered(problem, fused=False)
        if isinstance(lowered, Refusal):
            return lowered
        found = ways(lowered.forms[0], self.machine.library, _kinds(lowered))
        if isinstance(found, Refusal):
            return found
        answers = [(way, self._proofs.of(self.machine, problem, way)) for way in found]
        proven = tuple(way for way, refusal in answers if refusal is None)
        first = next((refusal for _, refusal in answers if refusal is not None), None)
        return first if first is not None and not proven else Analysis(lowered, proven)

    def _unproven(self, problem: GemmProblem, way: Way) -> Run | Refusal:
        lowered = lower.lowered(problem, fused=False)
        if isinstance(lowered, Refusal):
            return lowered
        return Gemm(self.machine, problem, lowered, way).run

    def estimate(self, problem: GemmProblem) -> float | None:
        analysis = self.analysis(problem)
        launches = analysis.launches(analysis.ways[0]) if isinstance(analysis, Analysis) else 0
        copied = sum(2 * copy.nbytes for copy in addend.copies(problem))
        arch = self.machine.runtime.arch(problem.device.index)
        return model.seconds(problem, arch, launches + bool(copied), copied)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        analysis = self.analysis(problem)
        way = analysis.way(candidate) if isinstance(analysis, Analysis) else None
        if way is None or not isinstance(analysis, Analysis):
            return ""
        parts = [way.function]
        if analysis.launches(way) > 1:
            parts.append(f"{analysis.launches(way)} launches, as the batch is not evenly spaced")
        if way.kind == BATCHED:
            parts.append("addresses copied to the device when they change")
        if problem.precision != "ieee" and way.label != "tf32":
            parts.append("in full precision")
        if self.machine.library.codes.without_header is not None:
            parts.append("by public numbers, without the header")
        return ", ".join(parts + self.remarks())

    def copies(self, problem: GemmProblem) -> Sequence[Copy]:
        return addend.copies(problem)

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        analysis = self.analysis(problem)
        return [way.name for way in analysis.ways] if isinstance(analysis, Analysis) else (NOTHING,)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Raises ValueError for a candidate that is none, or does not fit, and AllocationError without memory."""
        analysis = self.runnable(problem)
        if analysis is None:
            return NOTHING_TO_DO
        way = analysis.way(candidate)
        if way is None:
            raise ValueError(f"muBLAS runs no {candidate!r} here, but {', '.join(way.name for way in analysis.ways)}")
        gemm = Gemm(self.machine, problem, analysis.lowered, way)
        description = f"muBLAS {self.machine.version} {way.function}"
        return self.fitting(gemm.run, gemm.workspace_bytes, workspace_limit, problem, description)


def _kinds(lowered: Lowered) -> tuple[str, ...]:
    """Kinds of launches for a batch like this, best first."""
    calls, each = len(lowered.offsets), lowered.forms[0].count
    one = STRIDED if each > 1 else GEMM
    if calls * each == 1:
        return (GEMM,)
    return (BATCHED, one) if calls > _FEW_LAUNCHES else (one, BATCHED)
