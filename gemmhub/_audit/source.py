"""The source text of a function, for a script that calls it in a process of its own."""

from __future__ import annotations

import builtins
import dis
import inspect
import keyword
import linecache
import math
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

import numpy as np

ASSIGNED = frozenset({
    "a", "b", "c", "bias", "out", "alpha", "rng", "place", "x", "kept", "want", "got", "size", "bound", "stated",
    "once", "first", "part", "again",
})  # fmt: skip
"""Names that a script assigns. A function that is named so, or reads such a global, gets others' values there."""
_IMPORTED = ("np", "ml_dtypes")
"""Names that a script imports itself, where it needs them."""
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_MISSING = object()


def identifier(function: Callable[..., Any]) -> str:
    """The name of ``function`` in a script: its own, or "multiply" where that is none or is assigned there."""
    own = str(getattr(function, "__name__", ""))
    usable = own.isidentifier() and not keyword.iskeyword(own) and own not in ASSIGNED
    return own if usable else "multiply"


def source(function: Callable[..., Any]) -> str | None:
    """The statements that define ``function`` in another process, under its :func:`identifier`.

    They are its source with the modules and numbers that it reads, or else its import. None where neither defines it:
    a lambda, an object, a function of the main program that reads other globals.
    """
    text = _source(function) if inspect.isfunction(function) else None
    return _import(function) if text is None else text


def _source(function: Any) -> str | None:
    """The source of a Python function and what it reads; None where that does not stand alone."""
    linecache.checkcache()
    try:
        text = textwrap.dedent(inspect.getsource(function))
        code = compile(text, "<source>", "exec", dont_inherit=True)
    except (OSError, TypeError, SyntaxError):
        return None
    # getsource() returns the source of the function that a decorator has wrapped
    if not text.startswith(f"def {identifier(function)}(") or hasattr(function, "__wrapped__"):
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    values = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    lines = []
    for name in sorted(set(_read(code)) - {function.__name__}):
        value = values.get(name, _MISSING)
        if value is _MISSING and hasattr(builtins, name):
            continue
        if name in _IMPORTED and value is sys.modules.get("numpy" if name == "np" else name):
            continue
        line = _statement(name, value)
        if line is None or name in (*ASSIGNED, *_IMPORTED):
            return None
        lines.append(f"{line}\n")
    return "".join(lines) + text


def _read(code: CodeType) -> Iterator[str]:
    """Yield the global names that a code object, or one within it, reads."""
    yield from (str(step.argval) for step in dis.get_instructions(code) if step.opname in _LOADS)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _read(constant)


def _statement(name: str, value: Any) -> str | None:
    """The statement that makes a global: an import, or a number. A text may be private."""
    if isinstance(value, ModuleType):
        module = value.__name__
        return None if module == "__main__" else f"import {module}" if module == name else f"import {module} as {name}"
    number = value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value))
    return f"{name} = {value!r}" if number else None


def _import(function: Any) -> str | None:
    """The import of a function from its module; None where that has another value of this name."""
    name = identifier(function)
    module = "numpy" if isinstance(function, np.ufunc) else str(getattr(function, "__module__", "__main__"))
    found = getattr(sys.modules.get(module), name, None)
    return f"from {module} import {name}" if found is function and module != "__main__" else None
