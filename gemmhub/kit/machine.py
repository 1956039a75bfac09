"""A base class for backends of devices, which probes the machine once, and their offer for problems without work."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from gemmhub.backend import Backend, Candidate, Kernel, Offer
from gemmhub.capability import Absent, Ready
from gemmhub.kit import locks

M = TypeVar("M")
NOTHING_TO_DO = Kernel(lambda a, b, out, alpha, beta, stream, **operands: None, "nothing to do")
"""The kernel for a result without elements."""


def nothing_to_do(seconds: float | None) -> Offer:
    """Return the offer for a result without elements."""
    return Offer((Candidate("nothing", seconds),))


class MachineBackend(Backend, Generic[M]):
    """A backend with a cached machine; ``M`` is its class for a machine: drivers, libraries, devices."""

    def __init__(self, look: Callable[[], M | Absent]) -> None:
        """``look`` returns the machine, or Absent with what is missing."""
        self._look = look
        self._machine: M | Absent | None = None
        self._lock = locks.lock()
        """Lock for other facts that are determined once."""

    @abstractmethod
    def _ready(self, machine: M) -> Ready:
        """The facts of the machine, as :meth:`probe` returns them."""

    def _find(self) -> M | Absent:
        with self._lock:
            if self._machine is None:
                self._machine = self._look()
            return self._machine

    @property
    def machine(self) -> M:
        """The machine. RuntimeError where :meth:`probe` returns Absent."""
        machine = self._machine or self._find()
        if isinstance(machine, Absent):
            raise RuntimeError(f"{machine.reason}; {machine.remedy}")
        return machine

    def probe(self) -> Ready | Absent:
        machine = self._find()
        return machine if isinstance(machine, Absent) else self._ready(machine)
