"""A base for backends of devices: the machine is looked for once, when somebody first asks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from gemmhub.backend import Backend
from gemmhub.capability import Absent, Ready
from gemmhub.kit import locks

M = TypeVar("M")


class MachineBackend(Backend, Generic[M]):
    """``M`` is what the backend keeps of a machine that it can run on: drivers, libraries, devices."""

    def __init__(self, look: Callable[[], M | Absent]) -> None:
        """``look`` finds the machine, or says what it lacks."""
        self._look = look
        self._found: M | Absent | None = None
        self._lock = locks.lock()
        """For whatever else is found out once."""

    @abstractmethod
    def _ready(self, machine: M) -> Ready:
        """What gemmhub is told of the machine."""

    def _find(self) -> M | Absent:
        with self._lock:
            if self._found is None:
                self._found = self._look()
            return self._found

    @property
    def machine(self) -> M:
        """RuntimeError where :meth:`probe` says Absent."""
        found = self._found or self._find()
        if isinstance(found, Absent):
            raise RuntimeError(f"{found.reason}; {found.remedy}")
        return found

    def probe(self) -> Ready | Absent:
        found = self._find()
        return found if isinstance(found, Absent) else self._ready(found)
