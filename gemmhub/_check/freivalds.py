"""Freivalds' check: random sums of every row that a wrong product violates, in O(n^2) operations.

Freivalds (Probabilistic machines can use less running time, IFIP 1977) checks ``C = A B`` by comparing C x
with A (B x) for a random x. For floating products the columns fall at random into groups, each with its own random
signs, so that one pass over C, A and B gives a sum for every row and group, and a wrong element competes with the
rounding errors of its own group only. docs/accuracy.md derives the thresholds. For integer products there is no
rounding, and x is a vector of random bits: :func:`exact_sketch`.

Operands are widened tile by tile; other memory is a few arrays of (m + k) x 64 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Any

import numpy as np

from gemmhub._base.inner_products import tiles
from gemmhub._check.nonfinite import Cells, Suspects
from gemmhub.accuracy import ErrorModel, gamma

Array = Any

GROUPS = 64
SMALLEST_GROUP = 8
"""Least number of columns of a group: with fewer, the sums would take more memory than C."""
MISS = 1e-6
"""Probability that a single error of ``detects`` times the bound is missed."""
_STEPS = 1024
_WEIGHTS = np.arange(785, 1024, 2)
"""Random weights: distinct, so that exchanged columns do not cancel."""
VECTORS = 32
"""Number of sums of each row of an integer product: a wrong row is missed with a probability of at most 2**-VECTORS."""
_CERTAIN = 64
"""The most elements, of those that are certainly wrong, that are recomputed."""
_HUGE = 2.0**480
"""Limit of scaled elements of C: larger ones are suspicious without a sum; smaller ones have finite squares."""


@dataclass(frozen=True)
class Groups:
    """A random partition of the columns, and their random weights (integers, in units of 1/1024)."""

    member: Array
    weight: Array
    count: int

    @classmethod
    def draw(cls, n: int, rng: np.random.Generator) -> Groups:
        count = max(1, min(GROUPS, n // SMALLEST_GROUP))
        member = np.empty(n, np.intp)
        member[rng.permutation(n)] = np.arange(n) % count
        return cls(member, rng.choice(_WEIGHTS, n) * rng.choice(np.array([-1, 1]), n), count)

    @property
    def sizes(self) -> Array:
        return np.bincount(self.member, minlength=self.count)

    def spread(self, values: Array, cols: slice) -> Array:
        """The matrix (len(cols), count) with each column's value in the column of its group."""
        member = self.member[cols]
        matrix = np.zeros((len(member), self.count), values.dtype)
        matrix[np.arange(len(member)), member] = values[cols]
        return matrix


@dataclass(frozen=True)
class Side:
    """Facts about the rows of a, or the columns of b. Elements that are not finite count as 0."""

    finite: Array
    """Mask of the rows (columns) whose elements are all finite."""
    norm: Array
    """2-norm of each."""
    mean: Array
    """Mean absolute value of each (of real and imaginary part together)."""
    largest: float
    """Largest absolute value of all (of a real or imaginary part)."""

    @classmethod
    def survey(cls, x: Array, axis: int) -> Side:
        length, count = x.shape[1 - axis], max(1, x.shape[axis])
        finite, mean, squares, largest = np.ones(length, bool), np.zeros(length), np.zeros(length), 0.0
        for rows, cols, tile in tiles(x):
            here = cols if axis == 0 else rows
            good = np.isfinite(tile)
            finite[here] &= good.all(axis)
            tile = tile if good.all() else np.where(good, tile, 0.0)
            for part in (tile.real, tile.imag) if tile.dtype.kind == "c" else (tile,):
                mean[here] += (np.abs(part) / count).sum(axis)
                squares[here] += np.square(part).sum(axis)
                largest = max(largest, float(np.abs(part).max(initial=0.0)))
        return cls(finite, np.sqrt(squares), mean, largest)

    def scale(self, floor: float) -> Array:
        """Factors that scale the means to 1, and means below ``floor`` to less; 0 where not all elements are finite."""
        mean = np.maximum(self.mean, floor)
        factor = np.clip(1.0 / np.where(mean > 0.0, mean, 1.0), 2.0**-1000, 2.0**1000)
        return np.where(self.finite, factor, 0.0)


