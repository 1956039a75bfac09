"""The backend of muBLASLt. Its candidates are the proposed algorithms, and "library", its choice in the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gemmhub_musa.backend import NOTHING, MusaBackend

from gemmhub.backend import Kernel, Run
from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.kit.machine import NOTHING_TO_DO
from gemmhub.problem import GemmProblem
from gemmhub_mublas import lower as blas
from gemmhub_mublas import model
from gemmhub_mublas.library import StatusError
from gemmhub_mublas.lower import Lowered
from gemmhub_mublas.lt import lower, probe
from gemmhub_mublas.lt.launch import WORKSPACE, Gemm
from gemmhub_mublas.lt.library import LIBRARYS_CHOICE, Plan
from gemmhub_mublas.lt.probe import Machine
from gemmhub_mublas.proof import Proofs

_LIBRARY = "library"
_PROPOSED = "proposed-"
_ALIGNED = 16
"""Alignment in bytes for which algorithms are proposed where the header has no name for alignments."""


@dataclass(frozen=True)
class CallKind:
    """A kind of call of the library, which is proven as one."""

    batched: bool
    """Whether the batch is multiplied in one call."""
    proposed: bool
    """Whether the call names an algorithm that the library proposed before."""

    def __str__(self) -> str:
        return f"mublasLtMatmul with {'an algorithm that it proposes' if self.proposed else 'algo = NULL'}"


@dataclass(frozen=True)
class Analysis:
    """A problem that the library runs."""

    lowered: Lowered
    candidates: tuple[str, ...]
    """At least one candidate, the usual one first."""


class MublasLtBackend(MusaBackend[Machine, Analysis]):
    """muBLASLt on Moore Threads GPUs."""

    name = "mublaslt"

    def __init__(self, look: Callable[[], Machine | Absent] = probe.look) -> None:
        """Tests pass another function that looks at the machine."""
        super().__init__(look)
        self._proofs: Proofs[Machine, CallKind] = Proofs("muBLASLt", self._unproven)

    def _ready(self, machine: Machine) -> Ready:
        return probe.ready(machine)

    def _lowered(self, problem: GemmProblem) -> Lowered | Refusal:
        refusal = lower.check_types(problem)
        if refusal is not None:
            return refusal
        has = self.machine.glue.has
        lowered = blas.lowered(problem, fused=True, batched=has.issuperset(lower.BATCH))
        if isinstance(lowered, Refusal):
            return lowered
        form = lowered.forms[0]
        return lower.check_form(form) or lower.check_names(form, has) or lowered

    def _analyse(self, problem: GemmProblem) -> Analysis | Refusal:
        found = self._analysed(problem)
        if isinstance(found, Refusal) and problem.permits_tf32:
            # tf32 is allowed, not required.
            full = self._analysed(replace(problem, precision="ieee"))
            return found if isinstance(full, Refusal) else full
        return found

    def _analysed(self, problem: GemmProblem) -> Analysis | Refusal:
        lowered = self._lowered(problem)
        if isinstance(lowered, Refusal):
            return lowered
        machine, form = self.machine, lowered.forms[0]
        batched = form.count > 1
        refusal = self._proofs.of(machine, problem, CallKind(batched, False))
        candidates = [_LIBRARY] if refusal is None else []
        aligned = lower.ALIGNMENTS[-1] in machine.glue.has
        aligned = aligned or min(x.alignment for x in (form.a, form.b, form.c, form.d)) >= _ALIGNED
        # No proposal is a candidate, or asked for, where the library cannot run its own proposals.
        if aligned and self._proofs.of(machine, problem, CallKind(batched, True)) is None:
            index = problem.device.index
            with machine.runtime.device(index):
                handle = machine.handles.take(index, 0)
                try:
                    proposed = Plan(machine.glue, form).propose(handle, WORKSPACE)
                except StatusError as error:
                    return Refusal(f"{error}; {blas.stored(form)}", "use another backend")
                finally:
                    machine.handles.give(index, 0, handle)
            candidates = [f"{_PROPOSED}{place}" for place in range(len(proposed))] + candidates
        if not candidates:
            assert refusal is not None
            return refusal
        return Analysis(lowered, tuple(candidates))

    def _unproven(self, machine: Machine, problem: GemmProblem, kind: CallKind) -> Run | Refusal:
        lowered = self._lowered(problem)
        if isinstance(lowered, Refusal):
            return lowered
        return Gemm(machine, problem, lowered, 0 if kind.proposed else LIBRARYS_CHOICE, WORKSPACE).run

    def estimate(self, problem: GemmProblem) -> float | None:
        """Return the seconds of the usual candidate; None without a known rate."""
        analysis = self.analysis(problem)
        launches = len(analysis.lowered.offsets) if isinstance(analysis, Analysis) else 0
        return model.seconds(problem, self.machine.runtime.arch(problem.device.index), launches)

    def remark(self, problem: GemmProblem, candidate: str) -> str:
        """Return a description of ``candidate``."""
        analysis = self.analysis(problem)
        if not isinstance(analysis, Analysis):
            return ""
        parts = ["the library's choice (algo = NULL)" if candidate == _LIBRARY else f"algorithm {candidate}"]
        launches = len(analysis.lowered.offsets)
        if launches > 1:
            parts.append(f"{launches} launches for the batch")
        if lower.epilogue(analysis.lowered.forms[0]):
            parts.append("epilogue fused")
        return ", ".join(parts + self.machine.guard.remarks())

    def candidates(self, problem: GemmProblem) -> Sequence[str]:
        """Return the names of the candidates, the usual one first."""
        analysis = self.analysis(problem)
        return analysis.candidates if isinstance(analysis, Analysis) else (NOTHING,)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel:
        """Return ``candidate`` ready to run.

        Raises ValueError where it is unknown or does not fit into the workspace, AllocationError without memory.
        """
        analysis = self.runnable(problem)
        if analysis is None:
            return NOTHING_TO_DO
        if candidate not in analysis.candidates:
            raise ValueError(f"muBLASLt has no candidate {candidate!r} here; allowed: {', '.join(analysis.candidates)}")
        algorithm = LIBRARYS_CHOICE if candidate == _LIBRARY else int(candidate.removeprefix(_PROPOSED))
        gemm = Gemm(self.machine, problem, analysis.lowered, algorithm, workspace_limit)
        description = f"muBLASLt {self.machine.version} {candidate}{gemm.note}"
        self.check_workspace(gemm.workspace_bytes, workspace_limit, problem)
        return Kernel(gemm.run, description, gemm.workspace_bytes)
