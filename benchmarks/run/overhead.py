"""The overhead of gemmhub over the same NumPy expressions written by hand, in one run.

    python -m benchmarks.run.overhead [--json FILE]

Calls on 1 x 1 and 16 x 16 float32 operands, with and without options, are timed in interleaved chunks; the minimum over
chunks is compared (a minimum, because a call this short is either undisturbed or not a measurement). Imports are
timed in fresh interpreters, alternately, and their medians compared.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gemmhub
from benchmarks.lib import results
from gemmhub._base.timing import interleave
from gemmhub.epilogues import EPILOGUES
from gemmhub.numpy_backend.activations import in_place

LIMITS = {"plain": 0.6, "plan": 0.25, "options": 1.2, "import": 30_000.0}
"""Limits in microseconds over the same by hand, or over importing NumPy."""

Calls = tuple[str, Callable[[], Any], Callable[[], Any]]
"""Name of the limit, gemmhub's call, and the same by hand."""


def cases(size: int) -> dict[str, Calls]:
    """Return the calls to compare, by name."""
    rng = np.random.default_rng()
    a, b, c = rng.standard_normal((3, size, size)).astype(np.float32)
    bias, out, zero = b[0].copy(), np.empty_like(a), np.float32(0)
    rows, columns = np.abs(a[0]) + 1, np.abs(b[0]) + 1
    formulas = {name: in_place(EPILOGUES[name], a.dtype).apply for name in ("relu", "gelu", "gelu_tanh", "silu")}

    def by_hand(activation: str) -> Any:
        x = dot(a, b)
        add(x, bias, x)
        formulas[activation](x)
        return x

    def scaled() -> Any:
        x = dot(a, b)
        multiply(x, rows[:, np.newaxis], x)
        return multiply(x, columns, x)

    def whole() -> Any:
        x = dot(a, b)
        multiply(x, 2.5, x)
        return add(x, multiply(c, 0.5), x)

    planned, biased = gemmhub.plan(a, b, out=out), gemmhub.plan(a, b, bias=bias)
    dot, add, multiply, relu, matmul = np.matmul, np.add, np.multiply, np.maximum, gemmhub.matmul
    return {
        "matmul": ("plain", lambda: matmul(a, b), lambda: dot(a, b)),
        "matmul out=": ("plain", lambda: matmul(a, b, out=out), lambda: dot(a, b, out=out)),
        "plan out=": ("plan", lambda: planned(a, b, out), lambda: dot(a, b, out=out)),
        "plan bias=": ("options", lambda: biased(a, b, bias=bias), lambda: dot(a, b) + bias),
        "bias=": ("options", lambda: matmul(a, b, bias=bias), lambda: dot(a, b) + bias),
        "bias= out=": (
            "options", lambda: matmul(a, b, bias=bias, out=out), lambda: add(dot(a, b, out=out), bias, out=out),
        ),
        "bias= activation=": (
            "options", lambda: matmul(a, b, bias=bias, activation="relu"), lambda: relu(dot(a, b) + bias, zero),
        ),
        **{
            f"bias= {name}": (
                "options", lambda name=name: matmul(a, b, bias=bias, activation=name), lambda name=name: by_hand(name),
            ) for name in formulas
        },
        "alpha= c= beta=": ("options", lambda: matmul(a, b, alpha=2.5, c=c, beta=0.5), whole),
        "scale_a= scale_b=": ("options", lambda: matmul(a, b, scale_a=rows, scale_b=columns), scaled),
        "alpha=": ("options", lambda: matmul(a, b, alpha=2.5), lambda: dot(a, b) * 2.5),
        "c= beta=": ("options", lambda: matmul(a, b, c=c, beta=0.5), lambda: dot(a, b) + 0.5 * c),
        "backend=": ("options", lambda: matmul(a, b, backend="numpy"), lambda: dot(a, b)),
        "out_dtype=": ("options", lambda: matmul(a, b, out_dtype=np.float32), lambda: dot(a, b)),
    }  # fmt: skip


def calls(size: int, rounds: int) -> dict[str, tuple[float, float, str]]:
    """Return, by name, the microseconds of gemmhub's call and of the same by hand, and the name of the limit."""
    found = cases(size)
    functions = [function for _, hub, hand in found.values() for function in (hub, hand)]
    seconds = [x.minimum for x in interleave(functions, rounds=rounds, min_time=1e-3, warmup=3)]
    return {
        name: (hub * 1e6, hand * 1e6, kind)
        for (name, (kind, *_)), hub, hand in zip(found.items(), seconds[::2], seconds[1::2])
    }


def imports(rounds: int) -> dict[str, float]:
    """Return the median microseconds of ``import`` in a fresh interpreter."""
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
    found: dict[str, dict[str, tuple[float, float, str]]] = {}
    within = True
    print(f"{'':28}{'gemmhub (us)':>14}{'by hand':>10}{'over':>8}{'limit':>9}")
    for size in (1, 16):
        rows = found[f"{size}x{size}"] = calls(size, arguments.rounds)
        for name, (hub, hand, kind) in rows.items():
            within &= hub - hand <= LIMITS[kind]
            print(f"{size:3} x {size:<3} {name:19}{hub:14.3f}{hand:10.3f}{hub - hand:8.3f}{LIMITS[kind]:9.2f}")
    times = imports(max(5, arguments.rounds // 20))
    found["import"] = {"import": (times["gemmhub"], times["numpy"], "import")}
    over = times["gemmhub"] - times["numpy"]
    within &= over <= LIMITS["import"]
    print(f"{'import gemmhub':28}{times['gemmhub']:14.0f}{times['numpy']:10.0f}{over:8.0f}{LIMITS['import']:9.0f}")
    print("within the limits" if within else "OVER A LIMIT")
    if arguments.json:
        results.save(
            arguments.json,
            backends=[name for name, x in gemmhub.backends().items() if x.state == "ready"],
            microseconds={
                size: {name: {"gemmhub": hub, "by hand": hand} for name, (hub, hand, _) in rows.items()}
                for size, rows in found.items()
            },
        )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
