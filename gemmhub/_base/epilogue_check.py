"""Checks of an epilogue that a program registers: its functions and its bounds, at samples of all magnitudes.

The samples are the same in every process. They find a claim that is wrong over a range of arguments, not one that is
wrong at a few of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmhub._base.c_expression import ExpressionError, evaluate
from gemmhub.epilogues import NUMPY, Epilogue
from gemmhub.errors import InputError

Array = Any

_SINGLE = 2.0**-24
"""The unit roundoff of float32."""
_DOUBLE = 2.0**-53
_TINY = 2.0**-126
"""The smallest normal number of float32."""
_KINKS = 8
"""The number of samples at which a gradient may differ from difference quotients: those that are kinks of f."""


def _samples() -> Array:
    """Return arguments that are exact in float32, in ascending order: of all magnitudes, and densely near 0."""
    sizes = np.geomspace(1e-30, 1e30, 1201)
    dense = np.linspace(-30.0, 30.0, 6007) + 3.7e-4
    wide = np.concatenate([-sizes, dense, [0.0], sizes])
    return np.unique(wide.astype(np.float32).astype(np.float64))


def check(epilogue: Epilogue) -> None:
    """Raise InputError, which names an argument of :func:`gemmhub.register_epilogue`, for a claim that is wrong."""
    x = _samples()
    with np.errstate(all="ignore"):
        for dtype in (np.float32, np.float64):
            for argument, function in (("formula", epilogue.formula), ("gradient", epilogue.gradient)):
                if function is not None:
                    _check_elements(argument, function, x.astype(dtype))
                    _check_numbers(argument, function, x.astype(dtype))
        _check_slope(epilogue, x)
        if epilogue.gradient is not None:
            _check_gradient(epilogue, x)
            _check_steepness(epilogue, x, epilogue.gradient(x, NUMPY))
        single = epilogue.formula(x.astype(np.float32), NUMPY)
        _check_error(epilogue, "evaluation", x, single, f"{epilogue.evaluation:g} roundings in float32")
        if epilogue.expression is not None:
            _check_expression(epilogue, x)


def _check_elements(argument: str, function: Callable[..., Array], x: Array) -> None:
    """Check the shape and the dtype that a function makes, and that each element depends on its own argument."""
    for given in (x, x[:6].reshape(2, 3)):
        value = _called(argument, function, given)
        if not isinstance(value, (np.ndarray, np.generic)) or value.shape != given.shape or value.dtype != given.dtype:
            kind = f"{value.dtype} of shape {value.shape}" if hasattr(value, "dtype") else type(value).__name__
            raise InputError(
                argument, f"a function that makes {kind} of {given.dtype} of shape {given.shape}",
                "a function of each element, in the dtype of its argument",
            )  # fmt: skip
    values = _called(argument, function, x)
    some = slice(x.size // 3 + 1, x.size // 2)
    alone, among = _called(argument, function, x[some][::-1])[::-1], values[some]
    close = np.isnan(among) | (
        np.abs(alone - among) <= 64 * np.finfo(x.dtype).eps * np.maximum(np.abs(x[some]), np.abs(among))
    )
    if not np.all(close | (alone == among)):
        raise InputError(argument, "a function whose values depend on other elements", "a function of each element")


def _check_numbers(argument: str, function: Callable[..., Array], x: Array) -> None:
    """Check that NaN makes NaN, and that neither a finite nor an infinite argument does."""
    ends = np.array([np.nan, -np.inf, np.inf], x.dtype)
    values, limits = _called(argument, function, x), _called(argument, function, ends)
    if not np.isnan(limits[0]):
        raise InputError(
            argument, f"a function that makes {limits[0]:g} of NaN", "a function that keeps NaN",
            "functions.clip and arithmetic keep it; choose by x < 0, so that NaN takes the branch of x",
        )  # fmt: skip
    bad = np.flatnonzero(np.isnan(values))
    if bad.size or np.isnan(limits[1:]).any():
        at = x[bad[0]] if bad.size else ends[1:][np.isnan(limits[1:])][0]
        raise InputError(
            argument, f"a function that makes NaN of {at:g} in {x.dtype}", "a number or an infinity",
            "limit the argument by functions.clip where it overflows: infinity times 0 is NaN",
        )  # fmt: skip


def _called(argument: str, function: Callable[..., Array], x: Array) -> Array:
    """Return ``function(x, functions)``; InputError where it raises, as for an argument that it would overwrite."""
    x = x.copy()
    x.flags.writeable = False
    try:
        return function(x, NUMPY)
    except MemoryError:
        raise
    except Exception as error:
        raise InputError(
            argument, f"a function that raises {type(error).__name__} for {x.dtype}: {error}",
            "a function (x, functions) that returns a new array",
            "functions has exp, tanh, erf, sigmoid, where and clip",
        ) from error  # fmt: skip


def _steepest(epilogue: Epilogue, size: Array) -> Array:
    """Return the largest derivative that is claimed for arguments up to ``size``."""
    return epilogue.slope * size ** (epilogue.degree - 1)


def _own_error(epilogue: Epilogue, x: Array, roundoff: float, underflow: float) -> Array:
    """Return how far a value may be from that of the exact function, by what is claimed."""
    return epilogue.bound((x,), (np.zeros_like(x),), epilogue.evaluation * roundoff, 0.0, underflow)


def _check_slope(epilogue: Epilogue, x: Array) -> None:
    """Compare differences of neighbouring values with the slope."""
    values, size = epilogue.formula(x, NUMPY), np.abs(x)
    error = _own_error(epilogue, x, _DOUBLE, 0.0) + _DOUBLE * (size + 4 * np.abs(values))
    limit = _steepest(epilogue, np.maximum(size[1:], size[:-1])) * np.diff(x) * (1 + 1e-9)
    steep = np.abs(np.diff(values)) > limit + error[1:] + error[:-1]
    if steep.any():
        at = int(np.argmax(np.where(steep, np.abs(np.diff(values)) / limit, 0.0)))
        observed = abs(values[at + 1] - values[at]) / (limit[at] / epilogue.slope)
        raise _refused_slope(epilogue, observed, x[at])


def _check_steepness(epilogue: Epilogue, x: Array, gradient: Array) -> None:
    """Compare the gradient, which is known to be that of the formula, with the slope."""
    slopes, limit = np.abs(gradient), _steepest(epilogue, np.abs(x))
    steep = slopes > limit * (1 + 1e-9) + 1e-14
    if steep.any():
        at = int(np.argmax(np.where(steep, slopes - limit, -1.0)))
        raise _refused_slope(epilogue, slopes[at] / abs(x[at]) ** (epilogue.degree - 1), x[at])


def _refused_slope(epilogue: Epilogue, observed: float, x: float) -> InputError:
    power = "" if epilogue.degree == 1 else f" times abs(x) to the power {epilogue.degree - 1}"
    return InputError(
        "slope", f"{epilogue.slope:g}, where {epilogue.name} has a slope of {observed:.6g}{power} near x = {x:.6g}",
        f"an upper bound of abs(f'){power}",
        "a function that grows faster than its bound needs a larger slope, or a larger degree=",
    )  # fmt: skip


def _check_gradient(epilogue: Epilogue, x: Array) -> None:
    """Compare the gradient with difference quotients of the formula."""
    assert epilogue.gradient is not None
    step = 1e-5 * np.maximum(np.abs(x), 1e-30)
    low, high = x - step, x + step
    quotient = (epilogue.formula(high, NUMPY) - epilogue.formula(low, NUMPY)) / (high - low)
    rounded = 2 * (_own_error(epilogue, high, _DOUBLE, 0.0) + _DOUBLE * np.abs(x)) / step
    wrong = np.abs(epilogue.gradient(x, NUMPY) - quotient) > 1e-3 * _steepest(epilogue, np.abs(x)) + 2 * rounded
    if np.sum(wrong) > _KINKS:
        at = int(np.flatnonzero(wrong)[np.argmin(np.abs(np.abs(x[wrong]) - 1))])
        raise InputError(
            "gradient", f"{float(epilogue.gradient(x[at : at + 1], NUMPY)[0]):.6g} for x = {x[at]:.6g}, where the "
            f"formula has a slope of {quotient[at]:.6g}",
            "the derivative of the formula, or None",
        )  # fmt: skip


def _check_error(epilogue: Epilogue, argument: str, x: Array, computed: Array, claim: str) -> None:
    """Compare values that were computed in float32 with those of the formula in float64."""
    exact = epilogue.formula(x, NUMPY)
    error = np.abs(computed.astype(np.float64) - exact)
    wrong = ~(error <= _own_error(epilogue, x, _SINGLE, _TINY))
    wrong &= np.abs(exact) < np.finfo(np.float32).max / 2  # larger ones may overflow
    if wrong.any():
        at = int(np.flatnonzero(wrong)[np.argmin(np.abs(np.abs(x[wrong]) - 1))])
        of = "abs(f(x)) + abs(x f'(x))" if epilogue.accurate else "abs(x)"
        raise InputError(
            argument, f"{claim}: {computed[at]:.9g} for x = {x[at]:.6g}, where f is {exact[at]:.9g}",
            f"values within {epilogue.evaluation:g} * 2^-24 of {of}",
            _closer(epilogue),
        )  # fmt: skip


def _closer(epilogue: Epilogue) -> str:
    """Return what brings values within the bound."""
    if epilogue.accurate:
        return "pass a larger evaluation="
    if epilogue.degree > 1:
        return "pass accurate=True, which a degree above 1 needs: f(x) outgrows roundings of x"
    return "pass a larger evaluation=, or accurate=True where f(0) is not 0"


def _check_expression(epilogue: Epilogue, x: Array) -> None:
    """Compare the expression, computed in float32, with the formula: at the samples, NaN and the infinities."""
    text = epilogue.expression
    assert text is not None
    ends = np.array([np.nan, -np.inf, np.inf])
    try:
        values, limits = evaluate(text, x.astype(np.float32)), evaluate(text, ends.astype(np.float32))
    except ExpressionError as error:
        raise InputError(
            "expression", f"{text!r}: {error}", "an expression of a float x in C, or None",
        ) from None  # fmt: skip
    _check_error(epilogue, "expression", x, values, repr(text))
    expected = epilogue.formula(ends, NUMPY)
    bound = _own_error(epilogue, ends, _SINGLE, _TINY)
    same = (limits == expected) | (np.abs(limits - expected) <= bound) | (np.isnan(limits) & np.isnan(expected))
    if not same.all():
        at = int(np.argmin(same))
        raise InputError(
            "expression", f"{text!r}: {limits[at]:g} for x = {ends[at]:g}", f"{expected[at]:g}, as the formula has",
            "fminf and fmaxf drop NaN, and infinity times 0 makes it: choose the limit by x < ... ? ... : ...",
        )  # fmt: skip
