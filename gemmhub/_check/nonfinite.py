"""Selection of elements to recompute among those that are NaN or infinite, or should be.

Sums carry no information about them, but all are examined in O(n^2) operations. An element whose row of a and column
of b are finite must have overflowed. The value of any other follows from its operands: a NaN among them, an infinity
times 0, and infinite terms of both signs give NaN; infinite terms of one sign give that infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gemmhub._base.inner_products import TILE, tiles, widen
from gemmhub._check.affine import Affine

Array = Any

WORK = 2**26
"""Budget of multiplications for recomputing such elements."""
_CERTAIN = 64
"""Maximum number of certainly wrong elements that are recomputed."""
_SIGN_PRODUCTS = 2**31
"""Maximum number of multiplications (of signs, in BLAS) that determine the value of every element."""


def budget(k: int) -> int:
    """The number of elements with inner dimension ``k`` that the budget covers."""
    return int(np.clip(WORK // max(1, k), 64, 65536))


class Lines(Protocol):
    """Facts about the rows of a, or the columns of b: which are finite, and their 2-norms."""

    @property
    def finite(self) -> Array: ...

    @property
    def norm(self) -> Array: ...


class Cells:
    """The elements with the smallest keys among all that are offered."""

    def __init__(self, limit: int) -> None:
        self.limit, self.offered = limit, 0
        self.index = np.empty((0, 2), np.intp)
        self.keys = np.empty(0)

    def offer(self, mask: Array, origin: tuple[int, int], keys: Array) -> None:
        chosen = np.argwhere(mask)
        self.offered += len(chosen)
        keys = np.concatenate([self.keys, keys[mask]])
        index = np.concatenate([self.index, chosen + origin])
        if len(keys) > self.limit:
            best = np.argpartition(keys, self.limit)[: self.limit]
            index, keys = index[best], keys[best]
        self.index, self.keys = index, keys


@dataclass(frozen=True)
class _Infinities:
    """The infinities of one operand: of the rows of a, or of the columns of b."""

    lines: Array
    """Indices of the rows (columns) that have an infinity."""
    inner: Array
    """Indices along the inner dimension at which any of them is infinite."""
    count: Array
    """Number of infinities of each row (column); NaN where it has a NaN."""

    @classmethod
    def find(cls, x: Array, axis: int, finite: Array) -> _Infinities:
        """Find them; ``axis`` is the inner dimension of ``x``, ``finite`` the mask of its finite rows (columns)."""
        inner, count = np.zeros(x.shape[axis], bool), np.zeros(x.shape[1 - axis])
        for rows, cols, tile in tiles(x):
            line, along = (rows, cols) if axis == 1 else (cols, rows)
            if not finite[line].all():
                infinite = np.isinf(tile)
                inner[along] |= infinite.any(1 - axis)
                count[line] += infinite.sum(axis) + np.where(np.isnan(tile).any(axis), np.nan, 0.0)
        return cls(np.flatnonzero(count > 0), np.flatnonzero(inner), count)


class _SpecialValues:
    """The values (inf, -inf, NaN) of elements with an operand that is not finite, for real operands."""

    def __init__(self, a: Array, b: Array, finite_a: Array, finite_b: Array) -> None:
        self.a, self.b = a, b
        self.left, self.right = _Infinities.find(a, 1, finite_a), _Infinities.find(b, 0, finite_b)
        work = len(self.left.lines) * len(self.left.inner) * b.shape[1]
        work += len(self.right.lines) * len(self.right.inner) * a.shape[0]
        self.determined = work <= _SIGN_PRODUCTS

    def of(self, rows: slice, cols: slice) -> Array:
        """inf, -inf or NaN for the elements of a tile; 0 for those whose operands are finite."""
        signs = np.zeros((rows.stop - rows.start, cols.stop - cols.start))
        lines = _inside(self.left.lines, rows)
        for inner in _chunks(self.left.inner, max(len(lines), signs.shape[1])) if len(lines) else ():
            infinite = widen(self.a[np.ix_(lines, inner)])
            signs[lines - rows.start] += _infinite_signs(infinite) @ np.sign(widen(self.b[inner, cols]))
        lines = _inside(self.right.lines, cols)
        for inner in _chunks(self.right.inner, max(len(lines), signs.shape[0])) if len(lines) else ():
            infinite = widen(self.b[np.ix_(inner, lines)])
            signs[:, lines - cols.start] += np.sign(widen(self.a[rows, inner])) @ _infinite_signs(infinite)
        # Every infinite factor contributes 1 or -1, and 0 against a 0: all must agree. A NaN never agrees.
        count = self.left.count[rows, None] + self.right.count[cols]
        value = np.where(signs == count, np.inf, np.where(signs == -count, -np.inf, np.nan))
        return np.where(count == 0, 0.0, value)


def _inside(lines: Array, here: slice) -> Array:
    return lines[np.searchsorted(lines, here.start) : np.searchsorted(lines, here.stop)]


def _chunks(inner: Array, width: int) -> list[Array]:
    step = max(1, TILE // max(1, width))
    return [inner[start : start + step] for start in range(0, len(inner), step)]


def _infinite_signs(x: Array) -> Array:
    return np.where(np.isinf(x), np.sign(x), 0.0)


class Suspects:
    """Collects the elements of c to recompute, tile by tile."""

    def __init__(
        self, a: Array, b: Array, left: Lines, right: Lines, affine: Affine, rng: np.random.Generator
    ) -> None:  # fmt: skip
        """``left`` are the facts about the rows of a and ``right`` about the columns of b, both with their factors."""
        limit = budget(a.shape[1])
        self.rng, self.left, self.right, self.affine = rng, left, right, affine
        real = all(np.dtype(x.dtype).kind != "c" for x in (a, b))  # the sign of a complex infinity is not compared
        self.real, finite = real, left.finite.all() and right.finite.all()
        self.special = _SpecialValues(a, b, left.finite, right.finite) if real and not finite else None
        self.finite = Cells(_CERTAIN)
        """Finite elements with an operand that is not finite: wrong."""
        self.strange = Cells(limit)
        """Elements with another value than the operands determine."""
        self.unlikely = Cells(limit // 2)
        """Elements that are not finite although all operands are; those least likely to overflow."""
        self.overflowed = Cells(limit // 2)
        """A sample of the same elements, or all of them."""

    def look(self, tile: Array, rows: slice, cols: slice, addend: Array, magnitude: Array) -> Array | None:
        """Examine a tile, with the sum of its addends and of their absolute values.

        Return the mask of elements that are missing in the sums of finite rows and columns, as they must have
        overflowed or have an addend that is not finite; None where none is.
        """
        good = np.isfinite(tile)
        clean = self.left.finite[rows, None] & self.right.finite[cols]
        added = np.isfinite(addend)
        if good.all() and clean.all() and np.all(added):
            return None
        origin = (rows.start, cols.start)
        random = self.rng.random(tile.shape)
        tidy = clean & added
        self.finite.offer(good & ~tidy, origin, random)
        if self.real and not tidy.all():
            strange = ~good & ~tidy
            if self.special is None or self.special.determined:
                expected = self._special_value(rows, cols, addend)
                strange &= ~((tile == expected) | (np.isnan(tile) & np.isnan(expected)))
            self.strange.offer(strange, origin, random)
        overflowed = ~good & tidy
        if not overflowed.any():
            return clean & ~added if np.any(clean & ~added) else None
        size = self.left.norm[rows, None] * self.right.norm[cols] + magnitude
        self.unlikely.offer(overflowed, origin, size)
        self.overflowed.offer(overflowed, origin, random)
        return overflowed | (clean & ~added)

    def _special_value(self, rows: slice, cols: slice, addend: Array) -> Array:
        """inf, -inf or NaN for the elements of a tile; 0 for those whose operands are all finite."""
        with np.errstate(all="ignore"):
            value: Array = 0.0
            if self.special is not None:
                factor = np.sign(self.affine.rows)[rows, None] * np.sign(self.affine.scale_b)[cols]
                value = self.special.of(rows, cols)
                value = np.where(value == 0.0, 0.0, value * factor)
            return value + np.where(np.isfinite(addend), 0.0, addend)

    def cells(self) -> tuple[Array, ...]:
        """Elements (i, j) to recompute."""
        overflowed = np.concatenate([self.unlikely.index, self.overflowed.index])
        return self.finite.index, self.strange.index, np.unique(overflowed, axis=0)

    def unexamined(self) -> int:
        """The number of suspect elements beyond those."""
        chosen = len(self.cells()[2])
        return (self.strange.offered - len(self.strange.index)) + (self.overflowed.offered - chosen)
