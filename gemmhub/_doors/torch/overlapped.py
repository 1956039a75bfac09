"""Products of large DTensors in chunks, of which few are held: one is multiplied while the collective of another runs.

Functional collectives run on the stream of their process group; the current stream waits for a chunk where it is used.
A gathered b is cut along columns. A gathered a is cut along rows, and this device's own rows, which need no collective,
are multiplied first. Partial sums are cut along the rows that each device receives. At most two gathered chunks are
held at a time. Nothing is recorded for autograd; :mod:`sharded` computes other products as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from gemmhub import api
from gemmhub._doors.torch import collectives

Tensor = Any

CHUNKS = 4
MIN_BYTES = {"cuda": 2**31}
"""Minimum bytes of a collective that is cut into chunks, by device type; never cut on other types.

Chunks save memory. They save no time on GPUs: on two H100s products with chunks of 32 MiB took up to 1.6 times what was
predicted without (benchmarks/results/h100/gpus.json), as persistent kernels leave NCCL no multiprocessor.
"""
LARGEST = 2**30
"""Largest gathered chunk in bytes; beyond it there are more than ``CHUNKS``."""


def gathering(x: Any, before: tuple[Any, ...], after: tuple[Any, ...], mesh: Any) -> int | None:
    """The dimension of the mesh over which the first dimension of ``x`` is gathered, where that is worth chunks."""
    i = collectives.only_change(before, after)
    if i is None or x.ndim != 2 or not collectives.eager():
        return None
    first = before[i] == Shard(0) and isinstance(after[i], Replicate)
    others = any(isinstance(p, Shard) for j, p in enumerate(before) if j != i)
    if not first or others or x.shape[0] % mesh.size(i):
        return None
    return i if _worth(mesh, x.shape[0] * x.shape[1] * x.dtype.itemsize) else None


def gathered(a: Tensor, b: Tensor, mesh: Any, i: int, dtype: Any, options: Mapping[str, Any]) -> Tensor:
    """``a @ b`` of local tensors, b being gathered over dimension ``i`` of the mesh; options are those of matmul."""
    out = torch.empty((*a.shape[:-1], b.shape[1]), dtype=dtype, device=a.device)
    done = 0

    def multiply(gathered_part: Tensor) -> None:
        nonlocal done
        columns = slice(done, done + gathered_part.shape[1])
        cut: dict[str, Any] = {
            name: _columns(x, columns) if name in ("c", "bias") else x for name, x in options.items()
        }
        api.matmul(a, gathered_part, out=out[..., columns], **cut)
        done = columns.stop

    _gather_each(_cut(b, 1, mesh.size(i)), (mesh, i), multiply)
    return out


def _columns(x: Tensor | None, columns: slice) -> Tensor | None:
    return x if x is None or x.shape[-1] == 1 else x[..., columns]


def by_rows(options: Mapping[str, Any]) -> bool:
    """Whether rows of the result can be computed with the options as they are: no addend has rows of its own."""
    addends = [x for x in (options.get("c"), options.get("bias")) if x is not None]
    return all(x.ndim < 2 or x.shape[-2] == 1 for x in addends)


def gathered_rows(a: Tensor, b: Tensor, mesh: Any, i: int, dtype: Any, options: Mapping[str, Any]) -> Tensor:
    """``a @ b`` of local tensors of two dimensions, a being gathered over dimension ``i`` of the mesh."""
    devices, mine, rows = mesh.size(i), mesh.get_local_rank(i), a.shape[0]
    out = torch.empty((devices, rows, b.shape[1]), dtype=dtype, device=a.device)
    done = 0

    def multiply(gathered_part: Tensor) -> None:
        nonlocal done
        stack = gathered_part.unflatten(0, (devices, -1))
        these = slice(done, done + stack.shape[1])
        for start, stop in ((0, mine), (mine + 1, devices)):
            if start < stop:
                others = start if stop - start == 1 else slice(start, stop)
                api.matmul(stack[others], b, out=out[others, these], **options)
        done = these.stop

    own = partial(api.matmul, a, b, out=out[mine], **options)
    _gather_each(_cut(a, 0, devices), (mesh, i), multiply, own)
    return out.flatten(0, 1)


def _cut(x: Tensor, dim: int, devices: int) -> tuple[Tensor, ...]:
    """The parts of ``x`` to be gathered from so many devices; long ones hold whole tiles of 256."""
    count = max(CHUNKS, -(-int(x.nbytes) * devices // LARGEST))
    size = -(-x.shape[dim] // count)
    parts: tuple[Tensor, ...] = x.split(-(-size // 256) * 256 if size > 256 else size, dim)
    return parts


def _gather_each(
    parts: tuple[Tensor, ...], group: Any, use: Callable[[Tensor], None], meanwhile: Callable[[], Any] | None = None
) -> None:
    """Gather each part along its first dimension and use it; meanwhile the next one is being gathered."""
    following: Tensor | None = collectives.gathered(parts[0].contiguous(), 0, group)
    if meanwhile is not None:
        meanwhile()
    for part in (*parts[1:], None):
        current = collectives.waited(following)
        following = None if part is None else collectives.gathered(part.contiguous(), 0, group)
        use(current)
        del current  # so that its memory serves the gather after the next


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
    """This device's rows of the sum of ``a @ b`` over dimension ``i`` of the mesh, in dtype ``wide``."""
    stack = a.unflatten(0, (mesh.size(i), CHUNKS, -1))
    coming = []
    for chunk in range(CHUNKS):
        part = api.matmul(stack[:, chunk], b, out_dtype=wide, **options)
        coming.append(collectives.summed(part.flatten(0, 1), 0, (mesh, i)))
    return torch.cat([collectives.waited(x) for x in coming])


def _worth(mesh: Any, size: int) -> bool:
    limit = MIN_BYTES.get(mesh.device_type)
    return limit is not None and size >= limit
