"""Few rows by a large matrix, as in a language model's decode, by gemmhub on a Hopper GPU beside torch.

    python -m benchmarks.run.hopper_rows [--dtype float32] [--seconds 60] [--json FILE]

Needs torch and gemmhub-hopper. Matrices have 64 MB and more in float32, in both orders ("n" is row-major, "t"
column-major, as the weights of torch.nn.Linear are). gemmhub.matmul and torch.matmul are timed by CUDA graphs
(benchmarks/lib/cuda_graphs.py), and their host times (benchmarks/lib/host_time.py). Results are compared with torch's.
"""

from __future__ import annotations

import argparse
import itertools
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

import gemmhub
from benchmarks.lib import host_time, results
from benchmarks.lib.beside_torch import close
from benchmarks.lib.cuda_graphs import Rig

MATRICES = ((14336, 4096), (4096, 14336), (4096, 4096), (32000, 4096), (2048, 10240), (6144, 5120))
"""(n, k)."""
ROWS = (8, 1, 16, 6, 4, 12, 2, 5, 3, 7)
_BANDWIDTH = 2.8e12
"""Approximate bytes a second, which determine the number of calls in a graph."""


def measure(m: int, n: int, k: int, order: str, dtype: str, rounds: int) -> dict[str, Any]:
    """Time one product; print a line and return the row of the result file."""
    kind = getattr(torch, dtype)
    nbytes = (m * k + k * n + m * n) * kind.itemsize
    rig = Rig(m, n, k, f"n{order}", kind, nbytes / _BANDWIDTH)
    calls = {
        "gemmhub": lambda a, b, out: gemmhub.matmul(a, b, out=out),
        "torch": lambda a, b, out: torch.matmul(a, b, out=out),
    }
    right = close(calls["gemmhub"], rig, dtype)
    own, theirs = rig.medians([rig.add(call) for call in calls.values()], rounds)
    a, b, out = rig.sets[0]
    host = host_time.samples({name: partial(call, a, b, out) for name, call in calls.items()}, batches=3, batch=30)
    decision = gemmhub.explain(a, b)
    found = {
        "m": m, "n": n, "k": k, "order": order, "us": own * 1e6, "terabytes": nbytes / own * 1e-12,
        "ratio": theirs / own, "host_us": min(host["gemmhub"]), "torch_host_us": min(host["torch"]), "right": right,
        "chosen": decision[decision.chosen].candidate if decision.chosen else "",
    }  # fmt: skip
    print(
        f"{m} x {n} x {k} {order} {found['us']:7.1f} us {found['terabytes']:.2f} TB/s torch / gemmhub "
        f"{found['ratio']:.2f}  host {found['host_us']:.1f} us (torch {found['torch_host_us']:.1f})  {found['chosen']}"
        + ("" if right else " WRONG"),
        flush=True,
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no product after this time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    rows: list[dict[str, Any]] = []
    for m, (n, k), order in itertools.product(ROWS, MATRICES, "tn"):
        if time.monotonic() > end:
            break
        rows.append(measure(m, n, k, order, options.dtype, options.rounds))
    if options.json:
        results.save(options.json, dtype=options.dtype, products=rows)
    return int(not all(x["right"] for x in rows))


if __name__ == "__main__":
    raise SystemExit(main())
