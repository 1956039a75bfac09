"""DTensor products and parallel linear layers against torch's, on one process or on several of one host.

    torchrun --nproc-per-node N -m benchmarks.run.dtensor [--backend nccl] [--sizes 4096 8192] [--rounds 5]
                                                          [--json FILE]

Every pair of placements over a mesh of one dimension; operands and results stay on the devices. torch's products of
sharded k leave Partial sums, which are reduced here as gemmhub's are. Prints a table: torch's time over gemmhub's, and
gemmhub's own; the result file has the estimates of gemmhub.explain beside them.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gemmhub
import gemmhub.torch
from benchmarks.lib import results


def seconds(run: Callable[[], Any], device: str) -> float:
    """One call, all ranks together."""
    torch.distributed.barrier()
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def timed(runs: dict[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, float]:
    """Medians in seconds, interleaved, after two calls each."""
    for run in runs.values():
        run(), run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(seconds(run, device))
    return {name: statistics.median(x) for name, x in found.items()}


def pair(mesh: Any, width: int, dtype: Any, ours: bool) -> Any:
    """A Llama-shaped pair of linear layers, split by columns and rows."""
    torch.manual_seed(0)
    device = mesh.device_type
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 3 * width, bias=False), torch.nn.SiLU(), torch.nn.Linear(3 * width, width, bias=False)
    ).to(device, dtype)
    column, row = ColwiseParallel(), RowwiseParallel()
    if ours:
        column, row = gemmhub.torch.ColumnParallel(), gemmhub.torch.RowParallel()
    return parallelize_module(model, mesh, {"0": column, "2": row})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 8192])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 512, 8192], help="of the linear layers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    device = "cuda" if asked.backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group(asked.backend)
    mesh = init_device_mesh(device, (torch.distributed.get_world_size(),))
    first = torch.distributed.get_rank() == 0
    rows = []

    def report(row: dict[str, Any]) -> None:
        rows.append(row)
        if first:
            print(f"{row['what']:<58} {row['torch'] / row['gemmhub']:6.2f} {row['gemmhub'] * 1e3:10.3f} ms", flush=True)

    for size, name in itertools.product(asked.sizes, asked.dtypes):
        dtype = getattr(torch, name)
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        for p, q in itertools.product((Shard(0), Shard(1), Replicate()), repeat=2):
            x, y = distribute_tensor(a, mesh, [p]), distribute_tensor(b, mesh, [q])
            decision = gemmhub.explain(x, y)
            out = decision.split.out
            runs = {
                "torch": lambda x=x, y=y, out=out: torch.matmul(x, y).redistribute(placements=out).to_local(),
                "gemmhub": lambda x=x, y=y: gemmhub.matmul(x, y).to_local(),
            }
            found = timed(runs, asked.rounds, device)
            what = f"{name} {size} cubed, {p} by {q}, splits {'.'.join(map(str, decision.split.axes)) or 'nothing'}"
            report({"what": what, **found, "estimate": decision.split.seconds, "received": decision.split.received})
    for count, name in itertools.product(asked.rows, asked.dtypes):
        dtype, width = getattr(torch, name), asked.sizes[0]
        x = torch.randn(count, width, device=device, dtype=dtype)
        with torch.no_grad():
            models = {"torch": pair(mesh, width, dtype, False), "gemmhub": pair(mesh, width, dtype, True)}
            found = timed({key: lambda m=m, x=x: m(x) for key, m in models.items()}, asked.rounds, device)
        report({"what": f"{name} parallel linear pair, {count} rows, width {width}", **found})
    if asked.json and first:
        results.save(asked.json, rows=rows, ranks=mesh.size(), backend=asked.backend)
    torch.distributed.barrier()
    os._exit(0)  # threads of gloo that still run abort a process that ends as usual


if __name__ == "__main__":
    main()
