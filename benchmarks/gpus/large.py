"""A square product whose operands and result exceed the memory of one GPU, sharded as predict proposes."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard

import gemmhub
from benchmarks.gpus import rig
from benchmarks.gpus.rig import Rig
from gemmhub.distributed import predict

BEYOND = 1.05
"""Bytes of operands and result over those of one GPU; a quarter of them where one rank tries the program."""
PLACEMENTS = {"1D rows": (0, 0), "1D columns": (0, 1), "1D k": (1, 0)}
"""Dimensions of a and b that are sharded, by the algorithm that predict names."""
SAMPLED = 8
"""Rows of each rank, and columns, compared with float64."""


def measure(on: Rig) -> None:
    for name, rounds, cost in (("bfloat16", 2, 25.0), ("float32", 1, 60.0)):
        on.attempt("large", name, one, on, name, rounds, seconds=3.0 if on.small else cost)
        if on.device == "cuda":
            torch.cuda.empty_cache()


def side(on: Rig, itemsize: int) -> int:
    """Rows, columns and k: a multiple of 1024."""
    if on.small:
        return 96 * on.ranks
    memory = torch.cuda.get_device_properties(0).total_memory / (4 if on.ranks == 1 else 1)
    grain = 512 * on.ranks
    return -(-int(sqrt(BEYOND * memory / 3 / itemsize)) // grain) * grain


def one(on: Rig, name: str, rounds: int) -> None:
    dtype = getattr(torch, name)
    size = side(on, dtype.itemsize)
    rate, together = rates(on, size, dtype)
    speeds = {"rate": rate, "bandwidth": on.speeds.bandwidth, "latency": on.speeds.latency}
    forecasts = predict(size, size, size, on.ranks, name, overlap=True, **speeds).forecasts
    forecast = next(x for x in forecasts if x.algorithm in PLACEMENTS)
    p, q = PLACEMENTS[forecast.algorithm]
    x, y = (
        sharded(on, on.random(*local(size, dim, on.ranks), dtype=dtype, seed=10 * seed + on.rank), dim, size)
        for seed, dim in ((1, p), (2, q))
    )
    decision = gemmhub.explain(x, y)
    facts = {
        "size": size, "bytes": 3 * size**2 * dtype.itemsize, "algorithm": forecast.algorithm, "one_rate": rate,
        "all_local_rate": together, "predicted": forecast.seconds, "predicted_memory": forecast.memory,
        "splits": ".".join(map(str, decision.split.axes)), "backend": decision.local.chosen,
    }  # fmt: skip
    with torch.no_grad():
        if on.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        result = gemmhub.matmul(x, y)
        facts["worst"] = on.largest(sampled(on, x, y, result))
        del result
        facts["gemmhub"] = min(on.seconds(lambda: gemmhub.matmul(x, y)) for _ in range(rounds))
        facts["rate"] = 2 * size**3 / facts["gemmhub"]
        facts["efficiency"] = facts["rate"] / on.ranks / rate
        facts["memory"] = torch.cuda.max_memory_allocated() if on.device == "cuda" else 0
        on.report("large", name, **facts)
        if on.device == "cuda":
            torch.cuda.empty_cache()
        estimate = (6 if name == "float32" else 2) * facts["gemmhub"]
        on.attempt("large", f"{name}, torch", theirs, on, name, x, y, size, seconds=estimate + 1)


def theirs(on: Rig, name: str, x: DTensor, y: DTensor, size: int) -> None:
    """torch's product, once; operands are as large, and there may be no memory for its gathered one."""
    found = on.seconds(lambda: torch.matmul(x, y))
    on.report("large", f"{name}, torch", size=size, torch=found, rate=2 * size**3 / found)


def local(size: int, dim: int, ranks: int) -> tuple[int, int]:
    return (size // ranks, size) if dim == 0 else (size, size // ranks)


def sharded(on: Rig, x: Any, dim: int, size: int) -> DTensor:
    return DTensor.from_local(x, on.mesh, [Shard(dim)], shape=torch.Size((size, size)), stride=(size, 1))


def rates(on: Rig, size: int, dtype: Any) -> tuple[float, float]:
    """Operations a second of a product of a rank's columns, half of its rows: on rank 0 alone, and on all at once."""
    rows, columns = size // on.ranks // 2, size // on.ranks
    a, b = on.random(rows, size, dtype=dtype, seed=3), on.random(size, columns, dtype=dtype, seed=4)
    out = torch.empty(rows, columns, dtype=dtype, device=on.device)
    operations = 2.0 * rows * columns * size

    def run() -> None:
        gemmhub.matmul(a, b, out=out)

    run()
    alone = min(on.seconds(run if on.rank == 0 else lambda: None) for _ in range(2))
    return operations / alone, operations / min(on.seconds(run) for _ in range(2))


def sampled(on: Rig, x: DTensor, y: DTensor, result: DTensor) -> float:
    """The largest error over its bound, of some rows and columns of this rank's part of the result."""
    a, b, mine = x.to_local(), y.to_local(), rig.waited(result)
    if x.placements[0] == Shard(0) and result.placements[0] == Shard(1):  # a is gathered: take rows of every rank
        step = a.shape[0] // SAMPLED
        taken = a[::step][:SAMPLED].contiguous()
        every = torch.empty((on.ranks * SAMPLED, a.shape[1]), dtype=a.dtype, device=a.device)
        torch.distributed.all_gather_into_tensor(every, taken)
        rows = torch.cat([torch.arange(SAMPLED) * step + rank * a.shape[0] for rank in range(on.ranks)])
        columns = torch.linspace(0, b.shape[1] - 1, SAMPLED).long()
        return rig.worst(every, b[:, columns.to(b.device)], mine[rows.to(b.device)][:, columns.to(b.device)])
    if x.placements[0] == Shard(0) and result.placements[0] == Shard(0):  # b is gathered: take columns of it
        columns = torch.linspace(0, b.shape[1] - 1, SAMPLED).long().to(b.device)
        taken = b[:, columns].contiguous()
        every = torch.empty((on.ranks * b.shape[0], SAMPLED), dtype=b.dtype, device=b.device)
        torch.distributed.all_gather_into_tensor(every, taken)
        rows = torch.linspace(0, a.shape[0] - 1, SAMPLED).long().to(a.device)
        return rig.worst(a[rows], every, mine[rows][:, columns])
    return float("nan")
