"""Fakes of C libraries: Python methods behind C function pointers, so that calls go through the plugin's own ctypes
declarations, and a list of the caller's violations.

A subclass has a row in ``types`` and a method ``_<name>`` for each function::

    class FakeCounter(FakeLibrary):
        types = {"counterAdd": (c_int, (c_void_p, c_int))}

        def _counterAdd(self, out, value): ...  # None means 0; an exception is a complaint

``del fake.counterAdd`` removes the function from the library.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

Types = Mapping[str, tuple[Any, tuple[Any, ...]]]
"""Types of C functions by name: (type of the result, types of the arguments)."""


class FakeLibrary:
    """An object whose attributes are C functions."""

    types: ClassVar[Types] = {}
    failed: ClassVar[int] = 1
    """Result of a function whose method raised."""

    def __init__(self, complaints: list[str] | None = None) -> None:
        """``complaints`` is a list to share with another fake."""
        self.calls: list[str] = []
        """Names of the functions in the order of their calls."""
        self.faults: dict[str, int] = {}
        """Results of functions by name, returned without a call of the method."""
        self.complaints: list[str] = [] if complaints is None else complaints
        for name, (result, arguments) in self.types.items():
            setattr(self, name, ctypes.CFUNCTYPE(result, *arguments)(self._exported(name)))

    def complain(self, text: str) -> None:
        """Note a violation."""
        self.complaints.append(text)
        print("fake:", text, file=sys.stderr)

    def _exported(self, name: str) -> Callable[..., int]:
        method = getattr(self, f"_{name}")

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name in self.faults:
                return self.faults[name]
            try:
                return method(*arguments) or 0
            except Exception as error:
                self.complain(f"{name}: {type(error).__name__}: {error}")
                return self.failed

        return call


def put(address: int, ctype: Any, value: Any) -> None:
    """Write ``value`` to ``address`` as an instance of ``ctype``, a ctypes type."""
    ctype.from_address(address).value = value
