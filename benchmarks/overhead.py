"""What gemmhub costs over numpy.matmul(a, b, out=), in one run.

    python benchmarks/overhead.py [--json FILE]

Calls on 1 x 1 and 16 x 16 float32 operands are timed in interleaved chunks; the minimum over chunks is
compared (a minimum, because a call this short is either undisturbed or not a measurement). Imports are
timed in fresh interpreters, alternately, and their medians compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

import gemmhub
from gemmhub._base.timing import interleave

LIMITS = {"matmul": 0.6, "matmul out=": 0.6, "plan out=": 0.25, "import": 30_000.0}
"""Microseconds over numpy.matmul(a, b, out=), or over importing numpy."""


def calls(size: int, rounds: int) -> dict[str, float]:
    """Microseconds a call of each way to multiply."""
    rng = np.random.default_rng()
    a, b = rng.standard_normal((2, size, size)).astype(np.float32)
    out = np.empty_like(a)
    planned = gemmhub.plan(a, b, out=out)
    numpy_matmul, matmul = np.matmul, gemmhub.matmul
    contenders = {
        "numpy out=": lambda: numpy_matmul(a, b, out=out),
        "numpy": lambda: numpy_matmul(a, b),
        "matmul": lambda: matmul(a, b),
        "matmul out=": lambda: matmul(a, b, out=out),
        "plan out=": lambda: planned(a, b, out),
        "matmul bias=": lambda: matmul(a, b, out=out, bias=b[0]),
    }
    timings = interleave(list(contenders.values()), rounds=rounds, min_time=1e-3)
    return {name: timing.minimum * 1e6 for name, timing in zip(contenders, timings)}


def imports(rounds: int) -> dict[str, float]:
    """Median microseconds of ``import`` in a fresh interpreter."""
    code = "import time; s = time.perf_counter(); import {}; print(time.perf_counter() - s)"
    samples: dict[str, list[float]] = {"numpy": [], "gemmhub": []}
    for _ in range(rounds):
        for name, times in samples.items():
            run = subprocess.run([sys.executable, "-c", code.format(name)], capture_output=True, text=True, check=True)
            times.append(float(run.stdout) * 1e6)
    return {name: statistics.median(times) for name, times in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    within = True
    print(f"{'':22}{'time (us)':>12}{'over numpy':>12}{'ratio':>8}{'limit':>9}")
    for size in (1, 16):
        times = found[f"{size}x{size}"] = calls(size, arguments.rounds)
        base = times["numpy out="]
        for name, value in times.items():
            limit = LIMITS.get(name)
            within &= limit is None or value - base <= limit
            shown = "" if limit is None else f"{limit:.2f}"
            print(f"{size:3} x {size:<3} {name:13}{value:12.3f}{value - base:12.3f}{value / base:8.2f}{shown:>9}")
    times = found["import"] = imports(max(5, arguments.rounds // 20))
    over = times["gemmhub"] - times["numpy"]
    within &= over <= LIMITS["import"]
    print(
        f"import gemmhub        {times['gemmhub']:12.0f}{over:12.0f}"
        f"{times['gemmhub'] / times['numpy']:8.2f}{LIMITS['import']:9.0f}"
    )
    print("within the limits" if within else "OVER A LIMIT")
    if arguments.json:
        report = {
            "command": "python benchmarks/overhead.py",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "gemmhub": gemmhub.__version__,
            "microseconds": found,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
