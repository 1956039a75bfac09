"""float32 and float64 products of a CPU with ``reproducible="batch"`` beside NumPy's, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.run.cpu_reproducible [--products 20] [--rows M] [--json FILE]

Sizes are drawn log-uniformly: M, N and K from 64 to 2048, or M as given. Both write into an ``out``, in interleaved
rounds; the minimum over rounds is compared. On one thread it is CPU time, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import geometric_mean

import numpy as np

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.cpu_clock import CpuClock
from gemmhub._base.timing import HostClock, interleave


def main() -> None:
    """Print NumPy's time over gemmhub's of each product, and their geometric means."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--products", type=int, default=20)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    threads = int(os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())))
    clock = CpuClock() if threads == 1 else HostClock()
    found = []
    for dtype in ("float32", "float64"):
        ratios = []
        for _ in range(given.products):
            m, n, k = (int(2 ** rng.uniform(6, 11)) for _ in range(3))
            m = given.rows or m
            a, b = (rng.standard_normal(shape, np.float64).astype(dtype) for shape in ((m, k), (k, n)))
            out = np.empty((m, n), dtype)
            plan = gemmhub.plan(a, b, out=out, reproducible="batch", backend="cpu")
            calls = [lambda: np.matmul(a, b, out), lambda: plan(a, b, out=out)]  # noqa: B023
            theirs, ours = interleave(calls, clock=clock, rounds=9)
            ratios.append(theirs.minimum / ours.minimum)
            rate = 2 * m * n * k / ours.minimum / 1e9
            print(f"{dtype} {m:5} x {n:5} x {k:5}: {ratios[-1]:.2f}  ({rate:.0f} Gflop/s)", flush=True)
            found.append({"dtype": dtype, "m": m, "n": n, "k": k, "ratio": ratios[-1]})
        print(f"{dtype}, threads: {threads}, mean {geometric_mean(ratios):.2f}, lowest {min(ratios):.2f}")
    if given.json:
        results.save(given.json, rows=found, threads=threads)


if __name__ == "__main__":
    main()
