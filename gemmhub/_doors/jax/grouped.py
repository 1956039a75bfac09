"""Grouped products of JAX: ``gemmhub.jax.ragged_dot``, and ``gemmhub.grouped_matmul`` in functions that JAX traces.

A grouped product is a primitive, on CPUs. Its gradients are grouped products by the same offsets, whatever its form, so
that they have gradients of any order (in reverse mode) themselves. What maps them (vmap, jacrev, hessian) is refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from gemmhub._base.wording import unexpected
from gemmhub._call.options import request as parse_request
from gemmhub._doors.jax import product, results, target
from gemmhub._grouped import forms
from gemmhub._grouped import offsets as ends
from gemmhub._grouped.call import check_names
from gemmhub._grouped.matmul import multiply
from gemmhub.errors import DTypeError, InputError, NoBackendError, ShapeError

Array = Any

_OPTIONS = ("out_dtype", "alpha", "precision", "reproducible", "backend")


class Call(NamedTuple):
    """The static parameters of a grouped product."""

    dtype: Any
    alpha: complex
    options: tuple[tuple[str, Any], ...]
    sized: bool = False
    """Whether the offsets are sums of the sizes of groups, of which errors speak then."""


grouped = Primitive("gemmhub_grouped")
grouped.def_impl(jax.jit(grouped.bind, static_argnames=("call",)))


@grouped.def_abstract_eval
def _abstract(a: Any, b: Any, *offsets: Any, call: Call) -> Any:
    form = forms.form_of(a.shape, b.shape, bool(offsets))
    groups, m, n, _ = forms.sizes(form, a.shape, b.shape)
    groups = offsets[0].shape[0] if groups is None else groups
    return jax.core.ShapedArray(forms.result_shape(form, groups, m, n), call.dtype)


def _lowered(context: Any, *operands: Any, call: Call) -> Any:
    name = target.register("gemmhub_grouped_cpu", _run, "cpu")
    number = target.number_of(("grouped", call.alpha, call.options, call.sized))
    return jax.ffi.ffi_lowering(name)(context, *operands, call=number)


def _refused(context: Any, *operands: Any, call: Call) -> NoReturn:
    raise NoBackendError("no backend multiplies groups by offsets on the device yet; run the function on the CPU")


def _run(number: int, *buffers: Any) -> None:
    """Run a call of the compiled program on its buffers."""
    _, alpha, options, sized = target.facts(number)
    *operands, out = target.views(buffers)
    a, b, *offsets = operands
    arguments = dict(options) if alpha == 1 else {**dict(options), "alpha": alpha}
    try:
        if sized:
            _check_sums(offsets[0], _extent(forms.form_of(a.shape, b.shape, True), a, b))
        multiply(a, b, offsets[0] if offsets else None, out, arguments)
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


mlir.register_lowering(grouped, _lowered, platform="cpu")
mlir.register_lowering(grouped, _refused, platform="cuda")


def _mapped(operands: Any, dims: Any, *, call: Call) -> NoReturn:
    raise InputError(
        "a, b", "a dimension that vmap maps over, of a grouped product", "arrays that are not mapped: not implemented",
        "call the function once for each (jax.lax.map)",
    )  # fmt: skip


batching.primitive_batchers[grouped] = _mapped


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def differentiable(call: Call, a: Array, b: Array, offsets: Array | None) -> Array:
    """The grouped product, with gradients."""
    return grouped.bind(a, b, *[] if offsets is None else [offsets], call=call)


def _forward(call: Call, a: Array, b: Array, offsets: Array | None) -> tuple[Array, Any]:
    return differentiable(call, a, b, offsets), (a, b, offsets)


def _backward(call: Call, kept: Any, cotangent: Array) -> tuple[Any, Any, None]:
    a, b, offsets = kept

    def gradient(x: Array, y: Array, like: Array) -> Any:
        if not jnp.issubdtype(like.dtype, jnp.inexact):
            return None
        return differentiable(call._replace(dtype=np.dtype(like.dtype)), *product._alike(x, y), offsets)

    return gradient(cotangent, b.swapaxes(-1, -2), a), gradient(a.swapaxes(-1, -2), cotangent, b), None


differentiable.defvjp(_forward, _backward)


def _ends(a: Array, b: Array, offsets: Any) -> Array:
    """The offsets of a product of a and b as a part of the program: numbers are read and checked here, arrays that JAX
    traces when the program runs.
    """
    form = forms.form_of(a.shape, b.shape, True)
    groups = forms.sizes(form, a.shape, b.shape)[0]
    if not isinstance(offsets, Tracer):
        read = ends.read(offsets, groups, _extent(form, a, b), form.noun)
        return jnp.asarray(np.asarray(read, np.int64))  # without jax_enable_x64 int32, as sizes are
    if offsets.dtype not in ends.DTYPES:
        raise DTypeError("offsets", f"dtype {offsets.dtype}", "int32, int64", "convert them with astype")
    if offsets.ndim != 1:
        raise ShapeError("offsets", f"shape {offsets.shape}", "one dimension: an end for each group")
    if groups is not None and offsets.shape[0] != groups:
        raise ShapeError("offsets", f"{offsets.shape[0]} ends for {groups} groups", f"{groups} ends")
    return offsets


def _extent(form: forms.Form, a: Array, b: Array) -> int:
    """The size of the dimension that offsets divide."""
    size: int = b.shape[-1] if form.a is None else a.shape[form.a]
    return size


def _sums(group_sizes: Any, rows: int, groups: int) -> Array:
    """The offsets of groups of these sizes. Errors name the sizes, which are checked here unless JAX traces them."""
    sizes = group_sizes if isinstance(group_sizes, jax.Array) else np.asarray(group_sizes)
    remedy = "pass the number of rows of each group"
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise InputError("group_sizes", f"dtype {sizes.dtype}", "integers", remedy)
    if sizes.ndim != 1:
        raise ShapeError("group_sizes", f"shape {sizes.shape}", "one dimension: a size for each group", remedy)
    if sizes.shape[0] != groups:
        allowed = f"{groups} sizes, one for each matrix of rhs"
        raise ShapeError("group_sizes", f"{sizes.shape[0]} sizes for {groups} groups", allowed, remedy)
    # A sum that wraps is below the one before it, which is an error where the sums are read.
    if isinstance(sizes, Tracer):
        return jnp.cumsum(sizes, dtype=jax.dtypes.canonicalize_dtype(np.int64))
    sums = np.cumsum(np.asarray(sizes), dtype=np.int64)
    _check_sums(sums, rows)
    return sums


def _check_sums(sums: Any, rows: int) -> None:
    """Raise InputError for sums of the sizes of groups that are not in order, from 0 to ``rows``."""
    before = 0
    for i, sum_ in enumerate(sums.tolist()):
        if not before <= sum_ <= rows:
            wrong = f"beyond the {rows} rows of lhs" if sum_ > rows else f"below {before}, that of the groups before it"
            raise InputError(
                "group_sizes", f"group {i}: the sum of the sizes up to it, {sum_}, is {wrong}",
                f"sizes of 0 or more, whose sum is at most {rows}", "pass the number of rows of each group",
            )  # fmt: skip
        before = sum_


_MASKED = "apply it to the result, and mask what is beyond the last end"
_REMEDIES = {
    "bias": _MASKED, "activation": _MASKED, "c": "add beta * c to the result; rows beyond the last end are zeros in it",
}  # fmt: skip
"""The remedy for each option that is refused."""


def traced(a: Any, b: Any, offsets: Any = None, *, out: Any = None, **options: Any) -> Array:
    """The product as a part of the program that JAX traces."""
    where = "in a function that JAX traces"
    check_names(options)
    for name, x in {"out": out, **options}.items():
        if name not in _OPTIONS and x is not None:
            remedy = _REMEDIES.get(name, f"leave {name}= out")
            raise InputError(name, f"given to a grouped product {where}", "None: not implemented there", remedy)
    return _program(a, b, offsets, options)


def _program(a: Any, b: Any, offsets: Any, options: dict[str, Any], sized: bool = False) -> Array:
    """The product as a part of the program, with options that it can have."""
    if isinstance(options.get("alpha"), Tracer):
        raise InputError("alpha", "an array that JAX traces", "numbers", "multiply the product by it")
    parsed = parse_request(options)  # type: ignore[arg-type]
    a, b = jnp.asarray(a), jnp.asarray(b)
    dtype = results.result_dtype(np.dtype(a.dtype), np.dtype(b.dtype), parsed)
    if offsets is not None:
        offsets = _ends(a, b, offsets)
    return differentiable(Call(dtype, parsed.alpha, tuple(parsed.in_force.items()), sized), a, b, offsets)


def ragged_dot(
    lhs: Array, rhs: Array, group_sizes: Array, *, preferred_element_type: Any = None, precision: str | None = None,
    reproducible: str | None = None, backend: str | None = None, **others: NoReturn,
) -> Array:  # fmt: skip
    """Compute :func:`jax.lax.ragged_dot` by :func:`gemmhub.grouped_matmul`: rows by the matrix of their group.

    The product is a call of the compiled program, on CPUs; nothing is copied.

    Parameters
    ----------
    lhs : array of shape (m, k).
    rhs : array of shape (g, k, n).
    group_sizes : integers of shape (g,): the rows of each group. Rows beyond their sum are not read, and are zeros in
        the result.
    preferred_element_type : dtype of the result; by default that of gemmhub's table.
    precision, reproducible, backend : as of :func:`gemmhub.matmul`.

    Returns
    -------
    A jax.Array of shape (m, n), with gradients with respect to lhs and rhs in reverse mode, of any order.
    Functions of JAX that map or differentiate forwards (vmap, jacrev, jvp, jacfwd, hessian) are refused.

    Raises
    ------
    ShapeError, DTypeError, InputError : a bad argument, while the function is traced; an array that vmap maps over.
    NoBackendError : a program for a GPU.
    jax.errors.JaxRuntimeError : group_sizes that are negative, or have more rows than lhs, when the program runs.

    See Also
    --------
    gemmhub.grouped_matmul : the other forms.
    gemmhub.jax.matmul : one product.

    Examples
    --------
    >>> f = jax.jit(jax.grad(lambda w: gemmhub.jax.ragged_dot(x, w, jnp.array([4], jnp.int32)).sum()))
    """
    for name in others:
        hint = "group_offset is not implemented" if name == "group_offset" else ""
        raise unexpected(name, ("preferred_element_type", "precision", "reproducible", "backend"), hint)
    if jnp.ndim(lhs) != 2 or jnp.ndim(rhs) != 3:
        raise ShapeError("lhs, rhs", f"shapes {jnp.shape(lhs)} and {jnp.shape(rhs)}", "(m, k) and (g, k, n)")
    sums = _sums(group_sizes, jnp.shape(lhs)[0], jnp.shape(rhs)[0])
    options = {"out_dtype": preferred_element_type, "precision": precision, "reproducible": reproducible}
    return _program(lhs, rhs, sums, {**options, "backend": backend}, sized=True)


__all__ = ["jax", "ragged_dot", "traced"]
