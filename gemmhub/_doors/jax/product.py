"""The product as primitives of JAX: abstract evaluation, lowering, derivatives and batching rules.

:data:`fused` is a product with its operands and its epilogue. :data:`product` is alpha times a product alone: it is
linear in either operand, so that JAX derives gradients of any order, forward and reverse, from its transpose. The
derivative of the first is composed of the second and of JAX's own operations, in the dtype of the epilogue, and rounded
once.

a and b have equal numbers of dimensions, of which the first may be 1, as have c and the scales of a and b. bias is
(1, n) or (m, 1), and scale_out (1, 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import frexp, ldexp
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gemmhub import dtypes
from gemmhub._base.promises import pins_rows
from gemmhub._doors.jax import target
from gemmhub._doors.jax.functions import activated
from gemmhub.epilogues import columns
from gemmhub.errors import DTypeError, InputError
from gemmhub.operands import BLOCK, OPERANDS

Array = Any
Operands = Mapping[str, Array]
"""The operands beside a and b, by name."""


class Call(NamedTuple):
    """The static parameters of a product."""

    dtype: Any
    alpha: complex
    beta: complex
    activation: str | None
    options: tuple[tuple[str, Any], ...]
    pre: bool = False
    """Whether what the activation is applied to is a second result."""
    rounded: Any = None
    """Dtype that the cotangent of a sum in a wider one is rounded to, for a product with an operand as narrow."""

    @property
    def pinned(self) -> bool:
        """Whether the bits of a row must depend on nothing but that row and b."""
        return pins_rows(dict(self.options).get("reproducible"))

    @property
    def symmetric(self) -> bool:
        """Whether the product is promised to be symmetric."""
        return ("symmetric", True) in self.options

    def sum(self, dtype: Any) -> Call:
        """The call for the argument of the activation, in another dtype."""
        options = tuple(x for x in self.options if x[0] != "symmetric")  # nothing is promised of derivatives
        return self._replace(dtype=dtype, activation=None, pre=False, options=options)

    def factor(self, name: str) -> Any:
        """The factor of a term of the sum."""
        return self.beta if name == "c" else 1


STACKED = ("c", "scale_a", "scale_b")
"""Operands of which each matrix of a stack may have its own."""

product = Primitive("gemmhub_product")
fused = Primitive("gemmhub_matmul")
fused.multiple_results = True


def _shape(*operands: Any) -> tuple[int, ...]:
    a, b = operands[:2]
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


@product.def_abstract_eval
def _abstract_product(a: Any, b: Any, *, call: Call) -> Any:
    return jax.core.ShapedArray(_shape(a, b), call.dtype)


@fused.def_abstract_eval
def _abstract(*operands: Any, call: Call, names: tuple[str, ...]) -> Any:
    product_shape = _shape(*operands)
    result = jax.core.ShapedArray((*product_shape[:-1], columns(call.activation, product_shape[-1])), call.dtype)
    return [result, *[jax.core.ShapedArray(product_shape, _sums_dtype(call))] * call.pre]


def _sums_dtype(call: Call) -> Any:
    """The dtype of the pre-activation: :func:`gemmhub.operands.sums_dtype`; it is float32 for float8."""
    return np.dtype(np.float32) if dtypes.saturates(np.dtype(call.dtype)) else call.dtype


for primitive in (product, fused):
    primitive.def_impl(jax.jit(primitive.bind, static_argnames=("call", "names")))


def _lowered(platform: str) -> Any:
    def lower(context: Any, *operands: Any, call: Call, names: tuple[str, ...] = ()) -> Any:
        name = target.registered(platform)
        return jax.ffi.ffi_lowering(name)(context, *operands, call=target.encoded(call, names))

    return lower


for primitive in (product, fused):
    mlir.register_lowering(primitive, _lowered("cpu"), platform="cpu")
    mlir.register_lowering(primitive, _lowered("gpu"), platform="cuda")


def fuse(call: Call, a: Array, b: Array, operands: Operands) -> tuple[Array, ...]:
    """The result, and the pre-activation where it is requested, as one call of the compiled program."""
    arrays = {name: jnp.broadcast_to(x, _shape(a, b)) if name == "c" else x for name, x in operands.items()}
    return tuple(fused.bind(a, b, *arrays.values(), call=call, names=tuple(arrays)))


def _summed(x: Array, like: Any) -> Array:
    """``x`` summed over the dimensions in which ``like`` has size 1, in its dtype."""
    over = tuple(i for i, (size, other) in enumerate(zip(x.shape, like.shape)) if other == 1 and size != 1)
    x = x.sum(over, keepdims=True) if over else x
    if jnp.iscomplexobj(x) and not jnp.issubdtype(like.dtype, jnp.complexfloating):
        x = x.real
    return x.astype(like.dtype)


def _alike(x: Array, y: Array) -> tuple[Array, Array]:
    """Both arrays in their common wider dtype, of those that JAX has enabled."""
    if x.dtype == y.dtype:
        return x, y
    dtype_classes = [dtypes.info(np.dtype(z.dtype)).kind for z in (x, y)]
    if "float8" in dtype_classes:
        common = y.dtype if dtype_classes[0] == "float8" else x.dtype
    else:
        common = jax.dtypes.canonicalize_dtype(dtypes.result_dtype(np.dtype(x.dtype), np.dtype(y.dtype)))
    return x.astype(common), y.astype(common)


def _transposed_product(x: Array, y: Array, like: Any, call: Call) -> Array:
    """``x @ y``, summed to the shape of an operand; in float32 for 16-bit operands with summed dimensions."""
    call = call._replace(rounded=None)
    x, y = _alike(x, y)
    natural = np.dtype(x.dtype)
    unsummed = _shape(x, y) == tuple(like.shape)
    wanted = np.dtype(like.dtype)
    if not unsummed and natural.itemsize <= 2:
        wanted = np.dtype(np.float32)
    elif dtypes.info(wanted).kind not in ("float", "complex") or (natural.kind == "c" and wanted.kind != "c"):
        wanted = natural
    return _summed(product.bind(x, y, call=call._replace(dtype=wanted)), like)


def _left(cotangent: Array, a: Any, b: Array, *, call: Call) -> Array:
    return _transposed_product(_narrow(cotangent, b, call), b.swapaxes(-1, -2), a.aval, call)


def _right(cotangent: Array, a: Array, b: Any, *, call: Call) -> Array:
    return _transposed_product(a.swapaxes(-1, -2), _narrow(cotangent, a, call), b.aval, call)


def _narrow(cotangent: Array, other: Array, call: Call) -> Array:
    """The cotangent in the dtype that it had before JAX widened it, where the other operand is no wider."""
    if call.rounded is None or other.dtype.itemsize > call.rounded.itemsize:
        return cotangent
    return cotangent.astype(call.rounded)


ad.defbilinear(product, _left, _right)


def _first(x: Array, dim: int | None) -> Array:
    """``x`` with its mapped dimension first; of size 1 where it has none."""
    return x[None] if dim is None else jnp.moveaxis(x, dim, 0)


def _mapped_product(operands: Any, dims: Any, *, call: Call) -> tuple[Array, int]:
    """The batching rule: one more batch dimension, the first."""
    a, b = map(_first, operands[:2], dims[:2])
    return product.bind(a, b, call=call), 0


def _mapped(operands: Any, dims: Any, *, call: Call, names: tuple[str, ...]) -> tuple[tuple[Array, ...], Any]:
    """The batching rule: one more batch dimension of one product.

    Terms and factors that a stack of products shares by their form, but that differ here, follow the sum; so do all
    terms where the product itself is the same for each.
    """
    size = next(x.shape[dim] for x, dim in zip(operands, dims) if dim is not None)
    others = dict(zip(names, operands[2:]))
    mapped = {name: dim for name, dim in zip(names, dims[2:]) if dim is not None}
    a, b = map(_first, operands[:2], dims[:2])
    one = dims[0] is None and dims[1] is None
    if one and (call.pinned or call.symmetric or any(OPERANDS[name].role == "factor" for name in mapped)):
        a, one = jnp.broadcast_to(a, (size, *a.shape[1:])), False
    late = {name for name in mapped if one or name not in STACKED}
    inner = {
        name: _first(x, mapped.get(name)) if name in STACKED else x for name, x in others.items() if name not in late
    }
    if not late:
        results = fuse(call, a, b, inner)
        return results, (0,) * len(results)
    if call.pinned:
        raise InputError(
            ", ".join(sorted(late)), "mapped by vmap, with reproducible=, which pins the bits of rows",
            "the same for each product: XLA, which would compute the epilogue, promises no bits",
            "map c=, or multiply one by one: jax.lax.map",
        )  # fmt: skip
    wide = _epilogue_dtype(a, b, call)
    (x,) = fuse(call.sum(wide), a, b, _of_sum(inner, wide))
    after = {name: _aligned(jnp.moveaxis(others[name], mapped[name], 0), x.ndim) for name in late}
    for name, term in after.items():
        if OPERANDS[name].role == "term":
            x = x + _scaled(term.astype(wide), call.factor(name))
    results = _finish(call, x, {**others, **after}.get("scale_out"))
    return tuple(jnp.broadcast_to(y, (size, *y.shape[1:])) for y in results), (0,) * len(results)


batching.primitive_batchers[product] = _mapped_product
batching.primitive_batchers[fused] = _mapped


def _aligned(x: Array, rank: int) -> Array:
    """A stack with dimensions of size 1 after the first, so that it has ``rank``."""
    return x.reshape(x.shape[0], *(1,) * (rank - x.ndim), *x.shape[1:])


def _epilogue_dtype(a: Array, b: Array, call: Call) -> Any:
    """The dtype in which a product computes its epilogue."""
    accumulator = dtypes.compute_dtype(np.dtype(a.dtype), np.dtype(b.dtype), np.dtype(call.dtype))
    wide = dtypes.epilogue_dtype(accumulator, np.dtype(call.dtype))
    return wide if jax.dtypes.canonicalize_dtype(wide) == wide else call.dtype


def _of_sum(operands: Operands, wide: Any) -> dict[str, Array]:
    """The operands of the sum before the activation, terms in its dtype."""
    roles = {name: OPERANDS[name].role for name in operands}
    return {
        name: x.astype(wide) if roles[name] == "term" else x
        for name, x in operands.items()
        if roles[name] in ("term", "factor")
    }


def _finish(call: Call, x: Array, scale_out: Array | None) -> tuple[Array, ...]:
    """The results of the sum ``x``."""
    result = activated(call.activation, x)
    if scale_out is not None:
        result = result * scale_out.astype(x.dtype)
    if dtypes.saturates(np.dtype(call.dtype)):  # JAX's own conversion gives NaN, or infinity
        largest = dtypes.info(np.dtype(call.dtype)).largest
        result = jnp.clip(result, -largest, largest)
    return (result.astype(call.dtype), *[x.astype(_sums_dtype(call))] * call.pre)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def epilogue(call: Call, a: Array, b: Array, operands: Operands) -> tuple[Array, ...]:
    """Compute ``scale_out * activation(alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias)``; :func:`fuse`."""
    return fuse(call, a, b, operands)


def _scaled(x: Array, factor: Any) -> Array:
    """``factor * x``, also where the factor alone is beyond the dtype's range."""
    if factor == 1 or dtypes.single(factor) or x.dtype != np.float32:
        return x if factor == 1 else x * jnp.asarray(factor, x.dtype)
    part, exponent = frexp(factor)
    half = max(-126, min(126, exponent // 2))
    return x * jnp.asarray(part, x.dtype) * ldexp(1.0, half) * ldexp(1.0, max(-126, min(126, exponent - half)))


def _each(scale: Array, shape: tuple[int, ...], wide: Any) -> Array:
    """The factors of a matrix of this shape, one for each element of a dimension where there is one for each block."""
    scale = scale.astype(wide)
    for axis in (scale.ndim - 2, scale.ndim - 1):
        size = shape[axis - scale.ndim]
        if scale.shape[axis] not in (1, size):
            scale = jax.lax.slice_in_dim(jnp.repeat(scale, BLOCK, axis), 0, size, axis=axis)
    return scale


def _factored(x: Array, scale: Array | None, of_x: Any, of_scale: Any, wide: Any) -> tuple[Array, Array | None]:
    """An operand times its scale, and its tangent; None for none."""
    if scale is None:
        return x, of_x
    factors = _each(scale, x.shape, wide)
    parts = [] if of_x is None else [of_x.astype(wide) * factors]
    parts += [] if of_scale is None else [x.astype(wide) * _each(of_scale, x.shape, wide)]
    return x.astype(wide) * factors, sum(parts[1:], parts[0]) if parts else None


def _tangent(call: Call, primals: Any, tangents: Any, wide: Any) -> Array:
    """The tangent of the sum before the activation, in the dtype ``wide``."""
    a, b, others = primals
    of_a, of_b = (None if isinstance(x, SymbolicZero) else x for x in tangents[:2])
    moved = {name: x for name, x in tangents[2].items() if not isinstance(x, SymbolicZero)}
    rounded = call.dtype if np.dtype(wide).itemsize > np.dtype(call.dtype).itemsize else None
    alone = call.sum(wide)._replace(beta=0, rounded=rounded)
    left, of_left = _factored(a, others.get("scale_a"), of_a, moved.get("scale_a"), wide)
    right, of_right = _factored(b, others.get("scale_b"), of_b, moved.get("scale_b"), wide)
    parts = [] if of_left is None else [product.bind(of_left, right, call=alone)]
    parts += [] if of_right is None else [product.bind(left, of_right, call=alone)]
    for name, x in moved.items():
        if OPERANDS[name].role == "term":
            parts.append(_scaled(x.astype(wide), call.factor(name)))
    return jnp.broadcast_to(sum(parts[1:], parts[0]) if parts else jnp.zeros((), wide), _shape(a, b))


@partial(epilogue.defjvp, symbolic_zeros=True)
def _derivative(call: Call, primals: Any, tangents: Any) -> Any:
    a, b, operands = primals
    moves = any(not isinstance(x, SymbolicZero) for x in jax.tree.leaves(tangents))
    if moves and dtypes.saturates(np.dtype(call.dtype)):
        raise DTypeError(
            "out_dtype", f"{call.dtype} in a function that JAX differentiates: derivatives have the dtype of results",
            "dtypes of 16 bits or more under derivatives", "give out_dtype='bfloat16'",
        )  # fmt: skip
    wide = _epilogue_dtype(a, b, call)
    tangent = _tangent(call, primals, tangents, wide)
    scale = operands.get("scale_out")
    if call.activation is None and scale is None and not call.pre:
        return epilogue(call, a, b, operands), (tangent.astype(call.dtype),)
    (x,) = epilogue(call.sum(wide), a, b, _of_sum(operands, wide))
    of_scale = tangents[2].get("scale_out")
    if isinstance(of_scale, SymbolicZero):
        of_scale = jnp.zeros_like(scale)
    primal, moved = jax.jvp(partial(_finish, call), (x, scale), (tangent, of_scale))
    # XLA promises no bits of an epilogue: where they are pinned, the result is that of a call without derivatives.
    return epilogue(call, a, b, operands) if call.pinned else primal, moved
