"""A small neural network, with which plugins correct their cost models by what was measured.

benchmarks/fit/train.py fits networks; this module only evaluates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Net:
    """Layers of one width, each but the first added to what it is given, and a linear one for the answer.

    A network says anything of what is unlike all that it was fitted to. So features are held within the range in which
    they were seen, and those that never changed are not told.
    """

    least: Array
    most: Array
    """The range of each feature."""
    mean: Array
    scale: Array
    """What is told is (feature - mean) * scale."""
    layers: tuple[tuple[Array, Array], ...]
    """Weights (inputs x outputs) and biases. The last one has one output."""

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Net:
        """From arrays by name, such as those of an npz file: those above and, for each layer, weights0, biases0 and so
        on.
        """
        single = {name: np.asarray(arrays[name], np.float32) for name in arrays}
        count = sum(name.startswith("weights") for name in single)
        layers = tuple((single[f"weights{i}"], single[f"biases{i}"]) for i in range(count))
        return cls(single["least"], single["most"], single["mean"], single["scale"], layers)

    def predict(self, rows: Array) -> Array:
        """One number for each row of features."""
        held = np.clip(np.asarray(rows, np.float32), self.least, self.most)
        told = (held - self.mean) * self.scale
        for i, (weights, biases) in enumerate(self.layers[:-1]):
            found = _silu(told @ weights + biases)
            told = found if i == 0 else told + found
        weights, biases = self.layers[-1]
        answer: Array = (told @ weights + biases)[:, 0].astype(np.float64)
        return answer


def _silu(x: Array) -> Array:
    """x / (1 + exp(-x)), by a function that does not overflow."""
    found: Array = 0.5 * x * (1 + np.tanh(0.5 * x))
    return found
