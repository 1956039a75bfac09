"""Regression trees, with which plugins correct their cost models by what was measured.

Fitting them is the business of the scripts in benchmarks/ (fitted_trees.py); here they are only walked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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

    def predict(self, rows: Array) -> Array:
        """One number for each row of features."""
        nodes = np.tile(self.roots, len(rows))
        row = np.repeat(np.arange(len(rows)), len(self.roots))
        going = np.arange(len(nodes))
        for _ in range(self.depth):
            at = nodes[going]
            goes_left = rows[row[going], self.feature[at]] <= self.threshold[at]
            at = np.where(goes_left, self.left[at], self.right[at])
            nodes[going] = at
            going = going[self.left[at] != at]  # most leaves are reached long before the deepest
        total: Array = self.base + self.value[nodes].reshape(len(rows), len(self.roots)).sum(axis=1)
        return total
