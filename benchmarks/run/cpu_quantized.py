"""Scaled products of int8, of float8, and of bfloat16 by an int8 weight, beside torch's, on a CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.run.cpu_quantized [--random 6] [--rounds 21] [--json FILE]

Results are bfloat16, scales one for each row of a and each column of b; bfloat16 by int8 has those of b alone. Operands
are random. Each call takes the next of several sets of operands, so that weights come from beyond the L2 cache.
gemmhub's weights are packed, but in rows that say otherwise; torch's where its function has a packed form:

- ``qlinear``: torch.ops.onednn.qlinear_pointwise, whose activations have one scale for all rows; the weight is packed;
- ``int_mm``: torch._int_mm, whose int32 result is scaled and converted in further passes;
- ``scaled_mm``: torch._scaled_mm of float8;
- ``bfloat16``: torch.matmul of operands that were converted to bfloat16 before, without scales: twice the memory.

Not compared: torch._weight_int8pack_mm of bfloat16 by int8, which crashes here with torch 2.13 (1024 x 1024 x 1024).
All contenders of a product take turns; medians are compared. One thread runs on one processor and is timed by its CPU
time, several by wall time, which other work on the machine disturbs.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import ml_dtypes
import numpy as np
import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.cpu_clock import CpuClock
from gemmhub._base.timing import HostClock, interleave

Array = Any
SIZES = ((1024, 1024, 1024), (1, 4096, 4096), (8, 4096, 4096), (128, 4096, 4096))
KINDS = (("int8", "int8"), ("float8_e4m3fn", "float8_e4m3fn"), ("bfloat16", "int8"))
BF16 = np.dtype(ml_dtypes.bfloat16)
_ROTATED = 48 << 20
"""Bytes of the weights that a contender goes through."""


def _drawn(rng: np.random.Generator, dtype: str, rows: int, columns: int) -> Array:
    if dtype == "int8":
        return rng.integers(-127, 128, (rows, columns), dtype=np.int8)
    return rng.standard_normal((rows, columns), np.float32).astype(getattr(ml_dtypes, dtype))


def _tensor(x: Array) -> torch.Tensor:
    """``x`` as a tensor of the same memory."""
    same = torch.from_numpy(x.view(np.int16 if x.dtype == BF16 else np.int8))
    return same.view(getattr(torch, x.dtype.name))


def _torch_calls(q: Array, w: Array, scale_a: Array, scale_b: Array) -> dict[str, Callable[[], object]]:
    """The calls of torch for one set of operands; ``w`` is (n, k)."""
    a, weight = _tensor(q), _tensor(w)
    rows, columns = (torch.from_numpy(x) for x in (scale_a, scale_b))
    found: dict[str, Callable[[], object]] = {}
    if q.dtype != np.int8:
        left, wide, right = a.to(torch.bfloat16), weight.to(torch.bfloat16).t(), weight.t()
        found["bfloat16"] = lambda: torch.matmul(left, wide)
        if q.dtype != BF16:
            found["scaled_mm"] = lambda: torch._scaled_mm(a, right, rows, columns, out_dtype=torch.bfloat16)
        return found
    operations = torch.ops.onednn
    packed, zeros = operations.qlinear_prepack(weight, list(q.shape)), torch.zeros(len(w), dtype=torch.int64)
    one, vector, right = float(scale_a.mean()), columns.reshape(-1), weight.t()
    last = (None, 1.0, 0, torch.bfloat16, "none", [], "")
    found["qlinear"] = lambda: operations.qlinear_pointwise(a, one, 0, packed, vector, zeros, *last)
    if len(q) > 1:
        found["int_mm"] = lambda: (torch._int_mm(a, right) * rows * columns).to(torch.bfloat16)
    return found


def _in_turn(calls: list[Callable[[], object]]) -> Callable[[], object]:
    endless = itertools.cycle(calls)
    return lambda: next(endless)()


def row(rng: np.random.Generator, kind: tuple[str, str], sizes: tuple[int, int, int], packed: bool, rounds: int) -> Any:
    """Return the median microseconds of each contender of one product."""
    m, n, k = sizes
    out = np.empty((m, n), BF16)  # one for all sets, as torch's allocator returns the memory that was freed last
    calls: dict[str, list[Callable[[], object]]] = {}
    for _ in range(max(1, min(8, _ROTATED // (n * k)))):
        q, w = _drawn(rng, kind[0], m, k), _drawn(rng, kind[1], n, k)
        scale_a, scale_b = (rng.random(shape, np.float32) / 100 for shape in ((m, 1), (1, n)))
        right = gemmhub.pack(w.T, a_dtype=kind[0], m=m, backend="cpu") if packed else w.T
        options: dict[str, Any] = {"scale_b": scale_b, "out": out}
        if kind[0] != "bfloat16":
            options["scale_a"] = scale_a
        each: dict[str, Callable[[], object]] = {
            "gemmhub": lambda q=q, right=right, options=options: gemmhub.matmul(q, right, **options)  # type: ignore[misc]
        }
        each |= _torch_calls(q, w, scale_a, scale_b)
        for name, call in each.items():
            calls.setdefault(name, []).append(call)
    clock = CpuClock() if torch.get_num_threads() == 1 else HostClock()
    timings = interleave([_in_turn(x) for x in calls.values()], clock=clock, rounds=rounds, warmup=8, min_time=5e-3)
    us = {name: timing.median * 1e6 for name, timing in zip(calls, timings)}
    best = min(time for name, time in us.items() if name != "gemmhub")
    return {
        "operands": " by ".join(dict.fromkeys(kind)), "m": m, "n": n, "k": k, "packed": packed, "us": us,
        "ratio": best / us["gemmhub"],
    }  # fmt: skip


def main() -> None:
    """Print the times of each product, and the means over random sizes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--random", type=int, default=6, help="products of random sizes, for each kind")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    threads = int(os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())))
    torch.set_num_threads(threads)
    if threads == 1:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = []
    for kind in KINDS:
        drawn = [tuple(int(2 ** rng.uniform(6, 11)) for _ in range(3)) for _ in range(given.random)]
        for sizes, packed in [(SIZES[0], False), *((x, True) for x in (*SIZES, *drawn))]:
            rows.append({**row(rng, kind, sizes, packed, given.rounds), "drawn": sizes in drawn})
            times = ", ".join(f"{name} {us:.0f}" for name, us in rows[-1]["us"].items())
            print(
                f"{rows[-1]['operands']} {sizes}{' packed' * packed}: {rows[-1]['ratio']:.2f} ({times} us)", flush=True
            )
        mean = geometric_mean(x["ratio"] for x in rows if x["drawn"] and x["operands"] == rows[-1]["operands"])
        print(f"{rows[-1]['operands']}, random sizes: {mean:.2f}")
    if given.json:
        results.save(given.json, threads=threads, torch=torch.__version__, rows=rows)


if __name__ == "__main__":
    main()
