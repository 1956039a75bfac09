"""What both backends do alike: look at the machine once, analyse each problem once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from gemmhub_musa.runtime import MusaError

from gemmhub.backend import Kernel
from gemmhub.capability import Absent, Refusal
from gemmhub.errors import AllocationError
from gemmhub.kit.machine import MachineBackend
from gemmhub.problem import GemmProblem
from gemmhub_mublas.library import StatusError
from gemmhub_mublas.probe import Devices

_KEPT = 4096
"""Problems whose analyses are remembered."""
NOTHING = "nothing"
"""The one candidate for a result without elements."""

M = TypeVar("M", bound=Devices)
A = TypeVar("A")


class LibraryBackend(MachineBackend[M], Generic[M, A]):
    """``M`` is the machine with its library, ``A`` what is found out about a problem that the library runs."""

    def __init__(self, look: Callable[[], M | Absent]) -> None:
        super().__init__(look)
        self._analyses: dict[GemmProblem, A | Refusal] = {}

    @abstractmethod
    def _analyse(self, problem: GemmProblem) -> A | Refusal:
        """For a problem on a device that is there, whose result has elements."""

    def supports(self, problem: GemmProblem) -> Refusal | None:
        answer = self.analysis(problem)
        return answer if isinstance(answer, Refusal) else None

    def analysis(self, problem: GemmProblem) -> A | Refusal | None:
        """None where the result has no elements. Remembered, unless the device was in no state to tell."""
        count = self.machine.count
        if problem.device.kind != "musa" or problem.device.index >= count:
            return Refusal(f"the operands are on {problem.device}", f"copy them to one of {count} MUSA devices")
        if problem.empty:
            return None
        known = self._analyses.get(problem)
        if known is None:
            try:
                known = self._analyse(problem)
            except (AllocationError, StatusError, MusaError) as error:
                return Refusal(f"{self.name} could not be tried: {error}", "see that the device has free memory")
            with self._lock:
                if len(self._analyses) >= _KEPT:
                    self._analyses.clear()
                self._analyses[problem] = known
        return known

    def runnable(self, problem: GemmProblem) -> A | None:
        """As :meth:`analysis`; ValueError for what is refused."""
        analysis = self.analysis(problem)
        if isinstance(analysis, Refusal):
            raise ValueError(f"{analysis.reason}; {analysis.remedy}")
        return analysis

    def fitting(self, run: Any, needed: int, limit: int, problem: GemmProblem, description: str) -> Kernel:
        """The kernel; ValueError where it needs more workspace than ``limit`` bytes."""
        if needed > limit:
            raise ValueError(
                f"{self.name} needs {needed} bytes of workspace for {problem}, {limit} are allowed: raise the setting "
                "workspace_mib"
            )
        return Kernel(run, description, needed)

    def remarks(self) -> list[str]:
        """Clauses about the library on this machine, whatever the problem."""
        cleared = self.machine.guard.cleared
        return [f"left musaErrorNotSupported behind {cleared} times, cleared"] if cleared else []


NOTHING_TO_DO = Kernel(lambda a, b, out, c, bias, alpha, beta, stream: None, "nothing to do")
"""For a result without elements."""
