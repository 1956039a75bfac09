"""The operations of array libraries that contractions are composed of, beside the product."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays import array_types
from gemmhub._arrays.host.operands import SEQUENCES
from gemmhub._arrays.torch import tensors
from gemmhub._base.wording import instance
from gemmhub.errors import DeviceError, InputError

Array = Any
Native = Any
"""A dtype as the library of an array names it: of torch for tensors, of NumPy for all others."""


def as_array(x: Any, argument: str) -> Array:
    """``x`` itself, or an ndarray of a number or of a nested sequence. InputError for what has no views."""
    if isinstance(x, (*SEQUENCES, np.generic)):
        return np.asarray(x)
    if isinstance(x, (np.ma.MaskedArray, np.matrix)):
        raise array_types.refusal(x, argument)
    if not (hasattr(x, "shape") and hasattr(x, "reshape") and (hasattr(x, "permute") or hasattr(x, "transpose"))):
        raise InputError(
            argument, f"{instance(type(x))}, which has no methods transpose and reshape",
            "arrays of NumPy, torch, CuPy, JAX and Dask, others with their methods, nested sequences of numbers",
            "convert it to one of these",
        )  # fmt: skip
    return x


def check_alike(operands: Sequence[Array], arguments: Sequence[str]) -> None:
    """DeviceError where some operands are tensors of torch and others are not, or tensors are on different devices."""
    of_torch = [hasattr(x, "permute") for x in operands]
    if any(of_torch) and not all(of_torch):
        i = of_torch.index(not of_torch[0])
        description = f"{arguments[0]} is {_named(operands[0])}, {arguments[i]} is {_named(operands[i])}"
        raise DeviceError(
            f"{arguments[0]}, {arguments[i]}", description, "operands of one array library", "convert one of them"
        )
    if all(of_torch):
        tensors.check_one_device(dict(zip(arguments, operands)))


def _named(x: Array) -> str:
    return "a tensor of torch" if hasattr(x, "permute") else instance(type(x))


def transposed(x: Array, order: Sequence[int]) -> Array:
    """The axes of ``x`` in another order, as a view where the library has views."""
    if [*order] == [*range(len(order))]:
        return x
    return x.permute(*order) if hasattr(x, "permute") else x.transpose(tuple(order))


def diagonal(x: Array, first: int, second: int) -> Array:
    """The diagonal of two axes of ``x``, as its last axis."""
    return x.diagonal(0, first, second) if hasattr(x, "diagonal") else np.diagonal(x, 0, first, second)


def summed(x: Array, axes: tuple[int, ...], dtype: Native) -> Array:
    """The sum over some axes, in ``dtype``."""
    with _silent(x):
        return x.sum(axes, dtype=dtype)


def cast(x: Array, dtype: Native) -> Array:
    """``x`` in ``dtype``; itself where it has that already."""
    if x.dtype == dtype:
        return x
    if hasattr(x, "permute"):
        return x.to(dtype)
    with _silent(x):
        return x.astype(dtype)


def multiplied(a: Array, b: Array) -> Array:
    """The product element by element, of one dtype."""
    with _silent(a):
        return a * b


def _silent(x: Array) -> AbstractContextManager[object]:
    """The context in which NumPy does not warn of infinities and NaN: they are results."""
    return nullcontext() if hasattr(x, "permute") else np.errstate(all="ignore")


def conjugate(x: Array) -> Array:
    """The complex conjugate; ``x`` itself where it is real. A product reads no tensor that torch conjugates lazily."""
    if hasattr(x, "permute"):
        return x.conj_physical() if x.dtype.is_complex else x
    return x.conj() if x.dtype.kind == "c" else x


def by_stride(x: Array, axes: Sequence[int]) -> list[int]:
    """Axes of ``x``, those with larger strides first: the order in which most of them merge without a copy."""
    if len(axes) < 2:
        return [*axes]
    strides = x.stride() if hasattr(x, "permute") else getattr(x, "strides", None)
    return [*axes] if strides is None else sorted(axes, key=lambda axis: -abs(strides[axis]))


def _in_order(x: Array, axes: Sequence[int]) -> list[int]:
    return [*axes]


by_stride._torchdynamo_inline = _in_order  # type: ignore[attr-defined]  # torch's compiler sorts no symbolic strides


def result_dtype(operands: tuple[Native, ...], wanted: Any) -> Native:
    """The dtype of the contraction of all operands: that of their products from left to right, or ``wanted``.

    That of one operand is that of its product by itself. Raises DTypeError as :func:`gemmhub.matmul` does.
    """
    own = [dtypes.as_dtype(x, "operands") for x in operands]
    if wanted is not None:
        ordered = sorted(own, key=lambda x: (x.kind == "c", dtypes.info(x).inexact, x.kind != "b"))
        return _native(dtypes.output_dtype(ordered[-1], ordered[-1], dtypes.as_dtype(wanted)), operands[0])
    dtype = own[0]
    for x in own[1:] or own:
        dtype = dtypes.result_dtype(dtype, x)
    return _native(dtype, operands[0])


def accumulator(a: Native, b: Native, result: Native) -> Native:
    """The dtype of sums on the way to a ``result``: results of integers on the way to complex numbers are real."""
    left, right, out = (dtypes.as_dtype(x) for x in (a, b, result))
    if out.kind == "c" and not (dtypes.info(left).inexact or dtypes.info(right).inexact):
        out = np.dtype(np.float64)
    return _native(dtypes.compute_dtype(left, right, out), a)


def _native(dtype: Any, like: Native) -> Native:
    if isinstance(like, np.dtype):
        return dtype
    from gemmhub._arrays.torch.operands import torch_dtypes

    return torch_dtypes()[1][dtype]


# What torch.compiler.assume_constant_result does: torch's compiler cannot trace NumPy's dtypes.
result_dtype._dynamo_marked_constant = accumulator._dynamo_marked_constant = True  # type: ignore[attr-defined]
