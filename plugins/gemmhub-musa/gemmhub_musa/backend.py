"""The base of backends on MUSA devices: it refuses wrong devices, and answers for results without elements."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Refusal
from gemmhub.errors import AllocationError
from gemmhub.kit.machine import NOTHING_TO_DO, MachineBackend, nothing_to_do
from gemmhub.problem import GemmProblem
from gemmhub_musa.probe import Devices
from gemmhub_musa.runtime import MusaError

M = TypeVar("M", bound=Devices)
L = TypeVar("L")
C = TypeVar("C")


class CallError(RuntimeError):
    """A call of a vendor's library failed."""


@dataclass(frozen=True)
class Analysis(Generic[L, C]):
    """A problem that a backend runs."""

    lowered: L
    """The calls of the library or the kernels."""
    candidates: Mapping[str, C]
    """Candidates by name, one or more, the usual one first."""


class MusaBackend(MachineBackend[M], Generic[M, L, C]):
    """``M`` is the machine with its library, ``L`` what problems are lowered to, ``C`` a candidate."""

    @abstractmethod
    def _analyse(self, problem: GemmProblem) -> Analysis[L, C] | Refusal:
        """Analyse a problem on a usable device, whose result has elements.

        Raises AllocationError, CallError or MusaError for a state of the device, which decides nothing for good.
        """

    @abstractmethod
    def _offered(self, problem: GemmProblem, analysis: Analysis[L, C]) -> Offer | Refusal:
        """Return the offer for an analysed problem."""

    @abstractmethod
    def _prepared(self, problem: GemmProblem, lowered: L, candidate: C, workspace_limit: int) -> Kernel | Refusal:
        """Return the kernel of a candidate; its workspace is checked afterwards. Raises AllocationError."""

    def offer(self, problem: GemmProblem) -> Offer | Refusal:
        """Return what the backend offers for ``problem``, or the reason why it does not run it."""
        refusal = self.machine.refusal(problem.device)
        if refusal is not None:
            return refusal
        if problem.empty:
            return nothing_to_do(0.0)
        try:
            analysis = self._analyse(problem)
        except AllocationError as error:
            reason = f"{self.name} could not be tried, as there is no memory: {error}"
            return Refusal(reason, "free some device memory")
        except (CallError, MusaError) as error:
            return Refusal(f"{self.name} could not be tried: {error}", "check that the device has free memory")
        return analysis if isinstance(analysis, Refusal) else self._offered(problem, analysis)

    def prepare(self, problem: GemmProblem, candidate: str, workspace_limit: int) -> Kernel | Refusal:
        """Return the kernel of ``candidate``, or the reason why there is none.

        Raises AllocationError without memory, CallError or MusaError for another state of the device.
        """
        refusal = self.machine.refusal(problem.device)
        if refusal is not None or problem.empty:
            return refusal or NOTHING_TO_DO
        analysis = self._analyse(problem)
        if isinstance(analysis, Refusal):
            return analysis
        if candidate not in analysis.candidates:
            allowed = ", ".join(analysis.candidates)
            reason = f"{self.name} has no candidate {candidate!r} here; allowed: {allowed}"
            return Refusal(reason, "name one of these, or leave the candidate's name out")
        kernel = self._prepared(problem, analysis.lowered, analysis.candidates[candidate], workspace_limit)
        if isinstance(kernel, Kernel) and kernel.workspace_bytes > workspace_limit:
            return short_of_workspace(f"{self.name}'s {candidate}", kernel.workspace_bytes, workspace_limit)
        return kernel


def short_of_workspace(what: str, needed: int, limit: int) -> Refusal:
    """Return the refusal of a kernel that needs more workspace than ``limit`` bytes."""
    return Refusal(
        f"{what} needs {needed} bytes of workspace: {limit} are allowed",
        "raise the setting workspace_mib, or leave the candidate's name out",
    )


def library_order(problem: GemmProblem) -> str | None:
    """Return the order of addition in a vendor's library: documented for none, without effect on integers."""
    return "exact" if problem.compute_dtype.kind == "i" else None
