"""Elements of a product that are NaN or infinite, or should be: which of them to compute again.

Sums say nothing about them, but in O(n^2) operations all are looked at. An element whose row of a and column of b are
finite must have overflowed. Of another the operands determine the kind: a NaN among them, an infinity times 0, and
infinite terms of both signs make NaN; infinite terms of one sign make that infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gemmhub._base.inner_products import TILE, tiles, widen

Array = Any

WORK = 2**26
"""Multiplications that may be spent on computing such elements again."""
_CERTAIN = 64
"""Elements that are wrong for certain of which so many are computed again."""
_KINDS = 2**31
"""Multiplications (of signs, in BLAS) up to which the kind of every element is determined."""


def budget(k: int) -> int:
    """Elements with inner dimension ``k`` that may be computed again."""
    return int(np.clip(WORK // max(1, k), 64, 65536))


class Cells:
    """The elements with the smallest keys out of any number that are offered."""

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
    """Where one operand is infinite: rows of a, or columns of b."""

    lines: Array
    """Indices of the rows (columns) that have an infinity."""
    inner: Array
    """Indices along the inner dimension where any of them has one."""
    count: Array
    """Infinities of each row (column); NaN where it has a NaN."""

    @classmethod
    def find(cls, x: Array, axis: int, finite: Array) -> _Infinities:
        """``axis``: the inner dimension of ``x``; ``finite``: which rows (columns) are, known before."""
        inner, count = np.zeros(x.shape[axis], bool), np.zeros(x.shape[1 - axis])
        for rows, cols, tile in tiles(x):
            line, along = (rows, cols) if axis == 1 else (cols, rows)
            if not finite[line].all():
                infinite = np.isinf(tile)
                inner[along] |= infinite.any(1 - axis)
                count[line] += infinite.sum(axis) + np.where(np.isnan(tile).any(axis), np.nan, 0.0)
        return cls(np.flatnonzero(count > 0), np.flatnonzero(inner), count)


class _Kinds:
    """Which infinity, or NaN, elements are that have an operand that is not finite (real operands)."""

    def __init__(self, a: Array, b: Array, finite_a: Array, finite_b: Array) -> None:
        self.a, self.b = a, b
        self.left, self.right = _Infinities.find(a, 1, finite_a), _Infinities.find(b, 0, finite_b)
        work = len(self.left.lines) * len(self.left.inner) * b.shape[1]
        work += len(self.right.lines) * len(self.right.inner) * a.shape[0]
        self.known = work <= _KINDS

    def of(self, rows: slice, cols: slice) -> Array:
        """inf, -inf or NaN for the elements of a tile; for those whose operands are finite it means nothing."""
        signs = np.zeros((rows.stop - rows.start, cols.stop - cols.start))
        lines = _inside(self.left.lines, rows)
        for inner in _chunks(self.left.inner, max(len(lines), signs.shape[1])) if len(lines) else ():
            infinite = widen(self.a[np.ix_(lines, inner)])
            signs[lines - rows.start] += _infinite_signs(infinite) @ np.sign(widen(self.b[inner, cols]))
        lines = _inside(self.right.lines, cols)
        for inner in _chunks(self.right.inner, max(len(lines), signs.shape[0])) if len(lines) else ():
            infinite = widen(self.b[np.ix_(inner, lines)])
            signs[:, lines - cols.start] += np.sign(widen(self.a[rows, inner])) @ _infinite_signs(infinite)
        # Every infinite factor contributes 1 or -1, but 0 where it meets a 0: all must agree. A NaN never does.
        count = self.left.count[rows, None] + self.right.count[cols]
        kind = np.where(signs == count, np.inf, np.where(signs == -count, -np.inf, np.nan))
        return np.where(count > 0, kind, np.nan)


def _inside(lines: Array, here: slice) -> Array:
    return lines[np.searchsorted(lines, here.start) : np.searchsorted(lines, here.stop)]


def _chunks(inner: Array, width: int) -> list[Array]:
    step = max(1, TILE // max(1, width))
    return [inner[start : start + step] for start in range(0, len(inner), step)]


def _infinite_signs(x: Array) -> Array:
    return np.where(np.isinf(x), np.sign(x), 0.0)


class Suspects:
    """Collects the elements of c to compute again, tile by tile."""

    def __init__(self, a: Array, b: Array, finite_a: Array, finite_b: Array, rng: np.random.Generator) -> None:
        """``finite_a``, ``finite_b``: which rows of a and columns of b are finite."""
        limit = budget(a.shape[1])
        self.rng, self.finite_a, self.finite_b = rng, finite_a, finite_b
        real = all(np.dtype(x.dtype).kind != "c" for x in (a, b))  # an infinite complex number has no sign that counts
        self.kinds = _Kinds(a, b, finite_a, finite_b) if real and not (finite_a.all() and finite_b.all()) else None
        self.finite = Cells(_CERTAIN)
        """Finite, though an operand is not: wrong."""
        self.strange = Cells(limit)
        """Of another kind than the operands determine."""
        self.least = Cells(limit // 2)
        """Not finite, all operands finite: those with the least reason to overflow (|S| <= |a_i| |b_j|)."""
        self.overflowed = Cells(limit // 2)
        """The same: a sample, or all of them."""

    def look(self, tile: Array, rows: slice, cols: slice, norm_a: Array, norm_b: Array) -> Array | None:
        """The mask of elements that must have overflowed; None if there are none. ``norm_a``, ``norm_b``: 2-norms."""
        good = np.isfinite(tile)
        clean = self.finite_a[rows, None] & self.finite_b[cols]
        if good.all() and clean.all():
            return None
        origin = (rows.start, cols.start)
        random = self.rng.random(tile.shape)
        self.finite.offer(good & ~clean, origin, random)
        if self.kinds is not None and not clean.all():
            strange = ~good & ~clean
            if self.kinds.known:
                kind = self.kinds.of(rows, cols)
                strange &= ~((tile == kind) | (np.isnan(tile) & np.isnan(kind)))
            self.strange.offer(strange, origin, random)
        overflowed = ~good & clean
        if not overflowed.any():
            return None
        self.least.offer(overflowed, origin, norm_a[rows, None] * norm_b[cols])
        self.overflowed.offer(overflowed, origin, random)
        return overflowed

    def found(self) -> tuple[Array, ...]:
        """Elements (i, j) to compute again."""
        overflowed = np.concatenate([self.least.index, self.overflowed.index])
        return self.finite.index, self.strange.index, np.unique(overflowed, axis=0)

    def unexamined(self) -> int:
        """How many there were beyond those."""
        chosen = len(self.found()[2])
        return (self.strange.offered - len(self.strange.index)) + (self.overflowed.offered - chosen)
