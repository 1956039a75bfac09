"""The function ``quantize``: an array as narrow elements and the float32 scales that multiply them.

Written once for the operations that NumPy, torch and JAX share; ``library`` is the namespace of these. The computation
stays on the array's device, and needs temporary arrays of float32 of its size. Tensors on a device go to a backend that
quantizes them, where there is one (:mod:`gemmhub._choice.quantizers`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from math import nan
from typing import Any, TypeVar, overload

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays import array_types
from gemmhub._arrays.host.operands import SEQUENCES
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.operands import torch_dtypes
from gemmhub._base.guard import array_memory_errors
from gemmhub._base.wording import did_you_mean, instance
from gemmhub._choice import quantizers
from gemmhub.dtypes import DType
from gemmhub.errors import DTypeError, InputError, ShapeError
from gemmhub.operands import BLOCK
from gemmhub.scale_layouts import spread

__all__ = ["quantize"]

Array = Any
A = TypeVar("A")
"""The type of the array, which the results have."""

DTYPES = ("float8_e4m3fn", "float8_e5m2", "int8")
GRANULARITIES = ("tensor", "row", "column", "block")
BLOCKS = ((1, BLOCK), (BLOCK, 1), (BLOCK, BLOCK))
"""Rows and columns of the blocks that share a scale: of a along k; of b along k; of b along k and n."""

_Groups = tuple[tuple[int, int], tuple[int, int]]
"""The number of groups, and the length of one, along rows and along columns."""


@overload
def quantize(
    x: complex | Sequence[Any], dtype: Any, granularity: str = "tensor", *, block: tuple[int, int] | None = None,
    scale: Array | None = None,
) -> tuple[Array, Array]: ...  # fmt: skip
@overload
def quantize(
    x: A, dtype: Any, granularity: str = "tensor", *, block: tuple[int, int] | None = None, scale: A | None = None
) -> tuple[A, A]: ...
def quantize(
    x: Array, dtype: Any, granularity: str = "tensor", *, block: tuple[int, int] | None = None,
    scale: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Quantize an array: return narrow elements ``q`` and float32 scales such that ``x`` is about ``q * scale``.

    The largest finite magnitude that shares a scale becomes the largest number of the dtype; elements round to the
    nearest, ties to even. Infinities saturate. NaN stays NaN in float8; in int8 it makes the scale of its group NaN,
    so that products stay NaN. A group of zeros has the scale 1; no scale is subnormal.

    Parameters
    ----------
    x : array of real floating numbers of NumPy, torch or JAX: a vector, a matrix or a stack of matrices; or a nested
        sequence. A traced array of JAX, too.
    dtype : float8_e4m3fn, float8_e5m2 or int8 (-127 to 127): a dtype or its name.
    granularity : what shares a scale: "tensor", all of x; "row", each row (activations, per-token); "column", each
        column (weights of shape (k, n), per-channel); "block", each block of ``block`` elements. Only "tensor" takes
        vectors.
    block : rows and columns of a block: (1, 128), the default (a along k); (128, 1) (b along k); (128, 128) (b along k
        and n).
    scale : a scale to use in place of one computed from x, of the shape and library that would be returned: static and
        delayed scaling. Elements beyond its range saturate. Its values are not checked, which would synchronize a
        device: they must be finite and not 0. By 0 elements become the largest number, or NaN (0 in int8) for 0; by an
        infinity 0, and by NaN NaN (0 in int8), and ``q * scale`` is NaN.

    Returns
    -------
    q : array of ``dtype`` and of x's shape, library and device.
    scale : float32 array, of shape () for "tensor", (..., m, 1) for "row", (..., 1, n) for "column", and of one element
        for each block for "block": as :func:`matmul` takes it in ``scale_a`` or ``scale_b``. ``scale`` itself if given.

    Raises
    ------
    DTypeError : a dtype of x that is not real and floating, a target that is none of the three, a scale that is not
        float32.
    ShapeError : too few dimensions for the granularity, or a scale of another shape.
    InputError : an unknown granularity or block, a tensor that requires grad, an object that is no such array.
    AllocationError : memory for the results or the temporary arrays is missing.

    See Also
    --------
    matmul : the product that takes both in ``scale_a`` and ``scale_b``.

    Notes
    -----
    For finite x within the scale's range ``|x - q * scale| <= max(u |x|, h scale) + 2**-22 |x| + 2**-126``, with u =
    2**-4, 2**-3 and 0, h = 2**-10, 2**-17 and 1/2 for the three dtypes: ``gemmhub.accuracy.quantization_bound``. There
    is no gradient: torch's tensors that require grad are refused, JAX's gradient of x is 0.

    Examples
    --------
    >>> x, w = np.eye(4, dtype=np.float32), np.full((4, 2), 0.5, np.float32)
    >>> q, scale_a = gemmhub.quantize(x, "int8", "row")
    >>> p, scale_b = gemmhub.quantize(w, "int8", "column")
    >>> scale_a.shape, scale_b.shape
    ((4, 1), (1, 2))
    >>> bool(np.allclose(gemmhub.matmul(q, p, out_dtype="float32", scale_a=scale_a, scale_b=scale_b), x @ w))
    True
    """
    target = _target(dtype)
    x, library = _array(x, "x")
    wide = _wide(x.dtype)
    if wide is None:
        raise DTypeError("x", f"dtype {x.dtype}", "real floating dtypes", "convert it, for example to float32")
    groups = _groups(tuple(x.shape), granularity, block)
    if scale is not None:
        scale = _checked(scale, x, groups, granularity, library)
    if hasattr(library, "nn") and x.device.type != "cpu" and not _compiling(library):
        shape = _shape(x, groups, granularity)
        word = granularity if granularity != "block" else "{}x{}".format(*(block or (1, BLOCK)))
        made = quantizers.quantized(x, scale, target, word, shape)
        if made is not None:
            return made if scale is None else (made[0], scale)
    run = _quantized if library is np or hasattr(library, "nn") else _compiled(sys.modules["jax"])
    if not (hasattr(library, "nn") and _compiling(library)):
        run = array_memory_errors(run)
    with _silent(library):
        q, computed = run(x, scale, wide, target, groups, granularity == "tensor", library)
    return q, computed if scale is None else scale


