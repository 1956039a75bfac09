"""Small products with an epilogue: numpy.matmul and ufuncs on its result, with no preparation of the operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmhub.backend import DirectEpilogue
from gemmhub.dtypes import DType
from gemmhub.epilogues import EPILOGUES
from gemmhub.numpy_backend.activations import in_place
from gemmhub.problem import GemmProblem

Array = Any


READ = frozenset(("c", "bias", "scale_a", "scale_b", "scale_out"))
"""The operands that such a product may have."""


def with_epilogue(problem: GemmProblem, limit: int) -> Callable[[int], DirectEpilogue | None]:
    """:attr:`gemmhub.backend.Kernel.direct_epilogue` for operands and results of the BLAS's own dtype.

    None for a product of more than ``limit`` elements, where an epilogue in blocks is faster.
    """
    several, one = _product(problem, True), _product(problem, False)
    return lambda size: None if size > limit else several if size != 1 else one


def _product(problem: GemmProblem, in_place: bool) -> DirectEpilogue:
    """The product whose epilogue is computed in place; of one element that takes NumPy twice as long.

    The result is computed outside ``out`` and copied when complete: ``out`` may overlap every operand.
    """
    matmul, multiply, add = np.matmul, np.multiply, np.add
    scaled = not problem.alpha_is_one
    with_c, with_bias, with_scale_a, with_scale_b, with_scale_out = (
        name in problem.operands for name in ("c", "bias", "scale_a", "scale_b", "scale_out")
    )
    activate = None if problem.activation is None else _activation(problem.activation, problem.out.dtype)

    def run(a: Array, b: Array, out: Array | None, options: Mapping[str, Any]) -> Array:
        zero = scaled and options["alpha"] == 0  # then the scales count for nothing, too
        result = _zeros(a, b) if zero else matmul(a, b)
        target = result if in_place else None
        if scaled and not zero:
            result = multiply(result, options["alpha"], target)
        if with_scale_a and not zero:
            scale = options["scale_a"]
            result = multiply(result, scale[:, np.newaxis] if scale.ndim == 1 else scale, target)
        if with_scale_b and not zero:
            result = multiply(result, options["scale_b"], target)
        if with_c:
            c, beta = options["c"], options["beta"]
            result = add(result, c if beta == 1 else multiply(c, beta), target)
        if with_bias:
            result = add(result, options["bias"], target)
        if activate is not None:
            result = activate(result)
        if with_scale_out:
            result = multiply(result, options["scale_out"].reshape(()))
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
    """The product with alpha 0: zeros, and not 0 times it, as NaN must not propagate, nor warnings about it."""
    with np.errstate(all="ignore"):
        result = np.matmul(a, b)
    result[...] = 0
    return result
