"""Evaluation of the small neural networks by which plugins correct their cost models.

benchmarks/fit/train.py trains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Net:
    """A residual network: layers of one width, each but the first added to its input, and a linear output layer.

    A network's output is arbitrary for inputs unlike its training data. So features are clipped to the range of the
    training data, those that were constant there are ignored, and :meth:`covers` reports the rows that had to be.
    """

    min: Array
    max: Array
    """Greatest value of each feature in the training data."""
    mean: Array
    scale: Array
    """Scale of each feature: the input is (feature - mean) * scale."""
    layers: tuple[tuple[Array, Array], ...]
    """Weights (inputs x outputs) and biases of each layer. The last layer has one output."""

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> Net:
        """A network from arrays by name, such as those of an npz file.

        The names are those of the attributes above and, for each layer, weights0, biases0 and so on.
        """
        single = {name: np.asarray(arrays[name], np.float32) for name in arrays}
        count = sum(name.startswith("weights") for name in single)
        layers = tuple((single[f"weights{i}"], single[f"biases{i}"]) for i in range(count))
        return cls(single["least"], single["most"], single["mean"], single["scale"], layers)

    def covers(self, rows: Array | Sequence[Sequence[float]], handled: Sequence[int] = ()) -> Array:
        """Whether every feature of each row is within the range of the training data.

        ``handled``: features that may have any value where the training data had one, because the caller accounts for
        them.
        """
        single: Array = np.asarray(rows, np.float32)
        inside = (self.min <= single) & (single <= self.max)
        constant = [i for i in handled if self.min[i] == self.max[i]]
        inside[:, constant] = True
        covered: Array = np.asarray(inside.all(axis=1))
        return covered

    def predict(self, rows: Array) -> Array:
        """The output for each row of features."""
        clipped = np.clip(np.asarray(rows, np.float32), self.min, self.max)
        flow = (clipped - self.mean) * self.scale
        for i, (weights, biases) in enumerate(self.layers[:-1]):
            step = _silu(flow @ weights + biases)
            flow = step if i == 0 else flow + step
        weights, biases = self.layers[-1]
        output: Array = (flow @ weights + biases)[:, 0].astype(np.float64)
        return output


def _silu(x: Array) -> Array:
    """x / (1 + exp(-x)), without overflow."""
    result: Array = 0.5 * x * (1 + np.tanh(0.5 * x))
    return result
