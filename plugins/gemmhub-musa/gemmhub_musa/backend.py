"""The base of backends on MUSA devices: it refuses wrong devices and analyses each problem once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

from gemmhub.capability import Refusal
from gemmhub.errors import AllocationError
from gemmhub.kit.machine import MachineBackend
from gemmhub.problem import GemmProblem
from gemmhub_musa.probe import Devices
from gemmhub_musa.runtime import MusaError

NOTHING = "nothing"
"""Name of the only candidate for a result without elements."""

M = TypeVar("M", bound=Devices)
A = TypeVar("A")


class CallError(RuntimeError):
    """A call of a vendor's library failed."""


class MusaBackend(MachineBackend[M], Generic[M, A]):
    """``M`` is the machine with its library, ``A`` the analysis of a problem that the backend runs."""

    @abstractmethod
    def _analyse(self, problem: GemmProblem) -> A | Refusal:
        """Analyse a problem on a usable device, whose result has elements.

        Raises AllocationError, CallError or MusaError for a state of the device, which decides nothing for good.
        """

    def supports(self, problem: GemmProblem) -> Refusal | None:
        """Return None, or the reason why the backend does not run ``problem``."""
        answer = self.analysis(problem)
        return answer if isinstance(answer, Refusal) else None

    def analysis(self, problem: GemmProblem) -> A | Refusal | None:
        """Return the analysis of ``problem``, remembered; None where the result has no elements."""
        refusal = self.machine.refusal(problem.device)
        if refusal is not None:
            return refusal
        if problem.empty:
            return None
        try:
            return self.remembered(problem, lambda: self._analyse(problem))
        except AllocationError as error:
            reason = f"{self.name} could not be tried, as there is no memory: {error}"
            return Refusal(reason, "free some device memory")
        except (CallError, MusaError) as error:
            return Refusal(f"{self.name} could not be tried: {error}", "check that the device has free memory")

    def runnable(self, problem: GemmProblem) -> A | None:
        """Return the analysis of ``problem``, as :meth:`analysis` returns it. Raises ValueError for what is refused."""
        analysis = self.analysis(problem)
        if isinstance(analysis, Refusal):
            raise ValueError(f"{analysis.reason}; {analysis.remedy}")
        return analysis

    def check_workspace(self, needed: int, limit: int, problem: GemmProblem) -> None:
        """Raise ValueError where a kernel needs more workspace than ``limit`` bytes."""
        if needed > limit:
            raise ValueError(
                f"{self.name} needs {needed} bytes of workspace for {problem}: {limit} are allowed; raise the setting "
                "workspace_mib"
            )
