"""Inner products in double precision, for :mod:`gemmhub.accuracy`: values, sizes, and possible overflow.

The inner dimension is taken in blocks, so that long operands are never widened at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

Array = Any


class Model(Protocol):
    """The constants of an arithmetic that are used here; see :class:`gemmhub.accuracy.ErrorModel`."""

    @property
    def input_underflow(self) -> float: ...

    @property
    def input_largest(self) -> float: ...

    def reading(self, k: int) -> tuple[float, float]: ...


_BLOCK = 65536
"""Length of a block of the inner dimension, widened at a time."""
TILE = 2**21
"""Elements of an operand that are widened at a time (16 MiB of float64)."""


def widen(x: Array) -> Array:
    """``x`` in float64 (complex128); exact for every supported dtype but 64-bit integers, which round."""
    return x.astype(np.complex128 if np.dtype(x.dtype).kind == "c" else np.float64)


def tiles(x: Array, dtype: Any = None) -> Iterator[tuple[slice, slice, Array]]:
    """The tiles of a matrix: (rows, columns, the tile in double precision or in ``dtype``)."""
    for here in spans(*x.shape):
        yield (*here, widen(x[here]) if dtype is None else x[here].astype(dtype, order="C"))


def spans(rows: int, cols: int) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of the tiles of a matrix."""
    width = max(1, min(cols, 65536))
    height = max(1, TILE // width)
    for top in range(0, rows, height):
        for left in range(0, cols, width):
            yield slice(top, min(rows, top + height)), slice(left, min(cols, left + width))


def _blocks(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """The operands in double precision, in blocks of the inner dimension."""
    for start in range(0, max(1, a.shape[-1]), _BLOCK):
        span = slice(start, start + _BLOCK)
        yield widen(a[..., span]), widen(b[..., span, :])


def products(a: Array, b: Array, model: Model, k: int) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Six matrices of the product's shape. The operands may be a part of an inner dimension of length ``k``.

    They are A B; |A| |B| of the finite elements; the loss through underflowing operands; which elements have only
    finite operands; which have an operand that may become infinite when rounded; and where an infinity is multiplied
    by a subnormal that may be read as 0.
    """
    value = size = lost = 0.0
    clean: Array = True
    risky: Array = np.bool_(False)
    loose: Array = np.bool_(False)
    for wide_a, wide_b in _blocks(a, b):
        good_a, good_b = np.isfinite(wide_a), np.isfinite(wide_b)
        value = value + np.matmul(wide_a, wide_b)
        abs_a = np.where(good_a, np.abs(wide_a), 0.0)
        abs_b = np.where(good_b, np.abs(wide_b), 0.0)
        size = size + np.matmul(abs_a, abs_b)
        clean = clean & (good_a.all(-1)[..., :, None] & good_b.all(-2)[..., None, :])
        one, both = model.reading(k)
        if one:
            sums = abs_a.sum(-1)[..., :, None] + abs_b.sum(-2)[..., None, :]
            lost = lost + one * sums + wide_a.shape[-1] * both
        if model.input_underflow:
            far_a: Array = abs_a.max(-1, initial=0.0) > model.input_largest
            far_b: Array = abs_b.max(-2, initial=0.0) > model.input_largest
            risky = risky | far_a[..., :, None] | far_b[..., None, :]
            if not (good_a.all() and good_b.all()):
                infinite, small = ([test(x).astype(np.float64) for x in (wide_a, wide_b)] for test in (np.isinf, _tiny))
                loose = loose | (np.matmul(infinite[0], small[1]) + np.matmul(small[0], infinite[1]) > 0.0)
    return value, size, lost, clean, risky, loose


def _tiny(x: Array) -> Array:
    """Which numbers bfloat16 and rounding instructions may read as 0: the subnormal ones of float32."""
    size = np.abs(x)
    return (size > 0.0) & (size < 2.0**-126)


def beyond_float64(a: Array, b: Array, relative: float) -> tuple[Array, Array]:
    """A B, and its bound ``relative`` S, of elements whose S exceeds float64.

    They are computed from operands that are scaled by 2**-600; the underflow that this causes is below 2**-400 of such
    an S. A value that is certainly beyond float64 is infinite, with a bound of 0; one that may be is the largest
    number, so that errors come out too small rather than too large. A bound beyond float64 is infinite: any result then
    passes.
    """
    scale = 2.0**-600
    total: Array = 0.0
    sizes: Array = 0.0
    for wide_a, wide_b in _blocks(a, b):
        left, right = (_scaled(x, scale) for x in (wide_a, wide_b))
        total = total + np.matmul(left, right)
        left, right = (np.where(np.isfinite(x), np.abs(x), 0.0) for x in (left, right))
        sizes = sizes + np.matmul(left, right)
    largest = np.finfo(np.float64).max
    error = relative * sizes
    component = np.maximum(np.abs(total.real), np.abs(total.imag))
    certain = component - error > largest * scale * scale
    parts = np.ascontiguousarray(total).view(np.float64)  # scaling an infinite complex number makes NaN
    far = parts / scale / scale
    clipped = np.where(np.isfinite(parts), np.clip(far, -largest, largest), far)
    far, clipped = (x.view(np.asarray(total).dtype) for x in (far, clipped))
    return np.where(certain, far, clipped), np.where(certain, 0.0, error / scale / scale)


def _scaled(x: Array, scale: float) -> Array:
    """``x`` times ``scale``; real numbers never underflow to 0, because 0 times infinity is NaN."""
    if x.dtype.kind == "c":
        return x * scale
    return np.where(x == 0.0, x, np.copysign(np.maximum(np.abs(x) * scale, 2.0**-1000), x))


def sides(a: Array, b: Array, largest: float) -> tuple[Array, Array]:
    """The sums of the positive terms of A B, and of the negative ones: no partial sum exceeds either by more than
    rounding errors. Operands beyond ``largest`` count as infinite: rounding may make them so.
    """
    positive = negative = 0.0
    for wide_a, wide_b in _blocks(a, b):
        parts = []
        for x in (wide_a, wide_b):
            x = np.where(np.abs(x) > largest, np.copysign(2.0**900, x), np.where(np.isfinite(x), x, 0.0))
            parts += [np.maximum(x, 0.0), np.maximum(-x, 0.0)]
        up_a, down_a, up_b, down_b = parts
        positive = positive + (np.matmul(up_a, up_b) + np.matmul(down_a, down_b))
        negative = negative + (np.matmul(up_a, down_b) + np.matmul(down_a, up_b))
    return positive, negative


class Factors:
    """The scales of a product, or of a part of k, as one factor for each element of the result."""

    def __init__(self, scales: Iterable[Array]) -> None:
        self.count = 0
        self.value: Array = 1.0
        self.reach: Array = 1.0
        """The product of those above 1: no product of some of them is larger."""
        self.finite: Array = np.True_
        for scale in scales:
            finite = np.isfinite(scale)
            self.count += 1
            self.value, self.finite = self.value * scale, self.finite & finite
            self.reach = self.reach * np.where(finite, np.maximum(np.abs(scale), 1.0), 1.0)
        self.size: Array = np.where(self.finite, np.abs(self.value), 0.0) if self.count else 1.0

    def grown(self, size: Array, alpha: float) -> Array:
        """Upper bound of the factor of an error of one partial product, from abs(alpha) and the sums of sizes."""
        return max(1.0, alpha) * self.reach * (np.maximum(size, 1.0) if self.count else 1.0)

    def extreme(self, alpha: float, smallest: float, largest: float) -> Array:
        """Where the factors alone overflow or underflow: times an infinite sum that may be NaN."""
        alone = self.size * alpha
        return (alone < smallest) | (alone > largest) if self.count else np.False_


def scaled(
    a: Array, b: Array, scale_a: Array | None, scale_b: Array | None, block: int
) -> list[tuple[Array, Array, Factors]]:
    """The operands with their factors: entire, or each ``block`` of k where blocks have their own.

    Scales have the shapes that the public call takes: one dimension is the rows of a, or the columns of b.
    """
    k, n = b.shape[-2:]
    rows = [] if scale_a is None else [widen(scale_a if scale_a.ndim > 1 else scale_a.reshape(-1, 1))]
    columns = [] if scale_b is None else [widen(scale_b if scale_b.ndim > 1 else scale_b.reshape(1, -1))]
    columns = [x if x.shape[-1] in (1, n) else np.repeat(x, block, axis=-1)[..., :n] for x in columns]
    if all(x.shape[-1] == 1 for x in rows) and all(x.shape[-2] == 1 for x in columns):
        return [(a, b, Factors(rows + columns))]
    parts = []
    for index, start in enumerate(range(0, k, block)):
        here, at = slice(start, start + block), slice(index, index + 1)
        factors = [x[..., at] if x.shape[-1] > 1 else x for x in rows]
        factors += [x[..., at, :] if x.shape[-2] > 1 else x for x in columns]
        parts.append((a[..., here], b[..., here, :], Factors(factors)))
    return parts
