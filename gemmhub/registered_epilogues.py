"""The epilogues that a program adds to its process."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from math import inf
from typing import Any, Literal

from gemmhub import api
from gemmhub._base.guard import memory_errors
from gemmhub.epilogues import EPILOGUES, Array, Epilogue, EpilogueName, Functions
from gemmhub.errors import InputError
from gemmhub.kit import locks

_known: dict[str, Epilogue] = {}
"""The epilogue that each name was registered for in this process. Compiled kernels, traced functions and graphs hold an
epilogue by its name, so that a name cannot get another meaning before the process ends."""
_MAX_DEGREE = 4


@memory_errors
def register_epilogue(
    name: str,
    formula: Callable[[Array, Functions], Array],
    *,
    slope: float,
    evaluation: float,
    gradient: Callable[[Array, Functions], Array] | None = None,
    expression: str | None = None,
    gate: Literal["halves", "interleaved"] | None = None,
    accurate: bool = False,
    degree: int = 1,
) -> EpilogueName:
    """Add a function to those that ``activation=`` takes, in this process.

    The formula serves the built-in backend, the reference and the checks, torch, JAX and Dask. Backends that compile
    kernels compile the expression; others refuse the name. The formula, the gradient and the expression are computed at
    samples of all magnitudes, and compared with each other and with the bounds, before the name is added.

    Parameters
    ----------
    name : the value of ``activation=``: lower-case letters, digits and underscores. "none", which stands for no
        epilogue in explanations and records, is refused.
    formula : ``f(x, functions)`` of a floating array of any array library, element by element, in its dtype.
        ``functions`` has exp, tanh, erf, sigmoid, where and clip (:class:`gemmhub.epilogues.Functions`). NaN stays NaN;
        no other argument makes NaN, infinities included. Of a gated epilogue: the function of the gate.
    slope : an upper bound of abs(f'), by which the error of a sum can grow; of abs(f') / abs(x) ** (degree - 1) where
        the degree is larger.
    evaluation : the roundings, relative to abs(x), that computing f may cost: 0 where f selects or copies; about 8 with
        an exponential.
    gradient : ``f'(x, functions)``, likewise. None refuses derivatives of products that end with f.
    expression : f in C, of a float ``x`` (:mod:`gemmhub.kit.epilogue_source` lists the language). None for no kernels.
    gate : None; "halves" or "interleaved" for a gated unit (:attr:`gemmhub.epilogues.Epilogue.gate`), which no kernel
        compiles.
    accurate : whether ``evaluation`` is relative to abs(f(x)) + abs(x f'(x)): a closer bound, and the only one where
        f(0) is not 0.
    degree : the power of abs(x) that abs(f(x)) grows by: 1 to 4.

    Returns
    -------
    The name, of a type that ``activation=`` takes.

    Raises
    ------
    InputError : a name that is taken or had another meaning, or a function or a bound that a sample contradicts;
        nothing was changed.

    See Also
    --------
    unregister_epilogue : remove it.
    matmul : ends a product with it.

    Examples
    --------
    >>> relu6 = gemmhub.register_epilogue(
    ...     "relu6", lambda x, functions: functions.clip(x, 0, 6), slope=1, evaluation=0,
    ...     expression="x < 0.0f ? 0.0f : x > 6.0f ? 6.0f : x")
    >>> gemmhub.matmul(np.float32([[1, 2]]), np.float32([[3, -1], [4, 0]]), activation=relu6)
    array([[6., 0.]], dtype=float32)
    >>> gemmhub.unregister_epilogue("relu6")
    """
    if not isinstance(name, str) or re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) is None or name == "none":
        allowed = "up to 40 lower-case letters, digits and underscores, a letter first, but not 'none'"
        raise InputError("name", f"{name!r}", allowed)
    functions = {"formula": (formula, "a function (x, functions)")}
    if gradient is not None:
        functions["gradient"] = gradient, "a function (x, functions), or None"
    for argument, (function, allowed) in functions.items():
        if not callable(function):
            raise InputError(argument, f"{function!r}", allowed)
    for argument, value, low in (("slope", slope, 0.0), ("evaluation", evaluation, -1.0)):
        _check_number(argument, value, low)
    if isinstance(degree, bool) or degree not in range(1, _MAX_DEGREE + 1):
        raise InputError("degree", f"{degree!r}", f"1 to {_MAX_DEGREE}")
    if gate not in (None, "halves", "interleaved"):
        raise InputError("gate", f"{gate!r}", "None, 'halves', 'interleaved'")
    if not (expression is None or isinstance(expression, str)):
        raise InputError("expression", f"{expression!r}", "a text in C, or None")
    new = Epilogue(
        name, expression or name, formula, gradient, float(slope), float(evaluation), expression, gate,
        accurate=bool(accurate), degree=int(degree),
    )  # fmt: skip
    _check_name(new)
    with locks.deciding:
        api.import_deciding()
        from gemmhub._base import epilogue_check

        epilogue_check.check(new)
        _check_name(new)  # which another thread may have registered meanwhile
        EPILOGUES[name] = _known[name] = new
    return EpilogueName(name)


@memory_errors
def unregister_epilogue(name: str) -> None:
    """Remove an epilogue that :func:`register_epilogue` added. Decisions are made anew; later calls refuse the name.

    Plans that have run keep their kernels. The same function (the same object, not one of equal text), with the same
    bounds, may be registered again under this name; another one may not, as long as the process runs.

    Parameters
    ----------
    name : the epilogue's name.

    Raises
    ------
    InputError : no epilogue of this name is registered; the built-in ones stay.

    See Also
    --------
    register_epilogue : add an epilogue.

    Examples
    --------
    >>> gemmhub.unregister_epilogue("relu")
    Traceback (most recent call last):
    gemmhub.errors.InputError: name: 'relu'; allowed: none, as no epilogue is registered
    """
    with locks.deciding:
        api.import_deciding()
        from gemmhub._choice import decide

        registered = [x for x in _known if x in EPILOGUES]
        if not isinstance(name, str) or name not in registered:
            listed = ", ".join(registered) or "none, as no epilogue is registered"
            raise InputError("name", f"{name!r}", listed)
        del EPILOGUES[name]
    decide.forget()
    api.forget_decisions()


def _check_number(argument: str, value: Any, low: float) -> None:
    """Raise InputError for what is no finite number above ``low``."""
    try:
        right = not isinstance(value, (bool, str)) and low < float(value) < inf and float(value) >= 0
    except (TypeError, ValueError):
        right = False
    if not right:
        raise InputError(argument, f"{value!r}", "a finite number " + ("above 0" if low == 0 else "from 0"))


def _check_name(new: Epilogue) -> None:
    """Raise InputError where the name of ``new`` is taken, or stood for another function."""
    if new.name in EPILOGUES:
        mine = new.name in _known
        remedy = f"call gemmhub.unregister_epilogue({new.name!r}) first" if mine else "choose another name"
        whose = "a registered epilogue" if mine else "a built-in epilogue"
        raise InputError("name", f"{new.name!r}, which {whose} has", "a name of its own", remedy)
    before = _known.get(new.name)
    if before is not None and any(getattr(before, x.name) != getattr(new, x.name) for x in fields(new)):
        raise InputError(
            "name", f"{new.name!r}, which stood for another function in this process",
            "the same functions, expression and bounds under this name",
            "choose another name: kernels and traced functions that were compiled for the name may be in use",
        )  # fmt: skip


__all__ = ["register_epilogue", "unregister_epilogue"]
