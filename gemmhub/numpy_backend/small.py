"""Small products with an epilogue: numpy.matmul and ufuncs on its result, with no preparation of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemmhub.dtypes import DType
from gemmhub.epilogues import EPILOGUES
from gemmhub.numpy_backend.activations import in_place
from gemmhub.problem import GemmProblem

Array = Any


READ = frozenset(("c", "bias", "scale_a", "scale_b", "scale_out"))
"""The operands that such a product may have."""


def with_epilogue(problem: GemmProblem, most: int) -> Callable[..., Array]:
    """``(a, b, out, alpha, beta, stream, **operands) -> result`` for operands and results of the BLAS's own dtype.

    NotImplemented for a result of more than ``most`` elements, where an epilogue in blocks is faster. The result is
    computed outside ``out`` and copied when complete: ``out`` may overlap every operand.
    """
    scaled = not problem.alpha_is_one
    matmul, multiply, add = np.matmul, np.multiply, np.add
    activate = None if problem.activation is None else _activation(problem.activation, problem.out.dtype)

    def run(
        a: Array, b: Array, out: Array | None, alpha: Any, beta: Any, stream: Any, c: Array | None = None,
        bias: Array | None = None, scale_a: Array | None = None, scale_b: Array | None = None,
        scale_out: Array | None = None,
    ) -> Array:  # fmt: skip
        if a.size * b.size > most and a.size and a.size // a.shape[-1] * b.shape[-1] > most:  # the first implies it
            return NotImplemented
        zero = scaled and alpha == 0  # then the scales count for nothing, too
        result = _zeros(a, b) if zero else matmul(a, b)
        place = None if result.size == 1 else result  # in place NumPy takes twice as long for one element
        if scaled and not zero:
            result = multiply(result, alpha, place)
        if scale_a is not None and not zero:
            result = multiply(result, scale_a[:, np.newaxis] if scale_a.ndim == 1 else scale_a, place)
        if scale_b is not None and not zero:
            result = multiply(result, scale_b, place)
        if c is not None and beta != 0:
            result = add(result, c if beta == 1 else multiply(c, beta), place)
        if bias is not None:
            result = add(result, bias, place)
        if activate is not None:
            result = activate(result)
        if scale_out is not None:
            result = multiply(result, scale_out.reshape(()))
        if out is None:
            return result
        out[...] = result
        return out

    return run


def _activation(name: str, dtype: DType) -> Callable[[Array], Array]:
    """``x -> result``, which overwrites ``x``."""
    epilogue = EPILOGUES[name]
    form = in_place(epilogue, dtype)

    def gated(x: Array) -> Array:
        gate, up = epilogue.split(x)
        form.apply(gate)
        return np.multiply(gate, up)

    activate = form.apply if epilogue.arity == 1 else gated
    return activate if form.quiet else np.errstate(all="ignore")(activate)


def _zeros(a: Array, b: Array) -> Array:
    """What alpha 0 makes of any product: not 0 times it, as NaN must not propagate, nor warnings about it."""
    with np.errstate(all="ignore"):
        result = np.matmul(a, b)
    result[...] = 0
    return result