def _quantized(
    x: Array, scale: Array | None, wide: DType, target: DType, groups: _Groups, whole: bool, library: Any
) -> tuple[Array, Array]:  # fmt: skip
    """The elements and scales of checked arguments, computed in the dtype ``wide``; ``whole``: one scale for all."""
    values = _cast(x, wide, library)
    if scale is None:
        scale = _scale(values.reshape(1, -1) if whole else values, groups, target, library)
        scale = scale.reshape(()) if whole else scale
    factors = spread(_cast(scale, wide, library), tuple(x.shape))
    # NumPy's own choice of a memory order takes that of the factors as well.
    ratio = np.divide(values, factors, out=np.empty_like(values)) if library is np else values / factors
    return _cast(_rounded(ratio, target, library), target, library), scale


@cache
def _compiled(jax: Any) -> Any:
    """The computation as one compiled function: by itself JAX compiles each of its operations for each shape."""
    return jax.jit(_quantized, static_argnums=(2, 3, 4, 5, 6))


def _groups(shape: tuple[int, ...], granularity: object, block: object) -> _Groups:
    """The groups of elements that share a scale; a length of at least 1, so that a group always has a largest."""
    if granularity not in GRANULARITIES:
        hint = did_you_mean(granularity, GRANULARITIES)
        raise InputError("granularity", repr(granularity), ", ".join(GRANULARITIES), hint)
    if block is not None and granularity != "block":
        raise InputError("block", f"given for granularity {granularity!r}", "granularity 'block'", "leave one out")
    if granularity == "tensor":
        return (1, 1), (1, max(1, int(np.prod(shape, dtype=np.int64))))
    if len(shape) < 2:
        raise ShapeError("x", f"shape {shape}", f"matrices for granularity {granularity!r}", 'use "tensor"')
    rows, columns = shape[-2:]
    if granularity == "row":
        return (rows, 1), (1, max(1, columns))
    if granularity == "column":
        return (1, max(1, rows)), (columns, 1)
    sizes = (1, BLOCK) if block is None else block
    if sizes not in BLOCKS:
        small = isinstance(sizes, tuple) and not {16, 32}.isdisjoint(sizes)
        raise InputError(
            "block", repr(block), ", ".join(map(str, BLOCKS)),
            "blocks of 32 and 16 (MX, NV formats) have scales of 8 bits, which no product here takes" if small
            else "pass rows and columns of a block",
        )  # fmt: skip
    of_rows, of_columns = ((size, 1) if n == 1 else (max(1, -(-size // n)), n) for size, n in zip(shape[-2:], sizes))
    return of_rows, of_columns


def _shape(x: Array, groups: _Groups, granularity: str) -> tuple[int, ...]:
    """The shape of the scales."""
    return () if granularity == "tensor" else (*x.shape[:-2], groups[0][0], groups[1][0])


def _scale(x: Array, groups: _Groups, target: DType, library: Any) -> Array:
    """The scale of each group: its largest finite magnitude over the largest number of the dtype."""
    unread = nan if target.kind == "i" else 0.0
    size = abs(_finite(x, unread, library))
    (row_count, row_length), (column_count, column_length) = groups
    missing = row_count * row_length - size.shape[-2], column_count * column_length - size.shape[-1]
    if any(missing):
        size = _padded(size, *missing, library)
    size = size.reshape(*size.shape[:-2], row_count, row_length, column_count, column_length)
    largest = size.amax((-3, -1)) if hasattr(size, "amax") else size.max((-3, -1))
    # A subnormal scale is 0 on devices that flush subnormal numbers. The limits are literals because torch's compiler
    # makes inputs of global floats with dynamic=True, which the graphs of two autograd.Functions cannot share.
    scale = library.clip(largest / _largest(target), 2.0**-126, (2 - 2.0**-23) * 2.0**127)
    return _cast(library.where(largest == 0, 1.0, scale), np.dtype(np.float32), library)


def _finite(x: Array, of_nan: float, library: Any) -> Array:
    """``x`` with zeros in place of infinities, and ``of_nan`` of NaN."""
    if library is np:  # whose nan_to_num takes more passes
        return np.where(np.isinf(x) if of_nan != of_nan else ~np.isfinite(x), 0.0, x)
    return library.nan_to_num(x, nan=of_nan, posinf=0.0, neginf=0.0)


def _padded(x: Array, rows: int, columns: int, library: Any) -> Array:
    """``x`` with zeros after its last rows and columns."""
    if hasattr(library, "pad"):
        return library.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, rows), (0, columns)])
    return library.nn.functional.pad(x, (0, columns, 0, rows))


def _rounded(x: Array, target: DType, library: Any) -> Array:
    """``x`` within the range of the dtype, in float32; int8 has whole numbers, and 0 for NaN."""
    largest = _largest(target)
    x = _cast(library.clip(x, -largest, largest), np.dtype(np.float32), library)
    return library.round(_finite(x, 0.0, library)) if target.kind == "i" else x


def _checked(scale: Array, x: Array, groups: _Groups, granularity: str, library: Any) -> Array:
    """The caller's scale; InputError where it is not what would be returned."""
    scale, other = _array(scale, "scale")
    if other is not library or (hasattr(library, "nn") and scale.device != x.device):
        raise InputError("scale", f"{instance(type(scale))} for {instance(type(x))}", "an array like x", "convert it")
    if str(scale.dtype).rpartition(".")[2] != "float32":
        raise DTypeError("scale", f"dtype {scale.dtype}", "float32", "convert it: its rounding would be silent here")
    shape = _shape(x, groups, granularity)
    if tuple(scale.shape) != shape and not (granularity == "tensor" and all(n == 1 for n in scale.shape)):
        raise ShapeError("scale", f"shape {tuple(scale.shape)}", f"shape {shape}")
    return scale


def _target(dtype: Any) -> DType:
    try:
        return _known_target(dtype)
    except TypeError:  # it has no hash, or is none of the three
        return _known_target.__wrapped__(dtype)


@lru_cache(maxsize=64)
def _known_target(dtype: Any) -> DType:
    name = dtype if isinstance(dtype, str) else str(getattr(dtype, "name", dtype)).rpartition(".")[2]
    if "e8m0" in name or "float4" in name or "int4" in name:
        raise DTypeError(
            "dtype", f"{name}: formats of 4 bits, and scales of 8 bits (MX, NV), are not supported", ", ".join(DTYPES)
        )
    try:
        target = dtypes.as_dtype(dtype, "dtype")
    except DTypeError as error:
        raise DTypeError("dtype", error.given, ", ".join(DTYPES)) from None
    if target.name not in DTYPES:
        raise DTypeError("dtype", str(target), ", ".join(DTYPES))
    return target


def _array(x: Any, argument: str) -> tuple[Array, Any]:
    """An array without its gradient, and the namespace of its operations."""
    cls: Any = type(x)
    if tensors.is_tensor(x):
        torch = sys.modules["torch"]
        if x.requires_grad and torch.is_grad_enabled():
            raise InputError(
                argument, "a tensor that requires grad: quantization has no gradient", "tensors that do not",
                f"pass {argument}.detach(), or call under torch.no_grad()",
            )  # fmt: skip
        if x.layout is not torch.strided:
            raise InputError(argument, f"layout {x.layout}", "dense tensors", "make it dense (x.to_dense())")
        return x, torch
    if array_types.library_name(cls) == "jax" and hasattr(x, "dtype"):
        jax = sys.modules["jax"]
        return jax.lax.stop_gradient(x), jax.numpy
    if isinstance(x, np.ndarray) and not array_types.numbers_alone(cls, False):
        raise array_types.refusal(x, argument)
    if isinstance(x, (np.ndarray, np.generic, *SEQUENCES)):
        return np.asarray(x), np
    raise InputError(argument, instance(cls), "arrays of NumPy, torch and JAX, nested sequences", "convert it")


def _wide(dtype: Any) -> DType | None:
    """The dtype that elements of NumPy's or torch's ``dtype`` are computed in; None for one that is not quantized."""
    known = dtype if isinstance(dtype, np.dtype) else torch_dtypes()[0].get(dtype)
    return None if known is None else _wide_of(known)


@lru_cache(maxsize=64)
def _wide_of(known: DType) -> DType | None:
    if not known.isnative or known.name not in dtypes.SUPPORTED:
        return None
    kind = dtypes.info(known).kind
    return np.dtype(np.float64 if known.itemsize == 8 else np.float32) if kind in ("float", "float8") else None


def _largest(dtype: DType) -> float:
    """The largest number of a dtype."""
    return dtypes.info(dtype).largest


def _of_torch(dtype: DType) -> Any:
    """torch's name of a dtype."""
    return torch_dtypes()[1][dtype]


_function: Any
for _function in (_target, _wide, _largest, _of_torch):
    # What torch.compiler.assume_constant_result does: torch's compiler cannot trace NumPy's dtypes.
    _function._dynamo_marked_constant = True


def _cast(x: Array, dtype: DType, library: Any) -> Array:
    """``x`` in another dtype; itself where it has that already."""
    if hasattr(library, "nn"):
        return x.to(_of_torch(dtype))
    return x if x.dtype == dtype else x.astype(dtype)


def _compiling(torch: Any) -> bool:
    """Whether torch's compiler traces this thread; not known before torch 2.3."""
    return bool(getattr(getattr(torch, "compiler", None), "is_compiling", bool)())


def _silent(library: Any) -> AbstractContextManager[object]:
    """The context in which NumPy does not warn of infinities and NaN."""
    return np.errstate(all="ignore") if library is np else nullcontext()
