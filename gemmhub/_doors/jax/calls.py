"""Implementation of the public calls for JAX arrays: traced ones become part of the program that JAX compiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gemmhub import api, dtypes
from gemmhub._base.geometry import expand
from gemmhub._call.describe import check_square, product_shapes, result_shape
from gemmhub._call.options import ARRAYS, NUMBERS, signature
from gemmhub._call.options import request as parse_request
from gemmhub._doors.jax import grouped, product, results
from gemmhub.errors import InputError
from gemmhub.operands import OPERANDS, Operand, Product, described
from gemmhub.packed import PackedB

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gemmhub._call.options import Options

Array = Any


def take(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The product of a call with tracers; NotImplemented for calls that need numbers and refuse tracers."""
    if call == "grouped_matmul":
        return grouped.traced(*operands, **options)
    return _traced(*operands, **options) if call == "matmul" else NotImplemented


@signature()
def matmul(a: Array, b: Array, /, *, out: Any = None, **options: Unpack[Options]) -> Array:
    """Compute :func:`gemmhub.matmul` of JAX's arrays, also in ``jit``, ``grad``, ``vmap`` and ``shard_map``.

    The product is a call of the compiled program, on the runtime's own buffers; nothing is copied to the host. Where
    JAX traces no operand, what such a program cannot do (complex numbers, a packed b) is a call of
    :func:`gemmhub.matmul`.

    Parameters
    ----------
    a, b, and the options : as of :func:`gemmhub.matmul`. ``alpha`` and ``beta`` are numbers, not arrays that JAX
        traces. JAX's arrays are never written: ``pre_activation`` is True or None, and ``amax`` None.

    Returns
    -------
    A jax.Array, or with ``pre_activation=True`` two. They have gradients (forward and reverse mode, of any order) with
    respect to a, b, c, bias, scale_a, scale_b and scale_out. Without jax_enable_x64, operands and results of 64 bits
    become those of 32 bits as in jax.numpy, with a warning where ``out_dtype`` names such a dtype.

    Raises
    ------
    ShapeError, DTypeError, InputError : a bad argument, while the function is traced.
    jax.errors.JaxRuntimeError : the product failed when the program ran; it has gemmhub's message.

    See Also
    --------
    gemmhub.matmul : the same for arrays that JAX does not trace.

    Examples
    --------
    >>> f = jax.jit(jax.grad(lambda w: gemmhub.jax.matmul(x, w, activation="gelu").sum()))
    """
    arguments: dict[str, Any] = dict(options)
    _refuse_written(arguments)
    arrays = a, b, *map(arguments.get, ARRAYS)
    if any(isinstance(x, Tracer) for x in (out, *arrays)) or not _beyond_programs(arrays, {"out": out, **arguments}):
        return _traced(a, b, out=out, **arguments)
    left: Any
    right: Any
    left, right, *rest = (x if x is None or isinstance(x, (bool, PackedB)) else jnp.asarray(x) for x in arrays)
    arguments |= {name: x for name, x in zip(ARRAYS, rest) if x is not None}
    if out is None:
        wanted = arguments.get("out_dtype")
        wanted = None if wanted is None else dtypes.as_dtype(wanted)
        dtype = dtypes.output_dtype(np.dtype(left.dtype), np.dtype(right.dtype), wanted)
        arguments["out_dtype"] = results.enabled(dtype, wanted is not None)
    return api.matmul(left, right, out=out, **arguments)


