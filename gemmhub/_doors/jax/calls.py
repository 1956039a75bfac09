"""Implementation of the public calls for JAX arrays: traced ones become part of the program that JAX compiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gemmhub import api, dtypes
from gemmhub._call.options import ARRAYS, EXTRA, NUMBERS, Request, refuse_extra, request, signature
from gemmhub._doors.jax import product
from gemmhub.errors import DTypeError, InputError, ShapeError
from gemmhub.packed import PackedB

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gemmhub._call.options import Options

Array = Any


def take(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The product of a call with tracers; NotImplemented for calls that need numbers and refuse tracers."""
    return _traced(*operands, **options) if call == "matmul" else NotImplemented


@signature()
def matmul(a: Array, b: Array, /, *, out: Any = None, **options: Unpack[Options]) -> Array:
    """Compute :func:`gemmhub.matmul` of JAX's arrays, also in ``jit``, ``grad``, ``vmap`` and ``shard_map``.

    The product is a call of the compiled program, on the runtime's own buffers; nothing is copied to the host. Where
    JAX traces no operand, what such a program cannot do (complex numbers, scales, a packed b) is a call of
    :func:`gemmhub.matmul`.

    Parameters
    ----------
    a, b, c, bias, and the options : as of :func:`gemmhub.matmul`. ``alpha`` and ``beta`` are numbers, not arrays that
        JAX traces.

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
    given: dict[str, Any] = dict(options)
    arrays = a, b, *map(given.get, ARRAYS)
    if any(isinstance(x, Tracer) for x in (out, *arrays)) or not _beyond_programs(arrays, {"out": out, **given}):
        return _traced(a, b, out=out, **given)
    left, right, *rest = (x if x is None or isinstance(x, PackedB) else jnp.asarray(x) for x in arrays)
    given |= {name: x for name, x in zip(ARRAYS, rest) if x is not None}
    return api.matmul(left, right, out=out, **given)


def _beyond_programs(arrays: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether a call has operands or options that a compiled program has not."""
    if any(options.get(name) is not None for name in ("out", "stream", *EXTRA)):
        return True
    dtype = options.get("out_dtype")
    if dtype is not None and dtypes.as_dtype(dtype).kind == "c":
        return True
    return any(isinstance(x, PackedB) or (x is not None and jnp.iscomplexobj(x)) for x in arrays)


def _traced(a: Any, b: Any, *, out: Any = None, **options: Any) -> Array:
    """The product as a part of the program that JAX traces."""
    where = "in a function that JAX traces"
    refuse_extra(options, where)
    for name, given in (("out", out), ("stream", options.get("stream"))):
        if given is not None:
            raise InputError(name, f"given {where}", "None", "JAX allocates results and orders work")
    for name in NUMBERS:
        if isinstance(options.get(name), Tracer):
            raise InputError(
                name, "an array that JAX traces, for which products have no gradient", "numbers",
                f"multiply {'the product' if name == 'alpha' else 'c, with beta=1,'} by it",
            )  # fmt: skip
    if isinstance(b, PackedB):
        raise InputError("b", f"a packed operand {where}", "an array", "pass b itself")
    asked = request(options)  # type: ignore[arg-type]
    a, b = jnp.asarray(a), jnp.asarray(b)
    for name, x in (("a", a), ("b", b)):
        if not x.ndim:
            raise ShapeError(name, "a scalar (0 dimensions)", "1 dimension or more", "use * for scalars")
    rows, columns = a.ndim == 1, b.ndim == 1
    left = a[None] if rows else a
    right = b[:, None] if columns else b
    if left.shape[-1] != right.shape[-2]:
        raise ShapeError("a, b", f"{a.shape} by {b.shape}", "as many columns of a as rows of b")
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        given = f"batch dimensions {left.shape[:-2]} and {right.shape[:-2]} do not broadcast"
        raise ShapeError("a, b", given, "equal sizes, or 1") from None
    dtype = _result_dtype(np.dtype(a.dtype), np.dtype(b.dtype), asked)
    rank = max(left.ndim, right.ndim)
    left, right = _padded(left, rank), _padded(right, rank)
    shape = (*batch, left.shape[-2], right.shape[-1])
    c = None if asked.c is None or asked.beta == 0 else _addend(jnp.asarray(asked.c), shape, rows, columns)
    bias = None if asked.bias is None else _vector(jnp.asarray(asked.bias), shape, columns and not rows)
    for name, added in (("c", c), ("bias", bias)):
        if added is not None:
            _check_addend(name, np.dtype(added.dtype), np.dtype(a.dtype), np.dtype(b.dtype), dtype)
    kept = {name: options[name] for name in ("precision", "deterministic", "backend") if options.get(name)}
    call = product.Call(dtype, asked.alpha, asked.beta if c is not None else 0, asked.activation, tuple(kept.items()))
    return product.epilogue(call, left, right, c, bias).reshape(_without(shape, rows, columns))


def _result_dtype(a: Any, b: Any, asked: Request) -> Any:
    """The dtype of the result; DTypeError where JAX has none such, or passes none to compiled programs."""
    dtype = dtypes.output_dtype(a, b, asked.out_dtype)
    if "c" in dtype.kind + a.kind + b.kind:
        raise DTypeError("a, b", "complex numbers in a function that JAX traces", "real ones", "multiply their parts")
    enabled = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    if enabled != dtype:
        raise DTypeError(
            "out_dtype", f"{dtype}, which JAX has not enabled", "dtypes of 32 bits",
            f'pass out_dtype="{enabled}" if the operands allow it, convert one of them, or set jax_enable_x64',
        )  # fmt: skip
    asked.check_scalars(a, b, dtype)
    return dtype


def _check_addend(name: str, given: Any, a: Any, b: Any, out: Any) -> None:
    """DTypeError unless c, or bias, has the dtype of the result or of the accumulator."""
    allowed = out, dtypes.compute_dtype(a, b, out)
    if given not in allowed:
        raise DTypeError(name, f"dtype {given}", " or ".join(dict.fromkeys(map(str, allowed))), "convert it")


def _addend(c: Array, shape: tuple[int, ...], rows: bool, columns: bool) -> Array:
    """``c`` with the dimensions of the product of matrices. It is broadcast later, where its gradient is summed."""
    result = _without(shape, rows, columns)
    try:
        fits = np.broadcast_shapes(c.shape, result) == result
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError("c", f"shape {c.shape}", f"shapes that broadcast to {result}")
    sizes = [*(1,) * (len(result) - c.ndim), *c.shape, *(1,) * columns]
    if rows:
        sizes.insert(-1, 1)
    return c.reshape(sizes)


def _vector(bias: Array, shape: tuple[int, ...], along_m: bool) -> Array:
    """``bias`` as a row, or as a column."""
    allowed: dict[tuple[int, ...], tuple[int, int]]
    if along_m:
        allowed = {(shape[-2],): (-1, 1)}
    else:
        allowed = {(shape[-1],): (1, -1), (1, shape[-1]): (1, -1), (shape[-2], 1): (-1, 1)}
    if bias.shape not in allowed:
        raise ShapeError("bias", f"shape {bias.shape}", " or ".join(map(str, allowed)))
    return bias.reshape(allowed[bias.shape])


def _padded(x: Array, rank: int) -> Array:
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def _without(shape: tuple[int, ...], rows: bool, columns: bool) -> tuple[int, ...]:
    """The shape of the result, without the dimensions that vectors lack."""
    kept = shape[:-2] + (() if rows else shape[-2:-1])
    return kept + (() if columns else shape[-1:])


__all__ = ["jax", "matmul", "take"]
