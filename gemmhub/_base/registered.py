"""The tables of registered array types; :mod:`gemmhub.array_library` exports these functions.

They are separate from it so that ``import gemmhub`` loads only the tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from gemmhub._base import guard

Deferred = Callable[[str, tuple[Any, ...], Mapping[str, Any]], Any]
"""``(call, operands, options) -> result`` of a deferring library; NotImplemented leaves the call to gemmhub.

``call`` is "matmul", "plan", "pack", "explain", "spot_check", "compare" or "tune"; ``operands`` are its positional
arguments as the user passed them, ``options`` its keyword arguments, ``out`` among them where it is not None.
"""

_direct: dict[type, Callable[[Any], Any]] = {}
deferring: dict[type, Deferred] = {}

doors: dict[str, str] = {"torch": "gemmhub._doors.torch", "jax": "gemmhub._doors.jax", "dask": "gemmhub._doors.dask"}
"""Packages for whose arrays gemmhub itself contains the deferring library, and the module that registers it.

The module is imported at the first such array: ``import gemmhub`` loads none. Imported modules leave this table.
"""

record: Callable[[Any, Any, Mapping[str, Any], Callable[..., Any]], Any] | None = None
"""``(a, b, options, replay) -> result``: a product of torch tensors that autograd records, and that
``replay(a, b, None, options, True, False)`` computes. ``_doors.torch`` sets it;
while it is None, such a product is refused."""


def register(kind: type, find: Callable[[Any], Any]) -> None:
    """Make arrays of type ``kind``, and of its subclasses, operands: ``find(x)`` returns the library of one of them.

    Equal libraries must be one object for each device. Registering a type again replaces its library.
    """
    _direct[kind] = find


def register_deferring(kind: type, take: Deferred) -> None:
    """Pass every call with an operand of type ``kind``, or of a subclass, to ``take`` before any other analysis."""
    deferring[kind] = take


def unregister(kind: type) -> None:
    """Remove a type from both tables. A type that is in neither is no error."""
    _direct.pop(kind, None)
    deferring.pop(kind, None)


def direct(x: object) -> Any:
    """The registered library of ``x``; None where its type has none."""
    if _direct:
        for kind in type(x).__mro__:
            if kind in _direct:
                return _direct[kind](x)
    return None


def deferred(
    call: str, operands: tuple[Any, ...], options: Mapping[str, Any], arrays: tuple[Any, ...] | None = None
) -> Any:
    """The result of the first deferring library among ``arrays`` that takes the call; NotImplemented where none does.

    ``arrays`` are all that the call reads or writes, by default its ``operands``.
    """
    if deferring or doors:
        for x in operands if arrays is None else arrays:
            kinds = type(x).__mro__
            if doors:
                _open(kinds)
            for kind in kinds:
                if kind in deferring:
                    result = deferring[kind](call, operands, options)
                    if result is not NotImplemented:
                        return result
    return NotImplemented


def _open(kinds: tuple[type, ...]) -> None:
    """Import gemmhub's deferring library for the package that any of these types comes from."""
    for kind in kinds:
        package = kind.__module__.partition(".")[0]
        door = doors.get(package)
        if door is not None and package in sys.modules:
            with guard.neutral():  # what it imports may warn
                import_module(door).register()  # before it leaves the table: another thread may be waiting for it
            doors.pop(package, None)
