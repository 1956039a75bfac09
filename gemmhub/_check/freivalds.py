"""Freivalds' check: random sums of every row that a wrong product violates, in O(n^2) operations.

Freivalds (Probabilistic machines can use less running time, IFIP 1977) checks ``C = A B`` by comparing C x
with A (B x) for a random x. For floating products the columns fall at random into groups, each with its own random
signs, so that one pass over C, A and B gives a sum for every row and group, and a wrong element competes with the
rounding errors of its own group only. docs/accuracy.md derives the thresholds. For integer products there is no
rounding, and x is a vector of random bits: :func:`exact_sketch`. Alpha, scales and addends go through the sums.

Operands are widened tile by tile; other memory is a few arrays of (m + k) x 64 numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt
from typing import Any

import numpy as np

from gemmhub._base.inner_products import tiles
from gemmhub._check.affine import Affine
from gemmhub._check.nonfinite import Cells, Suspects
from gemmhub._check.product import Product
from gemmhub.accuracy import ErrorModel, gamma
from gemmhub.epilogues import EPILOGUES

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
"""Maximum number of certainly wrong elements that are recomputed."""
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

    def scaled(self, factor: Array, finite: Array) -> Side:
        """The same rows (columns), multiplied by ``factor``; those that are not in ``finite`` count as not finite."""
        finite, size = self.finite & finite & np.isfinite(factor), np.abs(factor)
        size = np.where(finite, size, 0.0)
        return Side(finite, self.norm * size, self.mean * size, self.largest * float(size.max(initial=0.0)))

    def scale(self, mean: Array) -> Array:
        """Factors that scale the ``mean`` sizes to 1; 0 where not all elements are finite."""
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


def sketch(
    a: Array, b: Array, c: Array, model: ErrorModel, products: int, rng: np.random.Generator,
    affine: Affine | None = None,
) -> Sketch:  # fmt: skip
    """Evaluate the sums of ``c - affine(a @ b)`` for a floating product, one of ``products`` in the check."""
    (m, k), n = a.shape, b.shape[1]
    affine = Affine.plain_product(m, n) if affine is None else affine
    groups = Groups.draw(n, rng)
    with np.errstate(all="ignore"):
        bare = Side.survey(a, 1), Side.survey(b, 0)
        left, right = (side.scaled(*x) for side, x in zip(bare, affine.lines))
        relative, u = affine.relative(model, k), model.output
        row_scale, col_scale = _scales(left, right, model, relative, k, affine)
        row_factor = np.where(left.finite, affine.rows, 0.0) * row_scale
        col_factor = np.where(right.finite, affine.scale_b, 0.0) * col_scale
        ones, weight = np.ones(n), groups.weight / _STEPS
        dtype = np.complex128 if model.complex else np.float64
        shape = (m, groups.count)
        # B: weighted sums and 2-norms over each group, per row.
        sums, norms = np.zeros((k, groups.count), dtype), np.zeros((k, groups.count))
        for rows, cols, tile in tiles(b):
            tile = np.where(right.finite[cols], tile, 0.0) * col_factor[cols]
            sums[rows] += tile @ groups.spread(weight, cols)
            norms[rows] += _squares(tile) @ groups.spread(ones, cols)
        norms = np.sqrt(norms)
        # A: the product of the sums, and (Minkowski) the 2-norm of |A| |B| over each group.
        residual, size, row_sums = np.zeros(shape, dtype), np.zeros(shape), np.zeros(m)
        for rows, cols, tile in tiles(a):
            tile = np.where(left.finite[rows, None], tile, 0.0) * row_factor[rows, None]
            residual[rows] -= tile @ sums[cols]
            absolute = np.abs(tile)
            size[rows] += absolute @ norms[cols]
            row_sums[rows] += absolute.sum(1)
        # C: its own sums, less those of the addends, and the elements that are not finite.
        result, added, tainted, wild = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool), np.zeros(shape, bool)
        suspects = Suspects(a, b, left, right, affine, rng)
        for rows, cols, tile in tiles(c):
            addend, magnitude = affine.addend(rows, cols)
            missing = suspects.look(tile, rows, cols, addend, magnitude)
            if missing is not None:
                tainted[rows] |= missing.astype(np.float64) @ groups.spread(ones, cols) > 0
            # Row and column factors of rows that are not finite are 0.
            scale = col_scale[cols] * row_scale[rows, None]
            finite = np.isfinite(tile) & np.isfinite(addend)
            tile = np.where(finite, tile, 0.0) * scale
            squares = _squares(tile)
            tame = squares < _HUGE**2
            if affine.terms:
                tile = tile - np.where(finite, addend, 0.0) * scale
                magnitude = np.square(np.where(finite, magnitude, 0.0) * scale)
                tame &= magnitude < _HUGE**2
                added[rows] += np.where(tame, magnitude, 0.0) @ groups.spread(ones, cols)
            if not tame.all():
                wild[rows] |= (~tame).astype(np.float64) @ groups.spread(ones, cols) > 0
                tile, squares = np.where(tame, tile, 0.0), np.where(tame, squares, 0.0)
            residual[rows] += tile @ groups.spread(weight, cols)
            result[rows] += squares @ groups.spread(ones, cols)
        result, size = np.sqrt(result), size + np.sqrt(added)

        def norm_over_groups(columns: Array) -> Array:
            return np.sqrt(np.square(columns) @ groups.spread(ones, slice(None)))

        scales = norm_over_groups(col_scale) * row_scale[:, None]
        factors = norm_over_groups(col_factor)
        one, both = model.reading(k)
        tiny = one * (row_sums[:, None] * factors + np.abs(row_factor)[:, None] * norms.sum(0))
        tiny += k * both * np.abs(row_factor)[:, None] * factors
        tiny += affine.absolute(model, k) * _grown(affine, bare, k, row_scale, col_scale, norm_over_groups)
        tiny = np.where(scales > 0.0, tiny, 0.0)
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
    return Sketch(groups, ratio, tainted, detects, suspects.cells(), suspects.unexamined())


def _scales(
    left: Side, right: Side, model: ErrorModel, relative: float, k: int, affine: Affine
) -> tuple[Array, Array]:  # fmt: skip
    """Factors of the rows and of the columns that make the bounds of all columns alike.

    A column counts with its part of the product and of the addends. Below a floor underflow is all of the bound.
    """
    steepness = relative * float(left.mean.max(initial=0.0))
    floor = k * model.underflow / steepness if steepness > 0.0 else 0.0
    rows, columns = left.mean, np.maximum(right.mean, floor)
    if affine.terms:
        along, down = affine.sizes()
        typical = [float(np.mean(x)) * k if x.size else 0.0 for x in (rows, columns)]
        along, down = (x / y if y > 0.0 else x for x, y in ((along, typical[1]), (down, typical[0])))
        rows, columns = rows + along, columns + down
    return left.scale(rows), right.scale(columns)


def _grown(
    affine: Affine, bare: tuple[Side, Side], k: int, row_scale: Array, col_scale: Array, norm_over_groups: Any
) -> Array:  # fmt: skip
    """Norms over groups of what an error of underflow is multiplied by, as :func:`gemmhub.accuracy.reference` does.

    The sums of absolute values that scales bring in are at most the products of 1-norms.
    """
    rows, columns = affine.reach
    rows, columns = rows * row_scale, columns * col_scale
    grown = rows[:, None] * norm_over_groups(columns)
    if affine.scaled:
        grown = grown + (rows * k * bare[0].mean)[:, None] * norm_over_groups(columns * k * bare[1].mean)
    return grown


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
    own = np.array([norm * gamma(terms * (k + int(size) + 16), 2.0**-53) * sqrt(size) for size in sizes])
    return threshold, noise, own


@dataclass(frozen=True)
class ExactSketch:
    """The evaluated sums of one integer product."""

    wrong: Array
    """Rows with a sum that is not 0: each certainly has a wrong element."""
    sums: int


def exact_sketch(
    a: Array, b: Array, c: Array, bits: int, rng: np.random.Generator, affine: Affine | None = None
) -> ExactSketch:
    """Evaluate :data:`VECTORS` sums of every row of ``c - affine(a @ b)`` for integers, modulo 2**``bits``.

    Let r be a row of that difference that is not 0 modulo 2**bits, r_j an element that is not, and x a vector of
    independent fair bits. For any other bits of x, the sum r x takes two values as x_j is 0 or 1, which differ by r_j:
    at most one of them is 0. So the sum is 0 with a probability of at most 1/2, and all of the
    row's sums with at most 2**-VECTORS. A row that is 0 has sums of 0.

    Weights other than 0 and 1 gain nothing: for errors in the top bit alone only their lowest bit matters.
    """
    (m, k), n = a.shape, b.shape[1]
    affine = Affine.plain_product(m, n) if affine is None else affine
    peak_a, peak_b, peak_c = (Side.survey(x, 1).largest for x in (a, b, c))
    alpha = affine.factor
    # In float64 (through BLAS) while every partial sum is an integer below 2**53; else modulo 2**64.
    peak = max(max(1, abs(alpha)) * k * peak_a * peak_b, peak_c, affine.largest)
    exact = float(n) * peak < 2.0 ** (52 if affine.plain else 50)
    dtype = np.dtype(np.float64 if exact else np.int64)
    bit = np.ascontiguousarray(rng.integers(0, 2, (VECTORS, n), np.int8).astype(dtype).T)
    sums = np.zeros((k, VECTORS), dtype)
    for rows, cols, tile in tiles(b, dtype):
        sums[rows] += _product(tile, bit[cols])
    residual = np.zeros((m, VECTORS), dtype)
    for rows, cols, tile in tiles(a, dtype):
        residual[rows] -= _product(tile, sums[cols])
    residual *= dtype.type(alpha)
    for rows, cols, tile in tiles(c, dtype):
        tile = tile - affine.integral(rows, cols, dtype) if affine.terms else tile
        residual[rows] += _product(tile, bit[cols])
    left_over = residual.astype(np.int64)
    if bits < 64:
        left_over &= (1 << bits) - 1
    return ExactSketch(np.flatnonzero(left_over.any(axis=1)), residual.size)


def not_int32(c: Array) -> Array:
    """Elements (i, j), if any, of a floating matrix that are not integers in the range of int32; at most a few."""
    cells = Cells(_CERTAIN)
    for rows, cols, tile in tiles(c):
        wrong = ~((tile >= -(2.0**31)) & (tile < 2.0**31) & (tile == np.rint(tile)))
        if wrong.any():
            cells.offer(wrong, (rows.start, cols.start), np.zeros(tile.shape))
    return cells.index


def outliers(product: Product, batch: tuple[int, ...], c: Array) -> Array:
    """The elements (i, j) of a floating result that are largest beside what their operands can make.

    By Cauchy and Schwarz no sum of products is larger than the product of two 2-norms, and an activation is no larger
    than a power of its argument, or than 1. What comes first is not finite though its operands are.
    """
    cells, affine = Cells(_CERTAIN), Affine.of(product, batch)
    degree = 1 if product.activation is None else EPILOGUES[product.activation].degree
    with np.errstate(all="ignore"):
        bare = Side.survey(product.a[batch], 1), Side.survey(product.b[batch], 0)
        left, right = (side.scaled(*x) for side, x in zip(bare, affine.lines))
        columns = product.argument(np.arange(c.shape[1]))
        for rows, cols, tile in tiles(c):
            argument = columns[cols].ravel()
            addend, size = affine.addend(rows, argument)
            limit = left.norm[rows, None] * right.norm[argument] + size
            finite = left.finite[rows, None] & right.finite[argument] & np.isfinite(addend)
            shape = (*tile.shape, product.per_column)
            limit, finite = limit.reshape(shape).prod(-1) ** degree, finite.reshape(shape).all(-1)
            beside = np.where(tile == 0, 0.0, np.abs(tile) / limit)
            beside = np.where(finite, np.where(np.isnan(beside), inf, beside), -1.0)
            count = min(_CERTAIN, beside.size)
            threshold = max(0.0, float(np.partition(beside, -count, axis=None)[-count])) if count else 0.0
            cells.offer(beside >= threshold, (rows.start, cols.start), -beside)
    return cells.index


def _product(x: Array, y: Array) -> Array:
    """``x @ y``; integers by einsum, which is three times as fast as numpy.matmul without BLAS."""
    if x.dtype.kind == "f":
        return x @ y
    return np.einsum("ik,sk->is", x, np.ascontiguousarray(y.T))
