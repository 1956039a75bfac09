"""Small products with an epilogue: numpy.matmul and ufuncs on its result, with no preparation of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmhub.numpy_backend.blocked import finish
from gemmhub.numpy_backend.scratch import unleased
from gemmhub.problem import GemmProblem

Array = Any


def with_epilogue(problem: GemmProblem) -> Callable[..., Array]:
    """``(a, b, out, c, bias, alpha, beta, stream) -> result`` for operands and results of the BLAS's own dtype.

    The result is computed outside ``out`` and copied when complete: ``out`` may overlap every operand.
    """
    activation, scaled = problem.activation, not problem.alpha_is_one
    matmul, multiply, add, maximum = np.matmul, np.multiply, np.add, np.maximum
    zero = np.zeros((), problem.out.dtype)
    plain = activation in (None, "relu")
    single = problem.m * problem.n * problem.batch_count == 1  # in place NumPy takes twice as long there

    def run(
        a: Array, b: Array, out: Array | None, c: Array | None, bias: Array | None, alpha: Any, beta: Any, stream: Any
    ) -> Array:
        result = matmul(a, b)
        place = None if single else result
        if scaled:
            if alpha == 0:
                result[...] = 0  # not 0 * result: NaN must not propagate
            else:
                result = multiply(result, alpha, place)
        if c is not None and beta != 0:
            result = add(result, c if beta == 1 else multiply(c, beta), place)
        if bias is not None:
            result = add(result, bias, place)
        if plain:
            if activation is not None:
                result = maximum(result, zero, out=place)
        else:
            with np.errstate(all="ignore"):  # of what overflows inside of a formula the result shows nothing
                finish(unleased(), result, None, None, 1, 0, activation)
        if out is None:
            return result
        out[...] = result
        return out

    return run
