"""The product as a primitive of JAX: its abstract evaluation, lowering, derivatives and batching rule.

Operands have equal numbers of dimensions, of which the first may be 1; c broadcasts to the result's shape, and bias is
(1, n) or (m, 1). A product with alpha alone is linear in either operand, so that JAX derives gradients of any order,
forward and reverse, from its transpose; the derivative of an epilogue is written in JAX's own operations. What follows
a product there is computed in the dtype of its epilogue, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
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
from gemmhub._doors.jax import target
from gemmhub.errors import InputError

Array = Any


class Call(NamedTuple):
    """The static parameters of a product."""

    dtype: Any
    alpha: complex
    beta: complex
    activation: str | None
    options: tuple[tuple[str, Any], ...]
    rounded: Any = None
    """Dtype that the cotangent of a sum in a wider one is rounded to, for a product with an operand as narrow."""


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
    call = call._replace(rounded=None)
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
    return _transposed_product(_narrow(cotangent, b, call), b.swapaxes(-1, -2), a.aval, call)


def _right(cotangent: Array, a: Array, b: Any, *, call: Call, has: Any) -> Array:
    return _transposed_product(a.swapaxes(-1, -2), _narrow(cotangent, a, call), b.aval, call)


def _narrow(cotangent: Array, other: Array, call: Call) -> Array:
    """The cotangent in the dtype that it had before JAX widened it, where the other operand is no wider."""
    if call.rounded is None or other.dtype.itemsize > call.rounded.itemsize:
        return cotangent
    return cotangent.astype(call.rounded)


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
    if bias is None or dims[-1] is None:
        return bound(call, a, b, c, None if bias is None else bias[0]), 0
    # A different bias for each product follows the sum.
    wide = _epilogue_dtype(a, b, call)
    whole = bound(call._replace(activation=None, dtype=wide), a, b, None if c is None else c.astype(wide))
    whole = whole + bias.reshape(bias.shape[0], *(1,) * (len(shape) - 3), *bias.shape[1:]).astype(wide)
    return (whole if call.activation is None else activation_of(call.activation)(whole)).astype(call.dtype), 0


batching.primitive_batchers[gemm] = _mapped


def _epilogue_dtype(a: Array, b: Array, call: Call) -> Any:
    """The dtype in which a product computes its epilogue."""
    accumulator = dtypes.compute_dtype(np.dtype(a.dtype), np.dtype(b.dtype), np.dtype(call.dtype))
    return accumulator if dtypes.info(accumulator).inexact else call.dtype


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def epilogue(call: Call, a: Array, b: Array, c: Array | None, bias: Array | None) -> Array:
    """Compute ``activation(alpha * a @ b + beta * c + bias)``."""
    return bound(call, a, b, None if c is None else jnp.broadcast_to(c, _shape(a, b)), bias)


_FLAT = 1000.0
"""Beyond this argument the gradients of gelu and silu are exactly 0 or 1, in float64, too. JAX's own formulas give NaN
where the cube of the argument overflows.
"""


def _gelu(x: Array) -> Array:
    return jax.nn.gelu(jnp.clip(x, -_FLAT, _FLAT), approximate=True) + jax.nn.relu(x - _FLAT)


def _silu(x: Array) -> Array:
    return jax.nn.silu(jnp.clip(x, -_FLAT, _FLAT)) + jax.nn.relu(x - _FLAT)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": jax.nn.relu, "gelu": _gelu, "silu": _silu}


def activation_of(name: str) -> Callable[[Array], Array]:
    """JAX's form of an activation of epilogues; minus infinity becomes 0. InputError for one that has none here."""
    if name not in _ACTIVATIONS:
        raise InputError(
            "activation", f"{name!r}, which has no form and no gradient for JAX", ", ".join(_ACTIVATIONS),
            "apply it to the product",
        )  # fmt: skip
    return _ACTIVATIONS[name]


def _scaled(x: Array, factor: Any) -> Array:
    """``factor * x``, also where the factor alone is beyond the dtype's range."""
    if factor == 1 or dtypes.single(factor) or x.dtype != np.float32:
        return x if factor == 1 else x * jnp.asarray(factor, x.dtype)
    part, exponent = frexp(factor)
    half = max(-126, min(126, exponent // 2))
    return x * jnp.asarray(part, x.dtype) * ldexp(1.0, half) * ldexp(1.0, max(-126, min(126, exponent - half)))


def _tangent(call: Call, primals: Any, tangents: Any, shape: tuple[int, ...], wide: Any) -> Array:
    """The tangent of the sum before the activation, in the dtype ``wide``."""
    a, b, _, _ = primals
    of_a, of_b, of_c, of_bias = (None if isinstance(x, SymbolicZero) else x for x in tangents)
    rounded = call.dtype if np.dtype(wide).itemsize > np.dtype(call.dtype).itemsize else None
    product = call._replace(beta=0, activation=None, dtype=wide, rounded=rounded)
    parts = []
    if of_a is not None:
        parts.append(bound(product, of_a, b))
    if of_b is not None:
        parts.append(bound(product, a, of_b))
    if of_c is not None:
        parts.append(_scaled(of_c.astype(wide), call.beta))
    if of_bias is not None:
        parts.append(of_bias.astype(wide))
    return jnp.broadcast_to(sum(parts[1:], parts[0]) if parts else jnp.zeros((), wide), shape)


@partial(epilogue.defjvp, symbolic_zeros=True)
def _derivative(call: Call, primals: Any, tangents: Any) -> tuple[Array, Array]:
    a, b, c, bias = primals
    wide = _epilogue_dtype(a, b, call)
    tangent = _tangent(call, primals, tangents, _shape(a, b), wide)
    if call.activation is None:
        return epilogue(call, a, b, c, bias), tangent.astype(call.dtype)
    function = activation_of(call.activation)
    c, bias = (None if x is None else x.astype(wide) for x in (c, bias))
    x = epilogue(call._replace(activation=None, dtype=wide), a, b, c, bias)
    result, moved = jax.jvp(function, (x,), (tangent,))
    return result.astype(call.dtype), moved.astype(call.dtype)
