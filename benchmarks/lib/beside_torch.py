"""Comparison of one backend with torch.matmul on one product on an NVIDIA card: timing, check, row of results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch

from benchmarks.lib.cuda_graphs import Call, Rig, expected, launching
from benchmarks.lib.drawn import LARGE, Product, Sizes
from benchmarks.lib.drawn import problem as problem_of
from benchmarks.lib.one_backend import prepared
from benchmarks.lib.torch_calls import RATES, call_key
from gemmhub.backend import Backend, Offer
from gemmhub.problem import GemmProblem

_FEW = (1, 1, 1, 2, 3, 4, 5, 6, 8)
"""Numbers of rows of products of few."""


def drawn(seed: int, few: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield (m, n, k) without end: sizes of all magnitudes, most of them multiples of 8.

    With ``few``, products have at most so many rows, or columns.
    """
    rng = np.random.default_rng(seed)
    while True:
        sides = 2 ** rng.uniform((0, 7, 7), (14, 15, 15))
        units = rng.choice((1, 8, 16, 64, 128), 3, p=(0.05, 0.25, 0.15, 0.3, 0.25))
        units[1:] = np.maximum(units[1:], 8)  # TMA takes rows of multiples of 16 bytes
        m, n, k = (int(max(1 if side < unit else unit, side // unit * unit)) for side, unit in zip(sides, units))
        if few:
            m = min(few, int(rng.choice(_FEW if few <= max(_FEW) else (*_FEW, 12, 16))))
            m, n = (n, m) if rng.random() < 0.2 else (m, n)
        if (1e5 if few else 1e7) < 2 * m * n * k < 2e12:
            yield m, n, k


def problem(m: int, n: int, k: int, order: str, dtype: str) -> GemmProblem:
    """Return the problem of one product; in ``order``, for a and b, "n" is row-major and "t" column-major."""
    return problem_of(Product("", dtype, order, Sizes(1, m, n, k)))


def rig_of(m: int, n: int, k: int, order: str, dtype: str) -> Rig:
    """Return the rig that times one product."""
    return Rig(m, n, k, order, call_key(dtype), expected(m, n, k, RATES[dtype]))


def caller(backend: Backend, asked: GemmProblem, candidate: str, workspace: int) -> Call:
    """Prepare a candidate of a backend as a call on tensors. Raises ValueError where it is refused."""
    return launching(prepared(backend, asked, candidate, workspace).run)


def close(call: Call, rig: Rig, dtype: str) -> bool:
    """Compare a call's result with torch's, up to rounding, and else with float64's.

    torch.matmul itself was observed to omit a K remainder (docs/cublas.md).
    """
    tolerance = 1e-4 if dtype == "float32" else 0.05
    a, b, out = rig.sets[0]
    out.fill_(float("nan"))
    call(a, b, out)
    result = out.float()

    def near(reference: Any) -> bool:
        scale = reference.square().mean().sqrt()
        return bool(((result - reference).abs() <= tolerance * (scale + 0.4 * reference.abs())).all())

    return near(torch.matmul(a, b).float()) or near((a.double() @ b.double()).float())


def compared(
    backend: Backend, asked: GemmProblem, offer: Offer, order: str, rig: Rig, calls: dict[str, Call],
    dtype: str, rounds: int, others: dict[str, int] | None = None,
) -> tuple[dict[str, Any], dict[str, float]]:  # fmt: skip
    """Time ``calls`` in one run with torch's, print a line, and return the row of a result file.

    The first of ``calls`` is the first candidate of ``offer``. ``others`` are contenders that the rig already has;
    their seconds are returned beside the row.
    """
    wrong = [name for name, call in calls.items() if not close(call, rig, dtype)]
    contenders = {"torch": rig.add(lambda a, b, out: torch.matmul(a, b, out=out))}
    contenders |= {name: rig.add(call) for name, call in calls.items()} | (others or {})
    times = dict(zip(contenders, rig.medians(list(contenders.values()), rounds)))
    beside = {name: times.pop(name) for name in others or {}}
    reference = times.pop("torch")
    chosen, best = next(iter(times)), min(times, key=lambda name: times[name])
    m, n, k = asked.m, asked.n, asked.k
    row = {
        "m": m, "n": n, "k": k, "order": order, "torch_us": reference * 1e6, "chosen": chosen, "best": best,
        "estimate_us": (offer.first.seconds or math.nan) * 1e6, "us": {name: t * 1e6 for name, t in times.items()},
        "ratio": reference / times[chosen], "best_ratio": reference / times[best], "wrong": wrong,
    }  # fmt: skip
    tflops = [2e-12 * m * n * k / t for t in (reference, times[chosen])]
    tail = f"  best {best} {row['best_ratio']:.3f}" if best != chosen else ""
    alarm = f"  WRONG: {', '.join(wrong)}" if wrong else ""
    print(
        f"{m:6}{n:6}{k:6} {order}  torch {tflops[0]:6.1f}  {backend.name} {tflops[1]:6.1f} TFLOP/s  "
        f"ratio {row['ratio']:.3f}  {chosen}{tail}{alarm}",
        flush=True,
    )
    return row, beside


def summary(rows: list[dict[str, Any]], key: str) -> str:
    """Return the geometric mean and the worst of a column."""
    if not rows:
        return "-"
    values = [row[key] for row in rows]
    return f"geometric mean {geometric_mean(values):.3f} over {len(rows)}, worst {min(values):.3f}"


def print_summaries(rows: list[dict[str, Any]]) -> None:
    """Print how the backend's choice, and the fastest timed, compare with torch, by size of products."""
    for key in ("ratio", "best_ratio"):
        large = [row for row in rows if 2 * row["m"] * row["n"] * row["k"] >= LARGE]
        small = [row for row in rows if row not in large]
        print(f"{key}: from {LARGE:.0e} operations on {summary(large, key)}; below {summary(small, key)}")
