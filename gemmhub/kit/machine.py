"""A base class for backends of devices: it probes the machine once, and analyses each problem once."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from gemmhub._base.evicting import keep
from gemmhub.backend import Backend, Kernel
from gemmhub.capability import Absent, Ready
from gemmhub.kit import locks
from gemmhub.problem import GemmProblem

M = TypeVar("M")
A = TypeVar("A")
NOTHING_TO_DO = Kernel(lambda a, b, out, c, bias, alpha, beta, stream: None, "nothing to do")
"""The kernel for a result without elements."""


class MachineBackend(Backend, Generic[M]):
    """A backend with cached machine and analyses; ``M`` is its class for a machine: drivers, libraries, devices."""

    most_analyses = 4096
    """The most problems whose analyses are kept."""

    def __init__(self, look: Callable[[], M | Absent]) -> None:
        """``look`` returns the machine, or Absent with what is missing."""
        self._look = look
        self._found: M | Absent | None = None
        self._lock = locks.lock()
        """Lock for other facts that are determined once."""
        self._analyses: OrderedDict[GemmProblem, Any] = OrderedDict()

    @abstractmethod
    def _ready(self, machine: M) -> Ready:
        """The facts of the machine, as :meth:`probe` returns them."""

    def _find(self) -> M | Absent:
        with self._lock:
            if self._found is None:
                self._found = self._look()
            return self._found

    @property
    def machine(self) -> M:
        """The machine. RuntimeError where :meth:`probe` returns Absent."""
        found = self._found or self._find()
        if isinstance(found, Absent):
            raise RuntimeError(f"{found.reason}; {found.remedy}")
        return found

    def probe(self) -> Ready | Absent:
        found = self._find()
        return found if isinstance(found, Absent) else self._ready(found)

    def remembered(self, problem: GemmProblem, analyse: Callable[[], A]) -> A:
        """The result of ``analyse`` for ``problem``, called once for each problem. Exceptions are not kept."""
        kept: A | None = self._analyses.get(problem)
        if kept is None:
            kept = analyse()
            with self._lock:
                keep(self._analyses, problem, kept, self.most_analyses)
        return kept
