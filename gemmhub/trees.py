"""Regression trees, with which plugins correct their cost models by what was measured.

Fitting them is the business of the scripts in benchmarks/ (fitted_trees.py); here they are only walked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Trees:
    """Regression trees, flattened: node ``i`` sends a row to ``left[i]`` where its feature is at most the threshold,
    else to ``right[i]``; leaves send to themselves. The prediction is ``base`` plus the values of the leaves reached.
    """

    roots: Array
    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array
    base: float
    depth: int

    @classmethod
    def of(cls, arrays: Mapping[str, Any], prefix: str = "") -> Trees:
        """From arrays by name, such as those of an npz file; several forests in one have a prefix each."""
        roots, feature, threshold, left, right, value, base, depth = (
            np.asarray(arrays[prefix + name]) for name in cls.__dataclass_fields__
        )
        return cls(roots, feature, threshold, left, right, value, float(base), int(depth))

    @cached_property
    def _children(self) -> Array:
        """Left and right of each node, one after the other."""
        found: Array = np.stack((self.left, self.right), axis=1).ravel().astype(np.intp)
        return found

    @cached_property
    def _inner(self) -> Array:
        """Whether a node sends rows on."""
        found: Array = self.left != np.arange(len(self.left))
        return found

    def predict(self, rows: Array) -> Array:
        """One number for each row of features."""
        features = np.ravel(rows)
        row = np.repeat(np.arange(len(rows)) * rows.shape[-1], len(self.roots))
        at = np.tile(self.roots, len(rows))
        nodes, place = at.copy(), np.arange(len(at))
        for _ in range(self.depth):
            goes_left = features.take(row + self.feature.take(at)) <= self.threshold.take(at)
            at = self._children.take(2 * at + ~goes_left)
            nodes[place] = at
            going = np.flatnonzero(self._inner.take(at))  # most leaves are reached long before the deepest
            at, row, place = at.take(going), row.take(going), place.take(going)
        total: Array = self.base + self.value[nodes].reshape(len(rows), len(self.roots)).sum(axis=1)
        return total
