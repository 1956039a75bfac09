"""The epilogue of a product, tile by tile: alpha, addends, the activation, and the operands that are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from gemmhub.dtypes import DType, info, saturates
from gemmhub.epilogues import EPILOGUES
from gemmhub.numpy_backend.activations import activate
from gemmhub.numpy_backend.scratch import Lease
from gemmhub.operands import OPERANDS, Bias
from gemmhub.problem import GemmProblem

Array = Any
CopyTo = Callable[..., None]
"""``copy(target, source)`` with conversion: numpy.copyto, or one that splits the work over threads."""
Terms = Iterable[tuple[Any, Array]]
"""Addends, each with its factor; they broadcast to the tile."""


def terms_of(problem: GemmProblem, operands: Mapping[str, Array], beta: Any, dtype: DType) -> list[tuple[Any, Array]]:
    """The addends of a call as matrices, each with its factor; vectors are converted to ``dtype``."""
    terms = []
    for name, described in problem.operands.items():
        if OPERANDS[name].role != "term":
            continue
        x = operands[name]
        if isinstance(described, Bias):
            x = np.expand_dims(x.astype(dtype, copy=False), 0 if described.axis == "n" else 1)
        terms.append((beta if name == "c" else 1, x))
    return terms


def combine(lease: Lease, tile: Array, alpha: Any, terms: Terms) -> None:
    """``tile = alpha * tile + sum of terms`` in place, in the tile's dtype."""
    if alpha == 0:
        tile[...] = 0  # not 0 * tile: NaN must not propagate
    elif alpha != 1:
        np.multiply(tile, _scalar(alpha, tile.dtype), out=tile)
    mark = lease.used
    for factor, x in terms:
        if factor != 1 or x.dtype != tile.dtype:
            converted = lease.take(x.shape, tile.dtype)
            np.copyto(converted, x, casting="unsafe")
            x = converted
            if factor != 1:
                np.multiply(x, _scalar(factor, tile.dtype), out=x)
        np.add(tile, x, out=tile)
        lease.used = mark


def store(copy: CopyTo, target: Array, tile: Array) -> None:
    """Round a tile, in the dtype of its epilogue, to ``target``. It is overwritten where the target saturates."""
    if saturates(target.dtype):
        largest = info(target.dtype).largest
        np.clip(tile, -largest, largest, out=tile)
    copy(target, tile, casting="unsafe")


class Ending:
    """The end of one call: from the arguments of the activation to the result."""

    def __init__(self, activation: str | None, copy: CopyTo, operands: Mapping[str, Array]) -> None:
        self._activation, self._copy = activation, copy
        self._scale, self._amax = operands.get("scale_out"), operands.get("amax")
        self._largest: Any = 0

    def write(self, tile: Array, target: Array) -> None:
        """Write a part of the result, from the columns of the product that it depends on. They are overwritten."""
        if self._activation is not None:
            tile, *others = EPILOGUES[self._activation].split(tile)
            activate(self._activation, tile)
            for other in others:
                np.multiply(tile, other, out=tile)
        if self._amax is not None:  # both propagate NaN
            self._largest = np.maximum(self._largest, np.maximum(np.max(tile), -np.min(tile)))
        if self._scale is not None:
            np.multiply(tile, self._scale, out=tile)
        store(self._copy, target, tile)

    def close(self) -> None:
        """Write amax, which is known when the result is complete."""
        if self._amax is not None:
            self._amax[...] = abs(self._largest)  # 0, not -0


def _scalar(value: Any, dtype: DType) -> Any:
    """``value`` in ``dtype``; integers wrap, as they do everywhere in an integer product."""
    return np.asarray(value).astype(dtype)[()]
