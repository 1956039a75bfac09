"""Float32 on a Hopper GPU over families of data: how long it takes, and how accurate it is beside cuBLAS.

    python -m benchmarks.run.float32_data [--sizes M N K] [--rounds 5] [--seconds 300]
                                          [--json FILE]

Needs torch and gemmhub-hopper. For each family of operands, `gemmhub.matmul` is timed in one run with `torch.matmul`,
interleaved, by CUDA events; the time is also given as a multiple of that for normal data. Errors are the largest of 64
rows, relative to |A||B|, against float64.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import gemmhub
from benchmarks.lib import results

ROWS = 64
FAMILIES = (
    "normal", "uniform", "positive", "softmax 1", "softmax 2", "softmax 4", "relu", "lognormal", "exponents 16",
    "exponents 60", "cancelling", "undone", "one outlier", "one NaN", "one NaN in b", "half of a is NaN",
    "a row of infinities", "tails beside large",
)  # fmt: skip


def drawn(family: str, m: int, n: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands of a family on the card."""
    rng = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=rng)

    def exponents(width: int, *shape: int) -> torch.Tensor:
        return torch.randint(-width // 2, width // 2, shape, device="cuda", generator=rng).float().exp2()

    a, b = normal(m, k), normal(k, n)
    name, _, number = family.partition(" ")
    if family == "uniform":
        a, b = (torch.rand(*x.shape, device="cuda", generator=rng) for x in (a, b))
    elif family == "positive":
        a, b = a.abs(), b.abs()
    elif name == "softmax":
        a = torch.softmax(a * float(number), 1)
    elif family == "relu":
        a = a.clamp_min(0)
    elif family == "lognormal":
        a, b = (2 * a).exp(), (2 * b).exp()
    elif name == "exponents":
        a, b = a * exponents(int(number), m, k), b * exponents(int(number), k, n)
    elif family == "cancelling":
        half = k // 2
        a[:, half : 2 * half] = -a[:, :half] * (1 + 2.0**-22 * torch.randint(-2, 3, (m, half), device="cuda"))
        b[half : 2 * half] = b[:half]
    elif family == "undone":  # what a's columns are scaled by, b's rows are divided by
        scale = exponents(60, k)
        a, b = a * scale, b / scale[:, None]
    elif family == "one outlier":
        a[m // 2, k // 2] = 1e-30
    elif family == "one NaN":
        a[m // 2, k // 2] = float("nan")
    elif family == "one NaN in b":
        b[k // 2, n // 2] = float("nan")
    elif family == "half of a is NaN":
        a[m // 2 :] = float("nan")
    elif family == "a row of infinities":
        a[m // 2] = float("inf")
    elif family == "tails beside large":
        a, b = torch.softmax(40 * a, 1), b * 1000
    return a, b


def timed(calls: dict[str, Any], rounds: int) -> dict[str, float]:
    """Median seconds of each call, taken in turn."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call()
            start.record()
            for _ in range(3):
                call()
            end.record()
            end.synchronize()
            found[name].append(start.elapsed_time(end) / 3e3)
    return {name: median(times) for name, times in found.items()}


def error(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest error of the first rows relative to |A||B|; NaN and infinities aside."""
    wide = torch.complex128 if result.is_complex() else torch.float64
    a, b = a[:ROWS].to(wide), b.to(wide)
    exact, size = a @ b, a.abs() @ b.abs()
    relative = (result[:ROWS].to(wide) - exact).abs() / size
    return float(relative[torch.isfinite(exact) & (size > 0)].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs=3, default=(4096, 4096, 4096), metavar=("M", "N", "K"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--families", nargs="+", default=FAMILIES, choices=FAMILIES, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no family after this time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    m, n, k = options.sizes
    end = time.monotonic() + options.seconds
    print(f"{'data':22}{'ms':>8}{'of normal':>11}{'torch/ours':>12}{'error':>10}{'cuBLAS':>10}")
    rows: list[dict[str, Any]] = []
    for seed, family in enumerate(options.families):
        if time.monotonic() > end:
            print(f"out of time: omitted are {', '.join(options.families[seed:])}")
            break
        a, b = drawn(family, m, n, k, seed)
        out, theirs = torch.empty(m, n, device="cuda"), torch.empty(m, n, device="cuda")
        calls = {
            "gemmhub": partial(gemmhub.matmul, a, b, out=out),
            "torch": partial(torch.matmul, a, b, out=theirs),
        }
        times = timed(calls, options.rounds)
        of_normal = 1e3 * times["gemmhub"] / rows[0]["ms"] if rows else 1.0
        row = {
            "data": family, "ms": times["gemmhub"] * 1e3, "of_normal": of_normal,
            "ratio": times["torch"] / times["gemmhub"], "error": error(out, a, b), "cublas_error": error(theirs, a, b),
        }  # fmt: skip
        rows.append(row)
        print(
            f"{family:22}{row['ms']:8.3f}{row['of_normal']:11.2f}{row['ratio']:12.2f}"
            f"{row['error']:10.1e}{row['cublas_error']:10.1e}",
            flush=True,
        )
    if options.json:
        results.save(options.json, sizes=[m, n, k], products=rows)


if __name__ == "__main__":
    main()
