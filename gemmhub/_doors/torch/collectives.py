"""Redistribution of local tensors by one functional collective, where sizes divide evenly.

torch's ``DTensor.redistribute`` serves any sizes and several collectives, and costs more on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import Partial, Replicate, Shard

Tensor = Any


def moved(
    x: Tensor, shape: tuple[int, ...], mesh: Any, before: tuple[Any, ...], after: tuple[Any, ...]
) -> Tensor | None:
    """Convert the local part ``x`` of an array of ``shape`` from the placements ``before`` to ``after``.

    None where that takes more than one collective, or one that pads. It records nothing for autograd.
    """
    if before == after:
        return x
    redistribute = move(shape, mesh, before, after)
    return None if redistribute is None else redistribute(x)


def move(
    shape: tuple[int, ...], mesh: Any, before: tuple[Any, ...], after: tuple[Any, ...]
) -> Callable[[Tensor], Tensor] | None:
    """The collective that :func:`moved` runs where placements differ; None where it runs none."""
    i = only_change(before, after)
    if i is None:
        return None
    old, new, devices = before[i], after[i], mesh.size(i)
    split = old if isinstance(old, Shard) else new
    if isinstance(split, Shard):
        nested = any(isinstance(p, Shard) and p.dim == split.dim for j, p in enumerate(before) if j != i)
        if nested or shape[split.dim] % devices:
            return None
    if devices == 1:
        return lambda x: x
    if isinstance(old, Replicate):
        mine = mesh.get_local_rank(i)
        return (lambda x: x.chunk(devices, new.dim)[mine]) if isinstance(new, Shard) else None
    if isinstance(old, Partial):
        if isinstance(new, Shard):
            return lambda x: waited(summed(x, new.dim, (mesh, i)))
        return lambda x: waited(functional.all_reduce(x, "sum", (mesh, i)))
    if isinstance(new, Replicate):
        return lambda x: waited(gathered(x.contiguous(), old.dim, (mesh, i)))
    return None


def only_change(before: tuple[Any, ...], after: tuple[Any, ...]) -> int | None:
    """The dimension of the mesh whose placement differs, where exactly one does."""
    changed = [i for i, (old, new) in enumerate(zip(before, after)) if old != new]
    return changed[0] if len(changed) == 1 else None


def gathered(x: Tensor, dim: int, group: Any) -> Tensor:
    """All parts of a tensor, concatenated along ``dim``; the collective may still be running."""
    return _gather(x, dim, group)


def summed(x: Tensor, dim: int, group: Any) -> Tensor:
    """This device's part, along ``dim``, of the sum of a group's tensors; the collective may still be running."""
    return _scatter(x, "sum", dim, group)


_gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor  # the name before torch 2.13
_scatter = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor


def waited(x: Tensor) -> Tensor:
    """Wait for a collective; return a tensor that the current stream may read."""
    return x.wait() if isinstance(x, functional.AsyncCollectiveTensor) else x


def eager() -> bool:
    """Whether neither autograd nor torch's compiler records operations."""
    return not torch.is_grad_enabled() and not torch.compiler.is_compiling()
