"""Fits regression trees for the cost models of plugins, by scikit-learn; shared by the fits of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np

FOLDS = 5
"""Of a cross-validation."""


def folds(sizes: Any) -> Any:
    """The fold of each row, the same for rows of the same size (m, n, k)."""
    size = np.unique(sizes, axis=0, return_inverse=True)[1].ravel()
    return np.random.default_rng(0).permutation(size.max() + 1)[size] % FOLDS


def _rounded_up(thresholds: Any) -> Any:
    """To float32: thresholds may be values of a feature, which go to the left."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded < thresholds, np.nextafter(rounded, np.float32(np.inf)), rounded)


def flattened(fitted: Any, prefix: str = "") -> dict[str, Any]:
    """The trees of a HistGradientBoostingRegressor as plain arrays, for :class:`gemmhub.trees.Trees`."""
    parts: dict[str, list[Any]] = {name: [] for name in ("feature", "threshold", "left", "right", "value")}
    roots, depth, start = [], 0, 0
    for (tree,) in fitted._predictors:
        nodes = tree.nodes
        roots.append(start)
        own = np.arange(len(nodes)) + start
        leaf = nodes["is_leaf"].astype(bool)
        parts["feature"].append(np.where(leaf, 0, nodes["feature_idx"]))
        parts["threshold"].append(np.where(leaf, np.inf, _rounded_up(nodes["num_threshold"])))
        parts["left"].append(np.where(leaf, own, nodes["left"] + start))
        parts["right"].append(np.where(leaf, own, nodes["right"] + start))
        parts["value"].append(np.where(leaf, nodes["value"], 0.0))
        depth, start = max(depth, int(nodes["depth"].max())), start + len(nodes)
    kinds = {"feature": np.int16, "threshold": np.float32, "left": np.int32, "right": np.int32, "value": np.float32}
    arrays = {name: np.concatenate(values).astype(kinds[name]) for name, values in parts.items()}
    base = float(np.ravel(fitted._baseline_prediction)[0])
    found = {**arrays, "roots": np.array(roots, np.int32), "depth": depth, "base": base}
    return {prefix + name: value for name, value in found.items()}
