"""The built-in backend against numpy.matmul itself, in one run.

    python -m benchmarks.run.numpy_backend [--json FILE]

Random data, results into a new array, all contenders timed in every round; ratios are gemmhub's speed over
NumPy's. NumPy's own float16 and integer products take a second at 512^3, so they are timed in fewer rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gemmhub
from benchmarks.lib import results
from gemmhub._base.timing import interleave

SLOW = [("float16", "float16", 512), ("int8", "int32", 512), ("float16", "float16", 64), ("int8", "int32", 64)]
FAST = [(dtype, shape) for dtype in ("float32", "float64") for shape in ((128,) * 3, (512,) * 3, (1024,) * 3)]
BATCHED = [((64, 1, 64), (64, 64)), ((100, 8, 8), (8, 8)), ((64, 64, 64), (64, 64)), ((16, 128, 128), (128, 128))]


def operands(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    rng = np.random.default_rng()
    return [(rng.standard_normal(shape) * 20).astype(dtype) for shape in (a_shape, b_shape)]


def ratio(numpy_call: Any, hub_call: Any, rounds: int) -> tuple[float, float, float]:
    """Return (milliseconds of NumPy, of gemmhub, median ratio over rounds)."""
    first, second = interleave([numpy_call, hub_call], rounds=rounds, min_time=5e-3)
    each = statistics.median(x / y for x, y in zip(first.samples, second.samples))
    return first.median * 1e3, second.median * 1e3, each


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for dtype, result, size in SLOW:
        a, b = operands((size, size), (size, size), dtype)
        times = ratio(
            lambda a=a, b=b, result=result: np.matmul(a, b, dtype=result),
            lambda a=a, b=b: gemmhub.matmul(a, b),
            3 if size > 100 else 9,
        )
        rows.append({"problem": f"{size}x{size}x{size} {dtype}->{result}", "times": times})
    for dtype, (m, n, k) in FAST:
        a, b = operands((m, k), (k, n), dtype)
        times = ratio(lambda a=a, b=b: np.matmul(a, b), lambda a=a, b=b: gemmhub.matmul(a, b), 25)
        rows.append({"problem": f"{m}x{n}x{k} {dtype}", "times": times})
    for a_shape, b_shape in BATCHED:
        a, b = operands(a_shape, b_shape, "float32")
        times = ratio(lambda a=a, b=b: np.matmul(a, b), lambda a=a, b=b: gemmhub.matmul(a, b), 25)
        rows.append({"problem": f"{a_shape} @ {b_shape} float32", "times": times})
    print(f"{'problem':40}{'numpy (ms)':>12}{'gemmhub (ms)':>14}{'ratio':>9}")
    for row in rows:
        numpy_ms, hub_ms, each = row["times"]
        print(f"{row['problem']:40}{numpy_ms:12.4f}{hub_ms:14.4f}{each:9.2f}")
    if arguments.json:
        columns = ["numpy ms", "gemmhub ms", "median ratio"]
        results.save(arguments.json, **{"columns of times": columns, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
