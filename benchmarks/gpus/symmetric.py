"""Asynchronous tensor parallelism over symmetric memory, without NVLink multicast: torch's fused operators, which its
compiler's micro-pipelining calls, and gemmhub's chunks with transfers by copy engines.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed import _functional_collectives as functional

from benchmarks.gpus import layers, rig
from benchmarks.gpus.rig import Rig
from gemmhub._doors.torch import collectives

Tensor = Any
OFF = "TORCH_SYMM_MEM_DISABLE_MULTICAST"


def measure(on: Rig) -> None:
    """The sequence parallel pair of :mod:`layers` at its largest number of rows."""
    refusal = unusable(on)
    if refusal:
        on.report("symmetric", "torch's fused operators", skipped=refusal)
        return
    from torch.distributed import _symmetric_memory as symmetric

    width, wide, counts = layers.sizes(on)
    name = on.mesh.get_group(0).group_name
    symmetric.enable_symm_mem_for_group(name)
    with torch.no_grad():
        x = on.random(counts[-1], width, dtype=layers.DTYPE, seed=counts[-1])
        locals_ = layers.local_weights(on, width, wide)
        mine = x.chunk(on.ranks)[on.rank].contiguous()
        given = layers.placed(on, on.mesh, x, locals_)
        plain = layers.pair(*given).to_local().clone()

        def fused() -> Tensor:
            up, down = (w.t() for w in locals_)
            _, found = torch.ops.symm_mem.fused_all_gather_matmul(mine, [up], 0, name, return_A=True)
            hidden = torch.nn.functional.silu(found[0])
            return torch.ops.symm_mem.fused_matmul_reduce_scatter(hidden, down, "sum", 0, name)

        def copies() -> Tensor:
            return layers.pair(*given).to_local()

        products = layers.parts(x, locals_, on.mesh)["compute"]
        moves: dict[str, float] = {}

        def report(what: str, run: Any) -> None:
            found = on.timed({"seconds": run, "compute": products})
            on.report("symmetric", what, rows=len(x), **found, **moves, difference=layers.difference(plain, run()))

        on.attempt("symmetric", "fused", report, "fused", fused)
        before = collectives._gather, collectives._scatter
        collectives._gather, collectives._scatter = gather, scatter
        try:
            moves = on.attempt("symmetric", "copies alone", alone, on, mine, x) or {}
            on.attempt("symmetric", "copies", report, "copies", copies)
        finally:
            collectives._gather, collectives._scatter = before


def alone(on: Rig, mine: Tensor, x: Tensor) -> dict[str, float]:
    """Seconds of the transfers of the pair, by copy engines."""
    group, sums = (on.mesh, 0), torch.zeros_like(x, dtype=torch.float32)
    runs = {
        "gather": lambda: rig.waited(collectives.gathered(mine, 0, group)),
        "scatter float32": lambda: rig.waited(collectives.summed(sums, 0, group)),
    }
    found = on.timed(runs)
    return {**found, "communication": sum(found.values())}


def gather(x: Tensor, dim: int, group: Any) -> Tensor:
    """A gather without multiprocessors, of the first dimension."""
    assert dim == 0
    return functional._maybe_wrap_tensor(
        torch.ops.symm_mem._low_contention_all_gather(x, group[0].get_group(group[1]).group_name)
    )


def scatter(x: Tensor, op: str, dim: int, group: Any) -> Tensor:
    """A reduction whose transfers need no multiprocessors, over the first dimension."""
    from torch.distributed._symmetric_memory import _get_backend_stream

    assert dim == 0
    x.record_stream(_get_backend_stream())
    out = torch.ops.symm_mem._low_contention_reduce_scatter(x, op, group[0].get_group(group[1]).group_name)
    out.record_stream(torch.cuda.current_stream())
    return functional._maybe_wrap_tensor(out)


def unusable(on: Rig) -> str | None:
    """Why symmetric memory is not tried: it must never set up multicast."""
    if on.device != "cuda":
        return "no CUDA device"
    if os.environ.get(OFF) != "1":
        return f"{OFF} is not 1"
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory

    if _SymmetricMemory.has_multicast_support(DeviceType.CUDA, torch.cuda.current_device()):
        return f"multicast is on, though {OFF} is 1"
    return None
