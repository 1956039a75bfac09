"""Products and sums that compose the gradients of products: each is rounded once, to the dtype of its operand."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import torch

from gemmhub import dtypes
from gemmhub._arrays.torch.operands import torch_dtypes

Tensor = Any
Multiply = Callable[..., Tensor]
"""``matmul`` of gemmhub, or its operator of torch where calls are traced."""

DIRECT = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Dtypes that gradients are computed in. The gradient of an operand of another one (float8) is rounded afterwards."""


def column_major(strides: tuple[int, ...]) -> bool:
    """Whether columns are contiguous: a gradient takes the layout of its operand, which saves a copy."""
    return len(strides) > 1 and bool(strides[-2] == 1 and strides[-1] != 1)


def wide(dtype: Any) -> Any:
    """The dtype of sums that are rounded to ``dtype`` at the end."""
    return dtype if dtype.itemsize > 2 else torch.float32


def left(
    g: Tensor, b: Tensor, batch: Any, dtype: Any, transposed: bool, summed_product: Callable[..., Tensor]
) -> Tensor:
    """``g @ b^H``, summed over the batch dimensions that the left operand lacks."""
    g, b = alike(g, b)
    if transposed:
        return summed_product(conjugate(b), g.transpose(-2, -1), batch, dtype).transpose(-2, -1)
    return summed_product(g, conjugate(b).transpose(-2, -1), batch, dtype)


def right(
    a: Tensor, g: Tensor, batch: Any, dtype: Any, transposed: bool, summed_product: Callable[..., Tensor]
) -> Tensor:
    """``a^H @ g``, summed over the batch dimensions that the right operand lacks.

    Where it lacks all of them, the sum is part of the product, whose k runs over the rows of all matrices of the batch.
    """
    a, g = alike(a, g)
    if not batch and a.dim() > 2 and a.shape[:-2] == g.shape[:-2]:
        rows = prod(a.shape[:-1])  # not -1, which is ambiguous where the other size is 0
        a, g = a.reshape(rows, a.shape[-1]), g.reshape(rows, g.shape[-1])
    if transposed:
        return summed_product(g.transpose(-2, -1), conjugate(a), batch, dtype).transpose(-2, -1)
    return summed_product(conjugate(a).transpose(-2, -1), g, batch, dtype)


def summed(x: Tensor, y: Tensor, batch: Any, dtype: Any, multiply: Multiply, options: dict[str, Any]) -> Tensor:
    """``x @ y`` with these batch dimensions and this dtype; sums are rounded once, at the end."""
    if x.dim() == y.dim() == 2 and x.dtype is y.dtype is dtype and dtype in DIRECT:
        return multiply(x, y, **options)
    alone = x.dim() == y.dim() == 2 or tuple(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])) == tuple(batch)
    natural = _result(x.dtype, y.dtype)
    if dtype not in DIRECT or (natural.is_complex and not dtype.is_complex):
        wanted = natural
    elif alone or dtype.itemsize > 2:
        wanted = dtype
    else:
        wanted = torch.float32
    if wanted is not natural:
        options = {**options, "out_dtype": wanted}
    result = multiply(x, y, **options)
    return result if alone and result.dtype is dtype else fold(result, (*batch, *result.shape[-2:]), dtype)


def fold(x: Tensor, shape: Any, dtype: Any, factor: Any = 1) -> Tensor:
    """``factor`` times ``x``, summed to a shape that broadcasts to its own, and rounded once to ``dtype``."""
    sums = dtype if dtype in DIRECT and dtype.itemsize > x.dtype.itemsize else x.dtype
    sums = sums if factor == 1 else wide(sums)  # (torch itself sums 16 bits in float32)
    if tuple(x.shape) != tuple(shape):
        extra = x.dim() - len(shape)
        ones = [i + extra for i, size in enumerate(shape) if size == 1 and x.shape[i + extra] != 1]
        x = x.sum([*range(extra), *ones], keepdim=bool(ones), dtype=sums)
        x = x.reshape(shape) if ones else x
    if factor != 1:
        x = x.to(sums if dtypes.single(factor) else torch.promote_types(sums, torch.float64)) * factor
    if x.is_complex() and not dtype.is_complex:
        x = x.real
    return x if x.dtype is dtype else x.to(dtype)


def rounded(x: Tensor, dtype: Any) -> Tensor:
    """``x`` as a result of ``dtype``, which saturates in float8, where torch's own conversion may give NaN."""
    if dtype.itemsize == 1 and dtype.is_floating_point:
        largest = torch.finfo(dtype).max
        x = x.clamp(-largest, largest)
    return x.to(dtype)


def alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors in their common wider dtype: a saved operand may be narrower than the gradient, or wider."""
    if x.dtype is y.dtype:
        return x, y
    common = _result(x.dtype, y.dtype)
    return x.to(common), y.to(common)


@lru_cache(maxsize=256)
def _result(x: Any, y: Any) -> Any:
    """torch's dtype of a product of the two, where float8 counts as the other one."""
    to_ours, to_torch = torch_dtypes()
    float8 = [d.itemsize == 1 and d.is_floating_point for d in (x, y)]
    if float8[0] or float8[1]:
        return y if float8[0] else x
    return to_torch[dtypes.result_dtype(to_ours[x], to_ours[y])]


def conjugate(x: Tensor) -> Tensor:
    return x.conj().resolve_conj() if x.is_complex() else x


def conj(x: Any) -> Any:
    return x.conjugate() if isinstance(x, complex) else x
