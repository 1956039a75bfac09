"""The product as a primitive of JAX: its abstract evaluation, lowering, derivatives and batching rule.

Operands have equal numbers of dimensions, of which the first may be 1; c has the result's shape, and bias is (1, n) or
(m, 1). A product without an epilogue is linear in either operand, so that JAX derives gradients of any order, forward
and reverse, from its transpose; the derivative of an epilogue is written in JAX's own operations.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gemmhub import dtypes
from gemmhub._doors.jax import target

Array = Any


class Call(NamedTuple):
    """The static parameters of a product."""

    dtype: Any
    alpha: complex
    beta: complex
    activation: str | None
    options: tuple[tuple[str, Any], ...]

    @property
    def plain(self) -> Call:
        """The parameters of the product without its epilogue."""
        return self._replace(alpha=1, beta=0, activation=None)


gemm = Primitive("gemmhub_matmul")


def _shape(*operands: Any) -> tuple[int, ...]:
    a, b = operands[:2]
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


@gemm.def_abstract_eval
def _abstract(*operands: Any, call: Call, has: tuple[bool, bool]) -> Any:
    return jax.core.ShapedArray(_shape(*operands), call.dtype)


gemm.def_impl(lambda *operands, **params: jax.jit(partial(gemm.bind, **params))(*operands))


def _lowered(platform: str) -> Any:
    def lower(context: Any, *operands: Any, call: Call, has: tuple[bool, bool]) -> Any:
        name = target.registered(platform)
        return jax.ffi.ffi_lowering(name)(context, *operands, call=target.encoded(call, has))

    return lower


mlir.register_lowering(gemm, _lowered("cpu"), platform="cpu")
mlir.register_lowering(gemm, _lowered("gpu"), platform="cuda")


def bound(call: Call, a: Array, b: Array, c: Array | None = None, bias: Array | None = None) -> Array:
    """The product, as one call of the compiled program."""
    operands = [x for x in (a, b, c, bias) if x is not None]
    return gemm.bind(*operands, call=call, has=(c is not None, bias is not None))


def _summed(x: Array, like: Any) -> Array:
    """``x`` summed over the dimensions in which ``like`` has size 1, in its dtype."""
    over = tuple(i for i, (size, other) in enumerate(zip(x.shape, like.shape)) if other == 1 and size != 1)
    x = x.sum(over, keepdims=True) if over else x
    if jnp.iscomplexobj(x) and not jnp.issubdtype(like.dtype, jnp.complexfloating):
        x = x.real
    return x.astype(like.dtype)


def _alike(x: Array, y: Array) -> tuple[Array, Array]:
    """Both arrays in their common wider dtype."""
    if x.dtype == y.dtype:
        return x, y
    kinds = [dtypes.info(np.dtype(z.dtype)).kind for z in (x, y)]
    if "float8" in kinds:
        common = y.dtype if kinds[0] == "float8" else x.dtype
    else:
        common = dtypes.result_dtype(np.dtype(x.dtype), np.dtype(y.dtype))
    return x.astype(common), y.astype(common)


def _transposed_product(x: Array, y: Array, like: Any, call: Call) -> Array:
    """``x @ y``, summed to the shape of an operand; in float32 for 16-bit operands with summed dimensions."""
    x, y = _alike(x, y)
    natural = np.dtype(x.dtype)
    whole = _shape(x, y) == tuple(like.shape)
    wanted = np.dtype(like.dtype)
    if not whole and natural.itemsize <= 2:
        wanted = np.dtype(np.float32)
    elif dtypes.info(wanted).kind not in ("float", "complex") or (natural.kind == "c" and wanted.kind != "c"):
        wanted = natural
    return _summed(bound(call._replace(dtype=wanted), x, y), like)


def _left(cotangent: Array, a: Any, b: Array, *, call: Call, has: Any) -> Array:
    return _transposed_product(cotangent, b.swapaxes(-1, -2), a.aval, call)


def _right(cotangent: Array, a: Array, b: Any, *, call: Call, has: Any) -> Array:
    return _transposed_product(a.swapaxes(-1, -2), cotangent, b.aval, call)


ad.defbilinear(gemm, _left, _right)


def _mapped(operands: Any, dims: Any, *, call: Call, has: tuple[bool, bool]) -> tuple[Array, int]:
    """The batching rule: one more batch dimension, the first; of size 1 where an operand has none."""
    moved = [x[None] if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims)]
    a, b, *rest = moved
    c = rest.pop(0) if has[0] else None
    bias = rest.pop(0) if has[1] else None
    shape = list(_shape(a, b))
    sizes = {x.shape[0] for x in moved}
    shape[0] = max(sizes) if sizes != {0} and 0 not in sizes else 0
    if a.shape[0] == b.shape[0] == 1 and shape[0] != 1:  # c or bias alone is mapped
        a = jnp.broadcast_to(a, (shape[0], *a.shape[1:]))
    if c is not None:
        c = jnp.broadcast_to(c, shape)
    if bias is not None and dims[-1] is None:
        bias = bias[0]
    elif bias is not None:
        added = bias.reshape(bias.shape[0], *(1,) * (len(shape) - 3), *bias.shape[1:])
        c = added if c is None else c * jnp.asarray(call.beta, c.dtype) + added
        c, bias, call = jnp.broadcast_to(c, shape), None, call._replace(beta=1)
    return bound(call, a, b, c, bias), 0


batching.primitive_batchers[gemm] = _mapped


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def epilogue(call: Call, a: Array, b: Array, c: Array | None, bias: Array | None) -> Array:
    """Compute ``activation(alpha * a @ b + beta * c + bias)``."""
    return bound(call, a, b, c, bias)


_ACTIVATIONS = {"relu": jax.nn.relu, "gelu": partial(jax.nn.gelu, approximate=True), "silu": jax.nn.silu}


@epilogue.defjvp
def _derivative(call: Call, primals: Any, tangents: Any) -> tuple[Array, Array]:
    a, b, c, bias = primals
    of_a, of_b, of_c, of_bias = tangents
    linear = call._replace(activation=None)
    x = epilogue(linear, a, b, c, bias)
    tangent = jnp.zeros(x.shape, x.dtype)
    for left, right, moved in ((of_a, b, of_a), (a, of_b, of_b)):
        if moved is not None and moved.dtype != jax.dtypes.float0:
            part = bound(call.plain, left, right)
            tangent = tangent + (part if call.alpha == 1 else part * jnp.asarray(call.alpha, part.dtype))
    if c is not None:
        tangent = tangent + (of_c * jnp.asarray(call.beta, of_c.dtype)).astype(x.dtype)
    if bias is not None:
        tangent = tangent + of_bias.astype(x.dtype)
    if call.activation is None:
        return x, tangent
    result, moved = jax.jvp(_ACTIVATIONS[call.activation], (x,), (tangent,))
    return result, moved
