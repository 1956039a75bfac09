"""The epilogue of a tile of sums by NumPy, for engines whose kernels do not have it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmhub.dtypes import epilogue_dtype
from gemmhub.numpy_backend.activations import activate
from gemmhub.numpy_backend.ending import combine, store
from gemmhub.numpy_backend.scratch import Lease
from gemmhub.problem import GemmProblem

Array = Any


def finish_tile(
    problem: GemmProblem, lease: Lease, tile: Array, target: Array, c: Array | None, bias: Array | None, alpha: Any,
    beta: Any, rows: slice, cols: slice,
) -> None:  # fmt: skip
    """Write ``tile``, the sums of ``rows`` and ``cols`` of one matrix of the result, to ``target`` with the epilogue.

    ``c`` has all rows and columns of the matrix, ``bias`` all its elements. The tile is overwritten.
    """
    wide = epilogue_dtype(tile.dtype, target.dtype)
    if tile.dtype != wide:
        tile = tile.astype(wide)  # integers wrap to the width of an integer result before the epilogue
    if not problem.plain:
        vector = None
        if bias is not None and problem.bias is not None:
            vector = bias[cols] if problem.bias.axis == "n" else bias[rows, np.newaxis]
        addend = None if c is None else c[rows, cols]
        combine(lease, tile, alpha, [(factor, x) for factor, x in ((beta, addend), (1, vector)) if x is not None])
        if problem.activation is not None:
            activate(problem.activation, tile)
    store(np.copyto, target, tile)
