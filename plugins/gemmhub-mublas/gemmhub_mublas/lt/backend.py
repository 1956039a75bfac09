"""The backend of muBLASLt. Its candidates are the proposed algorithms, and "library", its choice in the call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from gemmhub_musa.backend import Analysis, MusaBackend, library_order

from gemmhub.backend import BASIC, Candidate, Kernel, Offer, Run
from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.problem import GemmProblem
from gemmhub_mublas import lower as blas
from gemmhub_mublas import model
from gemmhub_mublas.library import StatusError
from gemmhub_mublas.lower import Lowered
from gemmhub_mublas.lt import lower, probe
from gemmhub_mublas.lt.launch import WORKSPACE, Gemm, room
from gemmhub_mublas.lt.library import LIBRARYS_CHOICE, Plan
from gemmhub_mublas.lt.probe import Machine
from gemmhub_mublas.proof import Proofs

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


class MublasLtBackend(MusaBackend[Machine, Lowered, int]):
    """muBLASLt on Moore Threads GPUs."""

    name = "mublaslt"
    takes: ClassVar = {**BASIC, "activation": lower.ACTIVATIONS}

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

    def _analyse(self, problem: GemmProblem) -> Analysis[Lowered, int] | Refusal:
        found = self._analysed(problem)
        if isinstance(found, Refusal) and problem.permits_tf32:
            # tf32 is allowed, not required.
            full = self._analysed(replace(problem, precision="ieee"))
            return found if isinstance(full, Refusal) else full
        return found

    def _analysed(self, problem: GemmProblem) -> Analysis[Lowered, int] | Refusal:
        lowered = self._lowered(problem)
        if isinstance(lowered, Refusal):
            return lowered
        machine, form = self.machine, lowered.forms[0]
        batched = form.count > 1
        refusal = self._proofs.of(machine, problem, CallKind(batched, False))
        algorithms = [LIBRARYS_CHOICE] if refusal is None else []
        aligned = lower.ALIGNMENTS[-1] in machine.glue.has
        aligned = aligned or min(x.alignment for x in (form.a, form.b, form.c, form.d)) >= _ALIGNED
        # No proposal is a candidate, or asked for, where the library cannot run its own proposals.
        if aligned and self._proofs.of(machine, problem, CallKind(batched, True)) is None:
            index = problem.device.index
            with machine.runtime.device(index):
                handle = machine.handles.take(index, 0)
                try:
                    proposed = Plan(machine.glue, form).propose(handle, room(lowered))
                except StatusError as error:
                    return Refusal(f"{error}; {blas.stored(form)}", "use another backend")
                finally:
                    machine.handles.give(index, 0, handle)
            algorithms = [*range(len(proposed)), *algorithms]
        if not algorithms and refusal is not None:
            return refusal
        return Analysis(lowered, {_name(algorithm): algorithm for algorithm in algorithms})

    def _unproven(self, machine: Machine, problem: GemmProblem, kind: CallKind) -> Run | Refusal:
        lowered = self._lowered(problem)
        if isinstance(lowered, Refusal):
            return lowered
        return Gemm(machine, problem, lowered, 0 if kind.proposed else LIBRARYS_CHOICE, WORKSPACE).run

    def _offered(self, problem: GemmProblem, analysis: Analysis[Lowered, int]) -> Offer:
        order, arch = library_order(problem), self.machine.runtime.arch(problem.device.index)
        seconds = model.seconds(problem, arch, len(analysis.lowered.offsets))
        return Offer(
            [Candidate(name, None if i else seconds, order=order) for i, name in enumerate(analysis.candidates)],
            partial(self._remark, analysis.lowered),
        )

    def _remark(self, lowered: Lowered, name: str) -> str:
        parts = ["the library's choice (algo = NULL)" if name == _name(LIBRARYS_CHOICE) else f"algorithm {name}"]
        launches = len(lowered.offsets)
        if launches > 1:
            parts.append(f"{launches} launches for the batch")
        if lower.epilogue(lowered.forms[0]):
            parts.append("epilogue fused")
        return ", ".join(parts + self.machine.guard.remarks())

    def _prepared(self, problem: GemmProblem, lowered: Lowered, candidate: int, workspace_limit: int) -> Kernel:
        gemm = Gemm(self.machine, problem, lowered, candidate, workspace_limit)
        return Kernel(gemm.run, f"muBLASLt {self.machine.version} {_name(candidate)}", gemm.workspace_bytes)


def _name(algorithm: int) -> str:
    """Return the candidate's name for an index into the library's proposals, or for LIBRARYS_CHOICE."""
    return "library" if algorithm == LIBRARYS_CHOICE else f"proposed-{algorithm}"
