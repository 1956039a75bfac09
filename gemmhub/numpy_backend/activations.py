"""Activation functions in place, on a tile of a result in the dtype of its epilogue.

A function is computed by the formula of its epilogue, in pieces whose temporaries stay in the cache. Four formulas have
forms that take fewer passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from gemmhub.dtypes import DType
from gemmhub.epilogues import EPILOGUES, NUMPY, Epilogue

Array = Any
Apply = Callable[[Array], Array]
"""Replaces the elements of an array by the function's values, and returns it."""
Number = Callable[[float], Array]
"""A constant as an array without dimensions: ufuncs take it in half the time of a Python float."""


class InPlace(NamedTuple):
    """A function in place."""

    apply: Apply
    quiet: bool
    """Whether it raises no floating-point flag for finite arguments but that of underflow, which NumPy ignores."""


_PIECE = 2**14
"""Elements that a function is applied to at a time."""
_LOW = -1000.0
"""Below this argument each function here is 0 to working precision. Such arguments are replaced, as minus infinity
times 0 would be NaN."""
_HIGH = 50.0
"""Beyond this argument each function here is linear to working precision; its cube is finite."""


def activate(name: str, tile: Array) -> None:
    """Replace a tile (..., rows, columns) by the values of a function that is not gated, or of a gate's function."""
    apply = in_place(EPILOGUES[name], tile.dtype).apply
    for piece in _pieces(tile):
        apply(piece)


@lru_cache(maxsize=64)
def in_place(epilogue: Epilogue, dtype: DType) -> InPlace:
    """The fastest form of the function of an epilogue (of a gated one: of its gate) for arrays of this dtype."""
    form = _FORMS.get((epilogue.formula, dtype.char)) or _FORMS.get((epilogue.formula, None))
    if form is not None:
        return InPlace(form(lambda value: np.array(value, dtype)), form is not _silu)

    def by_formula(x: Array) -> Array:
        x[...] = epilogue.formula(x, NUMPY)
        return x

    return InPlace(by_formula, quiet=False)


def _pieces(tile: Array) -> Iterator[Array]:
    """Views of all of a tile, each of at most :data:`_PIECE` elements."""
    if tile.flags.c_contiguous:
        flat = tile.reshape(-1)
        for start in range(0, flat.size, _PIECE):
            yield flat[start : start + _PIECE]
        return
    rows, cols = tile.shape[-2:]
    height, width = max(1, _PIECE // max(1, cols)), min(cols, _PIECE) or 1
    for outer in np.ndindex(*tile.shape[:-2]):
        for row in range(0, rows, height):
            for col in range(0, cols, width):
                yield tile[(*outer, slice(row, row + height), slice(col, col + width))]


def _relu(number: Number) -> Apply:
    zero = number(0)

    def apply(x: Array) -> Array:
        return np.maximum(x, zero, out=x)

    return apply


def _silu(number: Number) -> Apply:
    """Compute x / (1 + exp(-x))."""
    low, one = number(_LOW), number(1)

    def apply(x: Array) -> Array:
        np.maximum(x, low, out=x)
        other = np.negative(x)
        np.exp(other, other)
        np.add(other, one, other)
        return np.divide(x, other, x)

    return apply


def _gelu_tanh(number: Number) -> Apply:
    """Compute x (1 + tanh(sqrt(2 / pi) x (1 + 0.044715 x^2))) / 2."""
    low, high, one, half = map(number, (_LOW, _HIGH, 1, 0.5))
    scale, cubic = number(sqrt(2 / pi)), number(sqrt(2 / pi) * 0.044715)

    def apply(x: Array) -> Array:
        np.maximum(x, low, out=x)
        near = np.minimum(x, high)
        other = np.multiply(near, near)
        np.multiply(other, cubic, other)
        np.add(other, scale, other)
        np.multiply(other, near, other)
        np.tanh(other, other)
        np.add(other, one, other)
        np.multiply(other, half, other)
        return np.multiply(x, other, x)

    return apply


def _gelu(number: Number) -> Apply:
    """Compute x times the normal distribution function, whose tail beyond abs(x) is exp(-x^2 / 2) times a polynomial of
    t = 1 / (1 + p abs(x)).

    The approximation is 7.1.26 of Abramowitz and Stegun, Handbook of Mathematical Functions (1964): its error is at
    most 0.75e-7, 1.3 roundings of float32.
    """
    low, far, one, half, decay = map(number, (_LOW, 12.0, 1, 0.5, -0.5))
    p = number(0.3275911 * sqrt(0.5))
    first, *rest = (number(0.5 * x) for x in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))

    def apply(x: Array) -> Array:
        np.maximum(x, low, out=x)
        size = np.abs(x)
        np.minimum(size, far, out=size)  # the tail beyond is below all roundings, and its exponential a normal number
        t = np.multiply(size, p)
        np.add(t, one, t)
        np.reciprocal(t, t)
        tail = np.multiply(t, first)
        for factor in rest:
            np.add(tail, factor, tail)
            np.multiply(tail, t, tail)
        np.multiply(size, size, size)
        np.multiply(size, decay, size)
        np.exp(size, size)
        np.multiply(tail, size, tail)
        np.subtract(half, tail, tail)
        np.copysign(tail, x, tail)
        np.add(tail, half, tail)
        return np.multiply(x, tail, x)

    return apply


_FORMS: dict[tuple[Any, str | None], Callable[[Number], Apply]] = {
    (EPILOGUES["relu"].formula, None): _relu,
    (EPILOGUES["silu"].formula, None): _silu,
    (EPILOGUES["gelu_tanh"].formula, None): _gelu_tanh,
    (EPILOGUES["gelu"].formula, "f"): _gelu,
}
"""Forms by formula, so that a gate has that of its function, and by the dtype's character, None for any."""
