"""The tables of registered array types; :mod:`gemmhub.array_library` exports these functions.

They are separate from it so that ``import gemmhub`` loads only the tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from gemmhub._base import guard
from gemmhub._base.wording import instance
from gemmhub.errors import InputError

Deferred = Callable[[str, tuple[Any, ...], Mapping[str, Any]], Any]
"""``(call, operands, options) -> result`` of a deferring library; NotImplemented leaves the call to gemmhub.

``call`` is "matmul", "plan", "pack", "explain", "spot_check", "compare", "tune", "grouped_matmul", "explain_grouped" or
"spot_check_grouped"; ``operands`` are its positional arguments as the user passed them, ``options`` its keyword
arguments, ``out`` among them where it is not None.
"""

libraries: dict[type, Callable[[Any], Any]] = {}
"""The function that finds the direct library of an array, by type."""
deferring: dict[type, Deferred] = {}

doors: dict[str, str] = {"torch": "gemmhub._doors.torch", "jax": "gemmhub._doors.jax", "dask": "gemmhub._doors.dask"}
"""Packages for whose arrays gemmhub itself contains the deferring library, and the module that registers it.

The module is imported at the first such array: ``import gemmhub`` loads none. Imported modules leave this table.
"""


class Replay:
    """A function that runs a call of one signature again."""

    __slots__ = ("careful", "kept", "operands", "recordable", "run")

    def __init__(
        self, run: Callable[[Any, Any, Any, Mapping[str, Any]], Any], operands: tuple[str, ...], *, recordable: bool,
        careful: bool,
    ) -> None:  # fmt: skip
        self.run = run
        """``(a, b, out, options) -> result``; None, with nothing done, where the call has to be analysed."""
        self.operands = operands
        """Names of the operands that are read, beside a and b."""
        self.recordable = recordable
        """Whether autograd can record the call: it writes nothing that the caller passed."""
        self.careful = careful
        """Whether the elements of such operands may differ from their memory."""
        self.kept: dict[Any, Any] = {}
        """The data that the node of autograd's graph keeps, by all it depends on beside the call's signature."""


record: Callable[[Any, Any, Mapping[str, Any], Replay], Any] | None = None
"""``(a, b, options, replay) -> result``: a product of torch tensors that autograd records. ``_doors.torch`` sets it;
while it is None, such a product is refused.
"""


def _nothing_is_decided() -> None:
    pass


forget: Callable[[], None] = _nothing_is_decided
"""Forgets what was decided by these tables. :mod:`gemmhub.api` sets it: decisions are kept in a layer above."""


def leave_to_python(function: Any) -> None:
    """Exempt a function from compilation by a framework, where one that is loaded compiles Python (torch)."""
    if exempt is not None:
        exempt(function)


exempt: Callable[[Any], None] | None = None
"""``_doors.torch`` sets it."""


def register(kind: type, find: Callable[[Any], Any]) -> None:
    """Make arrays of type ``kind``, and of its subclasses, operands: ``find(x)`` returns the library of one of them.

    Equal libraries must be one object for each device. Registering a type again replaces its library. Raises
    InputError for what is no type, and for a library in place of a function.
    """
    _check(kind, find, "find")
    libraries[kind] = find
    forget()


def register_deferring(kind: type, take: Deferred) -> None:
    """Pass every call with an operand of type ``kind``, or of a subclass, to ``take`` before any other analysis.

    Raises InputError for what is no type, and for what cannot be called.
    """
    _check(kind, take, "take")
    deferring[kind] = take
    forget()


def _check(kind: object, function: object, name: str) -> None:
    if not isinstance(kind, type):
        raise InputError("kind", instance(type(kind)), "a class", "pass the type of the arrays")
    if name == "find" and kind.__module__.partition(".")[0] == "numpy":
        raise InputError("kind", f"NumPy's {kind.__qualname__}", "classes beside NumPy's", "register a class of yours")
    if not callable(function):
        raise InputError(name, instance(type(function)), "a function of an operand or a call")


def unregister(kind: type) -> None:
    """Remove a type from both tables. A type that is in neither is no error."""
    libraries.pop(kind, None)
    deferring.pop(kind, None)
    forget()


def direct(x: object) -> Any:
    """The registered library of ``x``; None where its type has none."""
    if libraries:
        for cls in type(x).__mro__:
            if cls in libraries:
                return libraries[cls](x)
    return None


def looked_up(arrays: Iterable[object]) -> bool:
    """Whether :mod:`gemmhub.api` may look up a call with these arrays before any other analysis.

    They are of registered direct libraries, and no deferring library may take the call.
    """
    return all(direct(x) is not None and deferring.keys().isdisjoint(type(x).__mro__) for x in arrays)


def deferred(
    call: str, operands: tuple[Any, ...], options: Mapping[str, Any], arrays: tuple[Any, ...] | None = None
) -> Any:
    """The result of the first deferring library among ``arrays`` that takes the call; NotImplemented where none does.

    ``arrays`` are all that the call reads or writes, by default its ``operands``.
    """
    if deferring or doors:
        asked: list[Deferred] = []  # a function whose answer is known
        for x in operands if arrays is None else arrays:
            classes = type(x).__mro__
            if doors:
                _open(classes)
            for cls in classes:
                take = deferring.get(cls)
                if take is not None and take not in asked:
                    result = take(call, operands, options)
                    if result is not NotImplemented:
                        return result
                    asked.append(take)
    return NotImplemented


def _open(classes: tuple[type, ...]) -> None:
    """Import gemmhub's deferring library for the package that any of these types comes from."""
    for cls in classes:
        package = cls.__module__.partition(".")[0]
        door = doors.get(package)
        if door is not None and package in sys.modules:
            with guard.neutral():  # what it imports may warn
                import_module(door).register()  # before it leaves the table: another thread may be waiting for it
            doors.pop(package, None)
