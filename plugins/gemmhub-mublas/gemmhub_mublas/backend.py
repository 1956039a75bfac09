"""The backend of muBLAS. Its candidates are the library's functions: "sgemm", "ex_strided" and so on."""

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
"""Launches up to which an uneven batch costs less than copying arrays of addresses to the device."""


@dataclass(frozen=True)
class Analysis:
    """A problem that the library runs."""

    lowered: Lowered
    candidates: tuple[Candidate, ...]
    """At least one candidate, the default first; all are proven on the problem's device."""

    def named(self, name: str) -> Candidate | None:
        """Return the candidate of that name."""
        return next((each for each in self.candidates if each.name == name), None)

    def launches(self, candidate: Candidate) -> int:
        """Return the number of calls of the library that a product takes."""
        return 1 if candidate.kind == BATCHED else len(self.lowered.offsets)


class MublasBackend(MusaBackend[Machine, Analysis]):
    """muBLAS on Moore Threads GPUs."""

    name = "mublas"

    def __init__(self, look: Callable[[], Machine | Absent] = probe.look) -> None:
        """Tests pass another function that looks at the machine."""
        super().__init__(look)
        self._proofs: Proofs[Machine, Candidate] = Proofs("muBLAS", self._unproven)

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

    def _unproven(self, machine: Machine, problem: GemmProblem, candidate: Candidate) -> Run | Refusal:
        lowered = lower.lowered(problem, fused=False)
        if isinstance(lowered, Refusal):
            return lowered
        return Gemm(machine, problem, lowered, candidate).run

    def estimate(self, problem: GemmProblem) -> float | None:
        """Return the seconds of the usual candidate; None without a known rate."""
        analysis = self.analysis(problem)
        launches = analysis.launches(analysis.candidates[0]) if isinstance(analysis, Analysis) else 0
        copied = sum(2 * copy.nbytes for copy in addend.copies(problem))
        arch = self.machine.runtime.arch(problem.device.index)
        return model.seconds(problem, arch, launches + bool(copied), copied)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        """Return a description of ``candidate``."""
        analysis = self.analysis(problem)
        chosen = analysis.named(candidate) if isinstance(analysis, Analysis) else None
        if chosen is None or not isinstance(analysis, Analysis):
            return ""
        words = [chosen.function]
        if analysis.launches(chosen) > 1:
            words.append(f"{analysis.launches(chosen)} launches, as the batch is not evenly spaced")
        if chosen.kind == BATCHED:
            words.append("addresses copied to the device when they change")
        if problem.permits_tf32 and chosen.label != "tf32":
            words.append("in full precision")
        if self.machine.library.codes.without_header is not None:
            words.append("with public numbers, as there is no header")
        return ", ".join(words + self.machine.guard.remarks())

    def copies(self, problem: GemmProblem) -> Sequence[Copy]:
        """Return the copy of c."""
        return addend.copies(problem)

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        """Return the names of the candidates, the usual one first."""
        analysis = self.analysis(problem)
        return [each.name for each in analysis.candidates] if isinstance(analysis, Analysis) else (NOTHING,)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Return ``candidate`` ready to run.

        Raises ValueError where it is unknown or does not fit into the workspace, AllocationError without memory.
        """
        analysis = self.runnable(problem)
        if analysis is None:
            return NOTHING_TO_DO
        chosen = analysis.named(candidate)
        if chosen is None:
            allowed = ", ".join(each.name for each in analysis.candidates)
            raise ValueError(f"muBLAS has no candidate {candidate!r} here; allowed: {allowed}")
        gemm = Gemm(self.machine, problem, analysis.lowered, chosen)
        description = f"muBLAS {self.machine.version} {chosen.function}"
        self.check_workspace(gemm.workspace_bytes, workspace_limit, problem)
        return Kernel(gemm.run, description, gemm.workspace_bytes)


def _kinds(lowered: Lowered) -> tuple[str, ...]:
    """Return the kinds of launches for such a batch, best first."""
    calls, each = len(lowered.offsets), lowered.forms[0].count
    one = STRIDED if each > 1 else GEMM
    if calls * each == 1:
        return (GEMM,)
    return (BATCHED, one) if calls > _FEW_LAUNCHES else (one, BATCHED)
