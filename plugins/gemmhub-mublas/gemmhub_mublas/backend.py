"""The backend of muBLAS. Its candidates are the library's functions: "sgemm", "ex_strided" and so on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from gemmhub_musa.backend import Analysis, MusaBackend, library_order

from gemmhub.backend import BASIC, Candidate, Kernel, Offer, Run
from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.problem import GemmProblem
from gemmhub_mublas import addend, choose, lower, model, probe
from gemmhub_mublas.launch import Gemm
from gemmhub_mublas.library import BATCHED, GEMM, STRIDED
from gemmhub_mublas.lower import Lowered
from gemmhub_mublas.probe import Machine
from gemmhub_mublas.proof import Proofs

_FEW_LAUNCHES = 8
"""Launches up to which an uneven batch costs less than copying arrays of addresses to the device."""


class MublasBackend(MusaBackend[Machine, Lowered, choose.Candidate]):
    """muBLAS on Moore Threads GPUs."""

    name = "mublas"
    takes: ClassVar = {"c": BASIC["c"], "precision": BASIC["precision"], "reproducible": BASIC["reproducible"]}

    def __init__(self, look: Callable[[], Machine | Absent] = probe.look) -> None:
        """Tests pass another function that looks at the machine."""
        super().__init__(look)
        self._proofs: Proofs[Machine, choose.Candidate] = Proofs("muBLAS", self._unproven)

    def _ready(self, machine: Machine) -> Ready:
        return probe.ready(machine)

    def _analyse(self, problem: GemmProblem) -> Analysis[Lowered, choose.Candidate] | Refusal:
        lowered = lower.lowered(problem, fused=False)
        if isinstance(lowered, Refusal):
            return lowered
        found = choose.candidates(lowered.forms[0], self.machine.library, _kinds(lowered))
        if isinstance(found, Refusal):
            return found
        answers = [(each, self._proofs.of(self.machine, problem, each)) for each in found]
        proven = {each.name: each for each, refusal in answers if refusal is None}
        first = answers[0][1]
        return Analysis(lowered, proven) if proven or first is None else first

    def _unproven(self, machine: Machine, problem: GemmProblem, candidate: choose.Candidate) -> Run | Refusal:
        lowered = lower.lowered(problem, fused=False)
        if isinstance(lowered, Refusal):
            return lowered
        return Gemm(machine, problem, lowered, candidate).run

    def _offered(self, problem: GemmProblem, analysis: Analysis[Lowered, choose.Candidate]) -> Offer:
        copies, order = addend.copies(problem), library_order(problem)
        launches = _launches(analysis.lowered, next(iter(analysis.candidates.values())))
        copied = sum(2 * copy.nbytes for copy in copies)
        arch = self.machine.runtime.arch(problem.device.index)
        seconds = model.seconds(problem, arch, launches + bool(copied), copied)
        return Offer(
            [Candidate(name, None if i else seconds, copies, order) for i, name in enumerate(analysis.candidates)],
            partial(self._remark, problem, analysis),
        )

    def _remark(self, problem: GemmProblem, analysis: Analysis[Lowered, choose.Candidate], name: str) -> str:
        chosen = analysis.candidates[name]
        launches, words = _launches(analysis.lowered, chosen), [chosen.function]
        if launches > 1:
            words.append(f"{launches} launches, as the batch is not evenly spaced")
        if chosen.kind == BATCHED:
            words.append("addresses copied to the device when they change")
        if problem.permits_tf32 and chosen.label != "tf32":
            words.append("in full precision")
        if self.machine.library.codes.without_header is not None:
            words.append("with public numbers, as there is no header")
        return ", ".join(words + self.machine.guard.remarks())

    def _prepared(
        self, problem: GemmProblem, lowered: Lowered, candidate: choose.Candidate, workspace_limit: int
    ) -> Kernel:
        gemm = Gemm(self.machine, problem, lowered, candidate)
        return Kernel(gemm.run, f"muBLAS {self.machine.version} {candidate.function}", gemm.workspace_bytes)


def _launches(lowered: Lowered, candidate: choose.Candidate) -> int:
    """Return the number of calls of the library that a product takes."""
    return 1 if candidate.kind == BATCHED else len(lowered.offsets)


def _kinds(lowered: Lowered) -> tuple[str, ...]:
    """Return the kinds of launches for such a batch, best first."""
    calls, each = len(lowered.offsets), lowered.forms[0].count
    one = STRIDED if each > 1 else GEMM
    if calls * each == 1:
        return (GEMM,)
    return (BATCHED, one) if calls > _FEW_LAUNCHES else (one, BATCHED)
