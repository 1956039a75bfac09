"""Doubles of C libraries: Python methods behind C function pointers, so that calls go through the plugin's own ctypes
declarations, and a list of what the caller must not have done.

A subclass has a row in ``types`` and a method ``_<name>`` for each function::

    class FakeCounter(FakeLibrary):
        types = {"counterAdd": (c_int, (c_void_p, c_int))}

        def _counterAdd(self, out, value): ...  # None means 0; an exception is a complaint

``del fake.counterAdd`` makes it a library without that function.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

Types = Mapping[str, tuple[Any, tuple[Any, ...]]]
"""By the names of C functions: (type of the result, types of the arguments)."""


class FakeLibrary:
    """An object whose attributes are C functions."""

    types: ClassVar[Types] = {}
    failed: ClassVar[int] = 1
    """What a function returns whose method raised."""

    def __init__(self, complaints: list[str] | None = None) -> None:
        """``complaints``: a list to share with another double."""
        self.calls: list[str] = []
        """The names of functions, as they were called."""
        self.faults: dict[str, int] = {}
        """What a function returns instead of being carried out."""
        self.complaints: list[str] = [] if complaints is None else complaints
        for name, (result, arguments) in self.types.items():
            setattr(self, name, ctypes.CFUNCTYPE(result, *arguments)(self._exported(name)))

    def complain(self, text: str) -> None:
        """Note what a program must not do."""
        self.complaints.append(text)
        print("fake:", text, file=sys.stderr)

    def _exported(self, name: str) -> Callable[..., int]:
        method = getattr(self, f"_{name}")

        def call(*given: Any) -> int:
            self.calls.append(name)
            if name in self.faults:
                return self.faults[name]
            try:
                return method(*given) or 0
            except Exception as error:
                self.complain(f"{name}: {type(error).__name__}: {error}")
                return self.failed

        return call


def put(address: int, kind: Any, value: Any) -> None:
    """Write ``value`` where ``address`` points to a ``kind``, a ctypes type."""
    kind.from_address(address).value = value
