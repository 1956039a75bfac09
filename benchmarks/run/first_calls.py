"""First calls of new sizes on an NVIDIA GPU: what each takes, and where its kernel came from.

    python -m benchmarks.run.first_calls [--seed N] [--products 200] [--seconds 60] [--json FILE]

Needs torch, and is meant for a fresh installation of wheels with compiled kernels and an empty cache (the environment
variable GEMMHUB_CACHE_DIR names one). Sides are log-uniform to 8192, of any size or multiples of 8 or 64, in all
orders; no two products are alike. Times are of the clock, from the call until the device has finished, without torch's
allocation of the result. The first call of the process, which finds the hardware and proves what needs a proof, is
given apart. Rows of a result are compared with float64. The kernels that each plugin loaded are printed last.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.kernel_selection import sides
from gemmhub._choice.registry import registry

KINDS = {
    "bfloat16": (torch.bfloat16, "ieee"),
    "float16": (torch.float16, "ieee"),
    "tf32": (torch.float32, "tf32"),
    "float32": (torch.float32, "ieee"),
}
_PLUGINS = ("hopper", "cuda")
_LARGEST = 8192


def operand(rows: int, columns: int, order: str, dtype: torch.dtype) -> Any:
    """Return a random matrix in a storage order."""
    if order == "row":
        return torch.randn(rows, columns, device="cuda").to(dtype)
    return torch.randn(columns, rows, device="cuda").to(dtype).t()


def measure(seed: int, count: int, seconds: float) -> dict[str, list[float]]:
    """Return the seconds of each first call, by kind; the very first is "process"."""
    rng = random.Random(seed)
    side = (min(x, _LARGEST) for x in sides(rng))
    times: dict[str, list[float]] = {"process": [], **{name: [] for name in KINDS}}
    end = time.perf_counter() + seconds
    for i in range(count + 1):
        name = list(KINDS)[i % len(KINDS)]
        dtype, precision = KINDS[name]
        m, n, k = next(side), next(side), next(side)
        a, b = operand(m, k, rng.choice(["row", "col"]), dtype), operand(k, n, rng.choice(["row", "col"]), dtype)
        out = torch.empty(m, n, device="cuda", dtype=dtype)
        torch.cuda.synchronize()
        start = time.perf_counter()
        gemmhub.matmul(a, b, out=out, precision=precision)
        torch.cuda.synchronize()
        times[name if i else "process"].append(time.perf_counter() - start)
        exact = a[:2].double() @ b.double()
        size = a[:2].double().abs() @ b.double().abs()
        error = float(((out[:2].double() - exact).abs() / size).max())
        assert error < (2e-2 if precision != "ieee" or dtype != torch.float32 else 1e-5), (name, m, n, k, error)
        if time.perf_counter() > end:
            break
    return times


def main() -> None:
    """Print the times of each kind, and where kernels came from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--products", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.ones(1, device="cuda")
    times = measure(asked.seed, asked.products, asked.seconds)
    found: dict[str, Any] = {}
    for name, some in times.items():
        low, high, worst = (1e3 * float(x) for x in np.quantile(some, (0.5, 0.99, 1.0)))
        found[name] = {"products": len(some), "median": low, "99 %": high, "longest": worst}
        print(f"{name:10} {len(some):4} products  median {low:7.2f} ms  99 % {high:7.2f} ms  longest {worst:7.2f} ms")
    for name in _PLUGINS:
        entry = registry().find(name)
        found_one: Any = None if entry is None else entry.get()
        if isinstance(found_one, tuple):
            found[f"loads of {name}"] = text = str(found_one[0].machine.kernels.images.loads)
            print(f"{name}: {text}")
    if asked.json is not None:
        results.save(asked.json, milliseconds=found)


if __name__ == "__main__":
    main()
