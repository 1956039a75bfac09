"""Implementation of the public calls for JAX arrays: traced ones become part of the program that JAX compiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gemmhub import dtypes
from gemmhub._call.options import EXTRA, refuse_extra
from gemmhub._doors.jax import product
from gemmhub.errors import DTypeError, InputError, ShapeError
from gemmhub.packed import PackedB

Array = Any


def take(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The product of a call with tracers; NotImplemented for calls that need numbers and refuse tracers."""
    if call != "matmul":
        return NotImplemented
    refuse_extra(options, "in a function that JAX traces")
    return matmul(*operands, **{name: x for name, x in options.items() if name not in EXTRA})


def matmul(
    a: Array, b: Array, /, *, out_dtype: Any = None, alpha: complex = 1, beta: complex = 0, c: Array | None = None,
    bias: Array | None = None, activation: str | None = None, precision: str | None = None,
    deterministic: bool = False, backend: str | None = None, out: Any = None, stream: Any = None,
) -> Array:  # fmt: skip
    """Compute :func:`gemmhub.matmul` of JAX's arrays, also in ``jit``, ``grad``, ``vmap`` and ``shard_map``.

    The product is a call of the compiled program, on the runtime's own buffers; nothing is copied to the host.

    Parameters
    ----------
    a, b, c, bias, and the options : as of :func:`gemmhub.matmul`. ``alpha`` and ``beta`` are numbers, not arrays.

    Returns
    -------
    A jax.Array. It has gradients (forward and reverse mode, of any order) with respect to a, b, c and bias.

    Raises
    ------
    ShapeError, DTypeError, InputError : a bad argument, while the function is traced.
    jax.errors.JaxRuntimeError : the product failed when the program ran; it has gemmhub's message.

    Examples
    --------
    >>> f = jax.jit(jax.grad(lambda w: gemmhub.jax.matmul(x, w, activation="gelu").sum()))
    """
    for name, given in (("out", out), ("stream", stream)):
        if given is not None:
            raise InputError(
                name, "given in a function that JAX traces", "None", "JAX allocates results and orders work"
            )
    if isinstance(b, PackedB):
        raise InputError("b", "a packed operand in a function that JAX traces", "an array", "pass b itself")
    if activation is not None and activation not in dtypes.ACTIVATIONS:
        raise InputError("activation", f"{activation!r}", ", ".join(dtypes.ACTIVATIONS))
    if (c is None) != (beta == 0) and c is None:
        raise InputError("beta", f"{beta} without c", "beta with c", "pass c=")
    a, b = jnp.asarray(a), jnp.asarray(b)
    for name, x in (("a", a), ("b", b)):
        if not x.ndim:
            raise ShapeError(name, "a scalar (0 dimensions)", "1 dimension or more", "use * for scalars")
    rows, columns = a.ndim == 1, b.ndim == 1
    left = a[None] if rows else a
    right = b[:, None] if columns else b
    if left.shape[-1] != right.shape[-2]:
        raise ShapeError("a, b", f"{a.shape} by {b.shape}", "as many columns of a as rows of b")
    wanted = None if out_dtype is None else dtypes.as_dtype(out_dtype)
    dtype = dtypes.output_dtype(np.dtype(left.dtype), np.dtype(right.dtype), wanted)
    if "c" in dtype.kind + np.dtype(left.dtype).kind + np.dtype(right.dtype).kind:
        raise DTypeError("a, b", "complex numbers in a function that JAX traces", "real ones", "multiply their parts")
    if np.dtype(jnp.empty(0, dtype).dtype) != dtype:
        raise DTypeError("out_dtype", f"{dtype}, which JAX has not enabled", "dtypes of 32 bits", "jax_enable_x64")
    rank = max(left.ndim, right.ndim)
    left, right = _padded(left, rank), _padded(right, rank)
    shape = (*np.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2], right.shape[-1])
    if c is not None and beta != 0:
        c = jnp.broadcast_to(jnp.asarray(c), _without(shape, rows, columns)).reshape(shape)
    else:
        c = None
    if bias is not None:
        bias = jnp.asarray(bias)
        along_m = columns and not rows
        allowed = (
            {(shape[-2],): (-1, 1)}
            if along_m
            else {(shape[-1],): (1, -1), (1, shape[-1]): (1, -1), (shape[-2], 1): (-1, 1)}
        )
        if bias.shape not in allowed:
            raise ShapeError("bias", f"shape {bias.shape}", " or ".join(map(str, allowed)))
        bias = bias.reshape(allowed[bias.shape])
    options = {"precision": precision, "deterministic": deterministic or None, "backend": backend}
    kept = tuple((name, x) for name, x in options.items() if x is not None)
    call = product.Call(dtype, alpha, beta if c is not None else 0, activation, kept)
    return product.epilogue(call, left, right, c, bias).reshape(_without(shape, rows, columns))


def _padded(x: Array, rank: int) -> Array:
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _without(shape: tuple[int, ...], rows: bool, columns: bool) -> tuple[int, ...]:
    """The shape of the result, without the dimensions that vectors lack."""
    kept = shape[:-2] + (() if rows else shape[-2:-1])
    return kept + (() if columns else shape[-1:])


__all__ = ["jax", "matmul", "take"]
