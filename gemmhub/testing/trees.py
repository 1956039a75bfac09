"""For tests of plugins that ship regression trees: whether they are trees, and what they say, walked node by node."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isfinite

import numpy as np

from gemmhub.trees import Trees


def check_trees(trees: Trees, features: int) -> None:
    """Every node is reached from one root at most, leads to later ones or is a leaf, and asks for one of so many
    features; all numbers are finite.
    """
    own = np.arange(len(trees.left))
    leaf = trees.left == own
    assert np.array_equal(leaf, trees.right == own)
    assert (trees.left[~leaf] > own[~leaf]).all()  # so that every walk ends
    assert (trees.right[~leaf] > own[~leaf]).all()
    reached = np.concatenate([trees.roots, trees.left[~leaf], trees.right[~leaf]])
    assert np.array_equal(np.sort(reached), own)
    assert 0 <= trees.feature.min() <= trees.feature.max() < features
    assert np.isfinite(trees.threshold[~leaf]).all()
    assert np.isfinite(trees.value).all()
    assert (trees.value[~leaf] == 0).all()
    assert isfinite(trees.base)
    assert 1 <= trees.depth < 64


def walked(trees: Trees, row: Sequence[float]) -> float:
    """The prediction for one row of features, a node at a time."""
    leaves = []
    for root in trees.roots.tolist():
        node, steps = root, 0
        while trees.left[node] != node:
            goes_left = row[trees.feature[node]] <= float(trees.threshold[node])
            node = int((trees.left if goes_left else trees.right)[node])
            steps += 1
        assert steps <= trees.depth
        leaves.append(float(trees.value[node]))
    return trees.base + fsum(leaves)
