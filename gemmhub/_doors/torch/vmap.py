"""The rule of torch.func.vmap for a product: the mapped dimension is one more batch dimension of one product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gemmhub._doors.torch import scales
from gemmhub.operands import OPERANDS

Tensor = Any


class Batched(NamedTuple):
    """One product for all the products of a mapped function."""

    a: Tensor
    b: Tensor
    read: dict[str, Tensor]
    """The other operands of the one product."""
    after: dict[str, Tensor]
    """Operands that no one product has, with the dimensions of the result: a different bias for each product, or a
    different scale of each result, and then whatever follows the bias. They follow the product."""
    rows: bool
    columns: bool

    def result(self, stack: Tensor) -> Tensor:
        """The results, with the mapped dimension first and without the dimensions that vectors lack."""
        stack = stack.squeeze(-2) if self.rows else stack
        return stack.squeeze(-1) if self.columns else stack


def batched(
    size: int, dims: Sequence[int | None], a: Tensor, b: Tensor, read: Mapping[str, Tensor],
    mapped: Mapping[str, int | None],
) -> Batched:  # fmt: skip
    """Combine operands, some with a mapped dimension of this size at ``dims`` (a, b) and ``mapped``, to one product."""
    a_dim, b_dim = dims
    a, b = _first(a, a_dim), _first(b, b_dim)
    rows, columns = a.dim() == 2, b.dim() == 2
    a = a.unsqueeze(1) if rows else a  # (k,) as (1, k)
    b = b.unsqueeze(2) if columns else b  # (k,) as (k, 1)
    rank = max(a.dim(), b.dim())
    together: dict[str, Tensor] = {}
    after: dict[str, Tensor] = {}
    for name, x in read.items():
        dim = mapped.get(name)
        x = _first(x, dim)
        if name == "bias":
            if x.dim() == 2:  # for a matrix by a vector, an element for each row of a
                x = x.unsqueeze(2) if columns and not rows else x.unsqueeze(1)
        elif OPERANDS[name].role == "term":
            x = _padded(x, rank - rows - columns)
            x = x.unsqueeze(-1) if columns else x
            x = x.unsqueeze(-2) if rows else x
        elif OPERANDS[name].role == "factor":
            x = _matrix(name, x)
        else:
            x = x.reshape(x.shape[0], 1, 1)
        if name == "bias" or OPERANDS[name].role == "result":
            together, after = ({**together, name: x[0]}, after) if dim is None else (together, {**after, name: x})
        else:
            together[name] = _padded(x, rank)
    if after and "scale_out" in together:
        after["scale_out"] = together.pop("scale_out").unsqueeze(0)
    if a_dim is None and b_dim is None:
        a = a.expand(size, *a.shape[1:])
    a = _padded(a, rank)
    b = b[0] if b_dim is None and b.dim() == 3 else _padded(b, rank)  # one matrix for all products
    return Batched(a, b, together, {name: _padded(x, rank) for name, x in after.items()}, rows, columns)


def _matrix(name: str, x: Tensor) -> Tensor:
    """Scales with a mapped dimension, which comes first, as stacks of matrices."""
    if x.dim() > 2:
        return x
    one = scales.matrix(name, x[0])
    return x.reshape(x.shape[0], *one.shape)


def _first(x: Tensor, dim: int | None) -> Tensor:
    """``x`` with its mapped dimension first; of size 1 where it has none."""
    return x.unsqueeze(0) if dim is None else x.movedim(dim, 0)


def _padded(x: Tensor, rank: int) -> Tensor:
    """``x`` with ``rank`` dimensions: missing ones are inserted after the first."""
    return x.reshape(x.shape[0], *(1,) * (rank - x.dim()), *x.shape[1:])