def _beyond_programs(arrays: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether a call has operands or options that a compiled program has not."""
    if options.get("out") is not None or options.get("stream") is not None:
        return True
    dtype = options.get("out_dtype")
    if dtype is not None and dtypes.as_dtype(dtype).kind == "c":
        return True
    return any(isinstance(x, PackedB) or (x is not None and jnp.iscomplexobj(x)) for x in arrays)


def _refuse_written(options: Mapping[str, Any]) -> None:
    """InputError for an array that a call would write: those of JAX are immutable."""
    if options.get("amax") is not None:
        raise InputError(
            "amax", "an array to write, with JAX", "None: JAX's arrays are immutable",
            "take abs(result).max() of the result without scale_out",
        )  # fmt: skip
    before = options.get("pre_activation")
    if before is not None and before is not True:
        description = "False" if before is False else "an array to write, with JAX"
        raise InputError(
            "pre_activation", description, "True or None", "pass True: it returns (result, pre-activation)"
        )


def _traced(a: Any, b: Any, *, out: Any = None, **options: Any) -> Any:
    """The product as a part of the program that JAX traces."""
    where = "in a function that JAX traces"
    _refuse_written(options)
    for name, value in (("out", out), ("stream", options.get("stream"))):
        if value is not None:
            raise InputError(name, f"given {where}", "None", "JAX allocates results and orders work")
    for name in NUMBERS:
        if isinstance(options.get(name), Tracer):
            raise InputError(
                name, "an array that JAX traces, for which products have no gradient", "numbers",
                f"multiply {'the product' if name == 'alpha' else 'c, with beta=1,'} by it",
            )  # fmt: skip
    if isinstance(b, PackedB):
        raise InputError("b", f"a packed operand {where}", "an array", "pass b itself")
    pre = options.pop("pre_activation", None) is True
    request = parse_request(options)  # type: ignore[arg-type]
    a, b = jnp.asarray(a), jnp.asarray(b)
    operand_dtypes = np.dtype(a.dtype), np.dtype(b.dtype)
    batch, m, n, k, product_shape = product_shapes(a.shape, b.shape)
    shape, _ = result_shape(product_shape, n, b.ndim, request.activation)
    dtype = results.result_dtype(*operand_dtypes, request)
    facts = Product(m, n, k, batch, a.ndim, b.ndim, product_shape, dtype, dtypes.compute_dtype(*operand_dtypes, dtype))
    operands = {name: _operand(name, jnp.asarray(x), facts) for name, x in request.operands.items()}
    # As in BLAS, c is not read where beta is 0, and the product is ignored where alpha is 0.
    operands = {
        name: x
        for name, x in operands.items()
        if not ((name == "c" and request.beta == 0) or (OPERANDS[name].role == "factor" and request.alpha == 0))
    }
    left = _padded(a[None] if a.ndim == 1 else a, facts)
    right = _padded(b[:, None] if b.ndim == 1 else b, facts)
    kept = request.in_force
    call = product.Call(dtype, request.alpha, request.beta, request.activation, tuple(kept.items()), pre)
    if request.symmetric:
        check_square(a.shape, b.shape)
        call = call._replace(options=(*call.options, ("symmetric", True)))
    result, *before = product.epilogue(call, left, right, operands)
    result = result.reshape(shape)
    return (result, before[0].reshape(product_shape)) if pre else result


def _operand(name: str, x: Array, facts: Product) -> Array:
    """An operand, checked, with the dimensions that :mod:`~gemmhub._doors.jax.product` names.

    Those in which c is broadcast keep size 1: its gradient is summed over them later.
    """
    like = np.broadcast_to(np.empty((), x.dtype), x.shape)  # of its shape and dtype, without its memory
    native, operand = described(name, like, facts)
    if isinstance(operand, Operand):
        own = like.reshape((1,) * (len(facts.shape) - x.ndim) + x.shape)
        return _padded(x.reshape(expand(own, facts.a_ndim, facts.b_ndim).shape), facts)
    if OPERANDS[name].role == "factor":
        return _padded(x.reshape(native.shape), facts)
    return x.reshape((-1, 1) if operand.axis == "m" else (1, -1))


def _padded(x: Array, facts: Product) -> Array:
    """``x`` with as many dimensions as the stacks of matrices have."""
    return x.reshape((1,) * (len(facts.batch) + 2 - x.ndim) + x.shape)


__all__ = ["jax", "matmul", "take"]
