"""Products of large DTensors in chunks: while one is multiplied, the collective of another runs.

Functional collectives run on the stream of their process group; the current stream waits for a chunk where it is used.
Gathered operands are cut along columns, partial sums along the rows that each device gets. Nothing is recorded for
autograd; other products go by :mod:`sharded` as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from gemmhub import api
from gemmhub._doors.torch import collectives

Tensor = Any

CHUNKS = 4
LEAST = {"cuda": 2**25}
"""Bytes that one collective moves, by kind of device, from which on it is cut. Other kinds: never."""


def gathering(b: Any, before: tuple[Any, ...], after: tuple[Any, ...], mesh: Any) -> int | None:
    """The dimension of the mesh over which ``b`` is gathered along k, where that is worth chunks."""
    i = collectives.only_change(before, after)
    if i is None or b.ndim != 2 or not collectives.eager():
        return None
    along_k = before[i] == Shard(0) and isinstance(after[i], Replicate)
    others = any(isinstance(p, Shard) for j, p in enumerate(before) if j != i)
    if not along_k or others or b.shape[0] % mesh.size(i) or b.shape[1] < CHUNKS:
        return None
    return i if _worth(mesh, b.shape[0] * b.shape[1] * b.dtype.itemsize) else None


def gathered(a: Tensor, b: Tensor, mesh: Any, i: int, dtype: Any, options: Mapping[str, Any]) -> Tensor:
    """``a @ b`` of local tensors, b being gathered over dimension ``i`` of the mesh; options are those of matmul."""
    parts = b.chunk(CHUNKS, 1)
    coming = [collectives.gathered(part.contiguous(), 0, (mesh, i)) for part in parts]
    out = torch.empty((*a.shape[:-1], b.shape[1]), dtype=dtype, device=a.device)
    start = 0
    for part, whole in zip(parts, coming):
        columns = slice(start, start + part.shape[1])
        cut: dict[str, Any] = {
            name: _columns(x, columns) if name in ("c", "bias") else x for name, x in options.items()
        }
        api.matmul(a, collectives.waited(whole), out=out[..., columns], **cut)
        start = columns.stop
    return out


def _columns(x: Tensor | None, columns: slice) -> Tensor | None:
    return x if x is None or x.shape[-1] == 1 else x[..., columns]


def scattering(
    shape: tuple[int, ...], wide: Any, before: tuple[Any, ...], after: tuple[Any, ...], mesh: Any
) -> int | None:
    """The dimension of the mesh over which partial sums are scattered along rows, where that is worth chunks."""
    i = collectives.only_change(before, after)
    if i is None or len(shape) != 2 or not collectives.eager():
        return None
    along_rows = isinstance(before[i], Partial) and after[i] == Shard(0)
    others = any(p == Shard(0) for j, p in enumerate(before) if j != i)
    if not along_rows or others or shape[0] % (mesh.size(i) * CHUNKS):
        return None
    return i if _worth(mesh, shape[0] * shape[1] * wide.itemsize) else None


def scattered(a: Tensor, b: Tensor, mesh: Any, i: int, wide: Any, options: Mapping[str, Any]) -> Tensor:
    """The rows that this device gets of the sum of ``a @ b`` over dimension ``i`` of the mesh, in dtype ``wide``."""
    stack = a.unflatten(0, (mesh.size(i), CHUNKS, -1))
    coming = []
    for chunk in range(CHUNKS):
        part = api.matmul(stack[:, chunk], b, out_dtype=wide, **options)
        coming.append(collectives.summed(part.flatten(0, 1), 0, (mesh, i)))
    return torch.cat([collectives.waited(x) for x in coming])


def _worth(mesh: Any, size: int) -> bool:
    least = LEAST.get(mesh.device_type)
    return least is not None and size >= least
