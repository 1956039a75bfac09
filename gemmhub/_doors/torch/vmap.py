"""The rule of torch.func.vmap for a product: the mapped dimension is one more batch dimension of one product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Tensor = Any


class Batched(NamedTuple):
    """One product for all the products of a mapped function."""

    operands: tuple[Any, ...]
    """a, b, c and bias of the one product."""
    added: Tensor | None
    """A different bias for each product, with the dimensions of the result: it follows the product."""
    rows: bool
    columns: bool

    def result(self, made: Tensor) -> Tensor:
        """The results, with the mapped dimension first and without the dimensions that vectors lack."""
        made = made.squeeze(-2) if self.rows else made
        return made.squeeze(-1) if self.columns else made


def batched(
    size: int, dims: Sequence[int | None], a: Tensor, b: Tensor, c: Tensor | None, bias: Tensor | None
) -> Batched:
    """Combine operands, some with a mapped dimension of this size at ``dims``, to one product."""
    a_dim, b_dim, c_dim, bias_dim = dims
    a, b = _first(a, a_dim), _first(b, b_dim)
    rows, columns = a.dim() == 2, b.dim() == 2
    a = a.unsqueeze(1) if rows else a  # (k,) as (1, k)
    b = b.unsqueeze(2) if columns else b  # (k,) as (k, 1)
    rank = max(a.dim(), b.dim())
    if c is not None:
        c = _padded(_first(c, c_dim), rank - rows - columns)
        c = c.unsqueeze(-1) if columns else c
        c = c.unsqueeze(-2) if rows else c
    added = None
    if bias is not None:
        bias = _first(bias, bias_dim)
        if bias.dim() == 2:  # for a matrix by a vector, an element for each row of a
            bias = bias.unsqueeze(2) if columns and not rows else bias.unsqueeze(1)
        bias, added = (bias[0], None) if bias_dim is None else (None, _padded(bias, rank))
    if a_dim is None and b_dim is None:
        a = a.expand(size, *a.shape[1:])
    a = _padded(a, rank)
    b = b[0] if b_dim is None and b.dim() == 3 else _padded(b, rank)  # one matrix for all products
    return Batched((a, b, c, bias), added, rows, columns)


def _first(x: Tensor, dim: int | None) -> Tensor:
    """``x`` with its mapped dimension first; of size 1 where it has none."""
    return x.unsqueeze(0) if dim is None else x.movedim(dim, 0)


def _padded(x: Tensor, rank: int) -> Tensor:
    """``x`` with ``rank`` dimensions: missing ones are inserted after the first."""
    return x.reshape(x.shape[0], *(1,) * (rank - x.dim()), *x.shape[1:])
