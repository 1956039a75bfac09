"""The mode ``gemmhub.torch.use``: a block in which gemmhub computes torch's own products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gemmhub import api
from gemmhub._arrays.torch import tensors
from gemmhub._doors.einsum import contraction

Tensor = Any

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Dtypes whose products have the same dtype in torch and in gemmhub. (torch multiplies int8 modulo 256.)"""


class use(TorchFunctionMode):  # noqa: N801  (a block reads: with gemmhub.torch.use())
    """Compute torch's products by gemmhub in a ``with`` block, in this thread only.

    These are torch.matmul, mm, bmm, mv, addmm, baddbmm (and the methods of tensors), ``@``, einsum of two operands, and
    torch.nn.functional.linear, on dense floating or complex tensors of one dtype. torch runs every other call, and
    every call that it refuses. Gradients are recorded as usual; gemmhub computes their products inside and outside of
    the block.

    Parameters
    ----------
    precision, deterministic, backend : as of :func:`gemmhub.matmul`, for each product in the block.

    Raises
    ------
    NoBackendError : a product that no backend here can compute. There is no fallback to torch.

    Examples
    --------
    >>> x = torch.randn(64, 32, dtype=torch.float64)
    >>> with gemmhub.torch.use():
    ...     y = x @ x.T
    """

    def __init__(
        self, *, precision: str | None = None, deterministic: bool = False, backend: str | None = None
    ) -> None:
        super().__init__()
        given = {"precision": precision, "deterministic": deterministic, "backend": backend}
        self.options: dict[str, Any] = {name: x for name, x in given.items() if x}

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        named = named or {}
        product = _PRODUCTS.get(function)
        if product is not None:
            call = product(*arguments, **named)
            if call is not None:
                a, b, options = call
                return api.matmul(a, b, **{**self.options, **options})
        elif function in _EINSUM:
            result = _einsum(arguments, self.options)
            if result is not None:
                return result
        return function(*arguments, **named)


Call = tuple[Tensor, Tensor, dict[str, Any]]
"""Operands and options of gemmhub's product that is equivalent to a call of torch."""


def _alike(*found: Any) -> bool:
    """Whether these are dense tensors on one device whose product has the same dtype in torch and gemmhub."""
    first = found[0]
    for x in found:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_nested or x.device != first.device:
            return False
        if x.dtype not in _FLOATING:
            return False
        if not torch.compiler.is_compiling() and (x.is_conj() or x.is_neg()):  # the compiler resolves them
            return False
        if x.dtype is not first.dtype and not tensors.casting(first.device.type):
            return False
    return first.device.type in ("cpu", "cuda", "musa")


def _written(options: dict[str, Any], out: Any, shape: tuple[int, ...], found: tuple[Any, ...]) -> bool:
    """Add ``out`` to the options; False where torch would resize it, or round to its dtype."""
    if out is None:
        return True
    if not _alike(out, *found) or tuple(out.shape) != shape:
        return False
    options["out"] = out
    return True


def _matmul(a: Any, b: Any, *, out: Any = None) -> Call | None:
    if not _alike(a, b) or not a.dim() or not b.dim():
        return None
    if a.shape[-1] != b.shape[0 if b.dim() == 1 else -2] or (out is not None and (a.dim() > 2 or b.dim() > 2)):
        return None
    options: dict[str, Any] = {}
    shape = (*a.shape[:-1], *(b.shape[-1:] if b.dim() > 1 else ()))
    return (a, b, options) if _written(options, out, shape, (a, b)) else None


def _of_rank(a_rank: int, b_rank: int) -> Callable[..., Call | None]:
    """mm, bmm and mv: torch.matmul for operands of these numbers of dimensions only."""

    def product(a: Any, b: Any, *, out: Any = None) -> Call | None:
        if not _alike(a, b) or a.dim() != a_rank or b.dim() != b_rank:
            return None
        if a.shape[-1] != b.shape[0 if b_rank == 1 else -2] or (a_rank == 3 and a.shape[0] != b.shape[0]):
            return None
        options: dict[str, Any] = {}
        shape = (*a.shape[:-1], *(b.shape[-1:] if b_rank > 1 else ()))
        return (a, b, options) if _written(options, out, shape, (a, b)) else None

    return product


def _added(rank: int) -> Callable[..., Call | None]:
    """addmm and baddbmm."""
    plain = _of_rank(rank, rank)

    def product(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None) -> Call | None:
        call = plain(a, b, out=out)
        if call is None or not _alike(c, a):
            return None
        shape, options = (*a.shape[:-1], b.shape[-1]), call[2]
        try:
            fits = torch.broadcast_shapes(c.shape, shape) == torch.Size(shape)
        except RuntimeError:
            fits = False
        if not fits:
            return None
        if alpha != 1:
            options["alpha"] = alpha
        if beta == 1 and rank == 2 and c.shape == shape[1:] and not (a.is_cuda and a.dtype in _FLOATING[3:]):
            options["bias"] = c
        elif beta != 0:
            options["c"], options["beta"] = c, beta
        return call

    return product


def _linear(input: Any, weight: Any, bias: Any = None) -> Call | None:
    found = (input, weight) if bias is None else (input, weight, bias)
    if not _alike(*found) or not input.dim() or weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        return None
    if bias is not None and (bias.shape != weight.shape[:1] or (weight.is_cuda and weight.dtype in _FLOATING[3:])):
        return None  # no library on a GPU adds a bias in double precision or to complex numbers
    return input, weight.t(), {} if bias is None else {"bias": bias}


def _einsum(arguments: tuple[Any, ...], given: dict[str, Any]) -> Tensor | None:
    """A contraction of two operands as one product; None for every other einsum."""
    equation, *operands = arguments
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or not _alike(*operands):
        return None
    asked = contraction(equation.replace(" ", ""))
    a, b = operands
    sizes = None if asked is None else asked.sizes(a.shape, b.shape)
    if asked is None or sizes is None:
        return None
    left = a.permute(asked.left()).reshape(asked.shape(sizes, asked.rows, asked.inner))
    right = b.permute(asked.right()).reshape(asked.shape(sizes, asked.inner, asked.columns))
    result = api.matmul(left, right, **given)
    return result.reshape([sizes[x] for x in asked.batch + asked.rows + asked.columns]).permute(asked.result())


_T = torch.Tensor
_PRODUCTS: dict[Any, Callable[..., Call | None]] = {
    **dict.fromkeys((torch.matmul, torch.linalg.matmul, _T.matmul, _T.__matmul__), _matmul),
    _T.__rmatmul__: lambda b, a: _matmul(a, b),
    **dict.fromkeys((torch.mm, _T.mm), _of_rank(2, 2)),
    **dict.fromkeys((torch.bmm, _T.bmm), _of_rank(3, 3)),
    **dict.fromkeys((torch.mv, _T.mv), _of_rank(2, 1)),
    **dict.fromkeys((torch.addmm, _T.addmm), _added(2)),
    **dict.fromkeys((torch.baddbmm, _T.baddbmm), _added(3)),
    torch.nn.functional.linear: _linear,
}
_EINSUM = (torch.einsum, torch.functional.einsum)