@dataclass(frozen=True)
class Sketch:
    """The evaluated sums of one floating product."""

    groups: Groups
    ratio: Array
    """(m, groups): |sum| over its threshold; of a correct product it exceeds 1 with negligible probability."""
    tainted: Array
    """(m, groups): mask of the sums without information, because an element of the group overflowed."""
    detects: float
    """Size of a single error, over its group's root mean square bound, that is missed with probability ``MISS``; inf
    where a bound is beyond float64.
    """
    suspects: tuple[Array, ...]
    """Elements (i, j) to recompute that are not finite, or should not be."""
    unexamined: int
    """Number of further such elements."""


def sketch(a: Array, b: Array, c: Array, model: ErrorModel, products: int, rng: np.random.Generator) -> Sketch:
    """Evaluate the sums of ``c - a @ b`` for a floating product, one of ``products`` in the check."""
    (m, k), n = a.shape, b.shape[1]
    groups = Groups.draw(n, rng)
    with np.errstate(all="ignore"):
        left, right = Side.survey(a, 1), Side.survey(b, 0)
        relative, u = model.relative(k), model.output
        # Scaled so that the bounds of all columns are alike; below the floor underflow is all of the bound.
        row_scale = left.scale(0.0)
        steepness = relative * float(left.mean.max(initial=0.0))
        col_scale = right.scale(k * model.underflow / steepness if steepness > 0.0 else 0.0)
        ones, weight = np.ones(n), groups.weight / _STEPS
        kind = np.complex128 if model.complex else np.float64
        shape = (m, groups.count)
        # B: weighted sums and 2-norms over each group, per row.
        sums, norms = np.zeros((k, groups.count), kind), np.zeros((k, groups.count))
        for rows, cols, tile in tiles(b):
            tile = np.where(right.finite[cols], tile, 0.0) * col_scale[cols]
            sums[rows] += tile @ groups.spread(weight, cols)
            norms[rows] += _squares(tile) @ groups.spread(ones, cols)
        norms = np.sqrt(norms)
        # A: the product of the sums, and (Minkowski) the 2-norm of |A| |B| over each group.
        residual, size, row_sums = np.zeros(shape, kind), np.zeros(shape), np.zeros(m)
        for rows, cols, tile in tiles(a):
            tile = np.where(left.finite[rows, None], tile, 0.0) * row_scale[rows, None]
            residual[rows] -= tile @ sums[cols]
            absolute = np.abs(tile)
            size[rows] += absolute @ norms[cols]
            row_sums[rows] += absolute.sum(1)
        # C: its own sums, and the elements that are not finite.
        result, tainted, wild = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape, bool)
        suspects = Suspects(a, b, left.finite, right.finite, rng)
        for rows, cols, tile in tiles(c):
            overflowed = suspects.look(tile, rows, cols, left.norm, right.norm)
            if overflowed is not None:
                tainted[rows] |= overflowed.astype(np.float64) @ groups.spread(ones, cols) > 0
            # Row and column factors of rows that are not finite are 0.
            tile = np.where(np.isfinite(tile), tile, 0.0) * col_scale[cols] * row_scale[rows, None]
            squares = _squares(tile)
            tame = squares < _HUGE**2
            if not tame.all():
                wild[rows] |= (~tame).astype(np.float64) @ groups.spread(ones, cols) > 0
                tile, squares = np.where(tame, tile, 0.0), np.where(tame, squares, 0.0)
            residual[rows] += tile @ groups.spread(weight, cols)
            result[rows] += squares @ groups.spread(ones, cols)
        result = np.sqrt(result)

        scales = np.sqrt(np.square(col_scale) @ groups.spread(ones, slice(None))) * row_scale[:, None]
        one, both = model.reading(k)
        tiny = one * (row_sums[:, None] * scales / row_scale[:, None] + row_scale[:, None] * norms.sum(0))
        tiny = np.where(scales > 0.0, tiny + (model.absolute(k) + k * both) * scales, 0.0)
        bound = (1.0 + u) * (relative * size + (1.0 + relative) * tiny) + u * result
        bound = (bound + model.rounding_underflow * scales) / (1.0 - u)
        threshold, noise, own = _thresholds(model, k, groups.sizes, products * m * groups.count)
        own = own * (size + result)
        limit = threshold * bound + own
        ratio = np.abs(residual) / limit
        ratio = np.where(residual == 0, 0.0, np.where(np.isfinite(ratio), ratio, inf))
        seen = np.sqrt(groups.sizes) * (threshold + noise + 2.0 * own / bound) / (_WEIGHTS[0] / _STEPS)
        detects = float(np.max(np.where(bound > 0.0, seen, np.where(bound == 0.0, 0.0, inf)), initial=0.0))
    ratio[wild], ratio[tainted] = inf, 0.0
    detects = inf if np.isnan(detects) else detects
    return Sketch(groups, ratio, tainted, detects, suspects.found(), suspects.unexamined())


