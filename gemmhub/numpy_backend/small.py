"""Small products with an epilogue: numpy.matmul and ufuncs on its result, with no preparation of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmhub.numpy_backend.activations import activate
from gemmhub.numpy_backend.scratch import unleased
from gemmhub.problem import GemmProblem

Array = Any


def with_epilogue(problem: GemmProblem, most: int) -> Callable[..., Array]:
    """``(a, b, out, c, bias, alpha, beta, stream) -> result`` for operands and results of the BLAS's own dtype.

    NotImplemented for a result of more than ``most`` elements, where an epilogue in blocks is faster. The result is
    computed outside ``out`` and copied when complete: ``out`` may overlap every operand.
    """
    activation, scaled = problem.activation, not problem.alpha_is_one
    matmul, multiply, add, maximum = np.matmul, np.multiply, np.add, np.maximum
    zero = np.zeros((), problem.out.dtype)
    relu = activation == "relu"

    def run(
        a: Array, b: Array, out: Array | None, c: Array | None, bias: Array | None, alpha: Any, beta: Any, stream: Any
    ) -> Array:
        if a.size > 0 and a.size // a.shape[-1] * b.shape[-1] > most:
            return NotImplemented
        result = _zeros(a, b) if scaled and alpha == 0 else matmul(a, b)
        place = None if result.size == 1 else result  # in place NumPy takes twice as long for one element
        if scaled and alpha != 0:
            result = multiply(result, alpha, place)
        if c is not None and beta != 0:
            result = add(result, c if beta == 1 else multiply(c, beta), place)
        if bias is not None:
            result = add(result, bias, place)
        if relu:
            result = maximum(result, zero, out=place)
        elif activation is not None:
            activate(activation, unleased(), result)
        if out is None:
            return result
        out[...] = result
        return out

    return run


def _zeros(a: Array, b: Array) -> Array:
    """What alpha 0 makes of any product: not 0 times it, as NaN must not propagate, nor warnings about it."""
    with np.errstate(all="ignore"):
        result = np.matmul(a, b)
    result[...] = 0
    return result