def _squares(x: Array) -> Array:
    """|x|**2."""
    return np.square(x.real) + np.square(x.imag) if x.dtype.kind == "c" else np.square(x)


def _thresholds(model: ErrorModel, k: int, sizes: Array, sums: int) -> tuple[float, float, Array]:
    """Hoeffding's t for all ``sums`` together, t for one missed error, and the rounding error of the check itself."""
    # Real and imaginary parts are bounded separately.
    norm = sqrt(2.0) if model.complex else 1.0
    terms = 2 if model.complex else 1
    threshold = norm * sqrt(2.0 * log(2.0 * terms * sums))
    noise = norm * sqrt(2.0 * log(2.0 * terms / MISS))
    own = np.array([norm * gamma(terms * (k + int(size) + 8), 2.0**-53) * sqrt(size) for size in sizes])
    return threshold, noise, own


@dataclass(frozen=True)
class ExactSketch:
    """The evaluated sums of one integer product."""

    wrong: Array
    """Rows with a sum that is not 0: each certainly has a wrong element."""
    sums: int


def exact_sketch(a: Array, b: Array, c: Array, bits: int, rng: np.random.Generator) -> ExactSketch:
    """Evaluate :data:`VECTORS` sums of every row of ``c - a @ b`` for integers, modulo 2**``bits``.

    Let r be a row of ``c - a @ b`` that is not 0 modulo 2**bits, r_j an element that is not, and x a vector of
    independent fair bits. For any other bits of x, the sum r x takes two values as x_j is 0 or 1, which differ by r_j:
    at most one of them is 0. So the sum is 0 with a probability of at most 1/2, and all of the
    row's sums with at most 2**-VECTORS. A row that is 0 has sums of 0.

    Weights other than 0 and 1 gain nothing: for errors in the top bit alone only their lowest bit matters.
    """
    (m, k), n = a.shape, b.shape[1]
    peak_a, peak_b, peak_c = (Side.survey(x, 1).largest for x in (a, b, c))
    # In float64 (through BLAS) while every partial sum is an integer below 2**53; else modulo 2**64.
    exact = float(n) * max(k * peak_a * peak_b, peak_c) < 2.0**52
    dtype = np.dtype(np.float64 if exact else np.int64)
    bit = np.ascontiguousarray(rng.integers(0, 2, (VECTORS, n), np.int8).astype(dtype).T)
    sums = np.zeros((k, VECTORS), dtype)
    for rows, cols, tile in tiles(b, dtype):
        sums[rows] += _product(tile, bit[cols])
    residual = np.zeros((m, VECTORS), dtype)
    for rows, cols, tile in tiles(a, dtype):
        residual[rows] -= _product(tile, sums[cols])
    for rows, cols, tile in tiles(c, dtype):
        residual[rows] += _product(tile, bit[cols])
    left_over = residual.astype(np.int64)
    if bits < 64:
        left_over &= (1 << bits) - 1
    return ExactSketch(np.flatnonzero(left_over.any(axis=1)), residual.size)


def not_int32(c: Array) -> Array:
    """Elements (i, j), if any, of a floating matrix that are not integers in the range of int32; at most a few."""
    found = Cells(_CERTAIN)
    for rows, cols, tile in tiles(c):
        wrong = ~((tile >= -(2.0**31)) & (tile < 2.0**31) & (tile == np.rint(tile)))
        if wrong.any():
            found.offer(wrong, (rows.start, cols.start), np.zeros(tile.shape))
    return found.index


def _product(x: Array, y: Array) -> Array:
    """``x @ y``; integers by einsum, which is three times as fast as numpy.matmul without BLAS."""
    if x.dtype.kind == "f":
        return x @ y
    return np.einsum("ik,sk->is", x, np.ascontiguousarray(y.T))
