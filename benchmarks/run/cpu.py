"""Half, bfloat16 and int8 products against float32 SGEMM, in one run: the built-in backend and gemmhub-cpu.

    python -m benchmarks.run.cpu [--sizes 512 1024 2048 4096] [--rounds 9] [--others] [--json FILE]

Square operands in C order, random data, a new result each call, everything included. Every contender is
timed in every round; ratios are speed over ``numpy.matmul`` in float32 (median over rounds of the ratio in
each round). The second table alternates SGEMM with each product and compares the time of the pair with what
both take alone: what pools of threads cost their neighbours. OpenBLAS's threads spin for about 0.1 s after a
call, on cores that others then want; OPENBLAS_THREAD_TIMEOUT=4 in the environment shortens that to microseconds.
``--others`` adds the kernels of torch and of numkong, called directly, where they are installed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np

import gemmhub
from benchmarks.lib import results
from gemmhub._base.timing import interleave

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "int8": np.dtype(np.int8), "float16": np.dtype(np.float16)}


def contenders(size: int, names: list[str]) -> dict[str, Callable[[], object]]:
    """Every contender at this size."""
    rng = np.random.default_rng()
    wide = [rng.standard_normal((size, size)).astype(np.float32) for _ in range(2)]
    out = np.empty((size, size), np.float32)
    calls: dict[str, Callable[[], object]] = {"float32 numpy.matmul": lambda: np.matmul(*wide, out=out)}
    for dtype_name, dtype in DTYPES.items():
        a, b = ((x * 20).astype(dtype) for x in wide)
        for name in names:
            if gemmhub.explain(a, b, backend=name).chosen is None:  # a gate: too small, say
                continue
            calls[f"{dtype_name} {name}"] = lambda a=a, b=b, name=name: gemmhub.matmul(a, b, backend=name)
            packed = gemmhub.pack(b, backend=name)
            calls[f"{dtype_name} {name} packed"] = lambda a=a, packed=packed: gemmhub.matmul(a, packed)
    return calls


def others(size: int) -> dict[str, Callable[[], object]]:
    """The products of torch and numkong, as their users call them: b as it is, results allocated by them."""
    rng = np.random.default_rng()
    calls: dict[str, Callable[[], object]] = {}
    wide = [rng.standard_normal((size, size)).astype(np.float32) for _ in range(2)]
    if find_spec("torch"):
        import torch

        for kind in (torch.bfloat16, torch.float16):
            if kind == torch.float16 and size > 512:
                continue  # without instructions for it, hundreds of times slower
            x, y = (torch.from_numpy(v).to(kind) for v in wide)
            calls[f"{str(kind).removeprefix('torch.')} torch"] = lambda x=x, y=y: torch.matmul(x, y)
        x, y = (torch.from_numpy((v * 20).astype(np.int8)) for v in wide)
        calls["int8 torch"] = lambda x=x, y=y: torch._int_mm(x, y)
    if find_spec("numkong"):
        from gemmhub_cpu.numkong_engine import multiply, pack

        for name, sums in (("bfloat16", np.float32), ("int8", np.int32)):
            a, b = ((v * 20).astype(DTYPES[name]) for v in wide)
            out = np.empty((size, size), sums)
            calls[f"{name} numkong, one thread"] = lambda a=a, b=b, out=out: multiply(
                a, pack(np.ascontiguousarray(b.T)), out
            )
    return calls


def alternating(call: Callable[[], object], sgemm: Callable[[], object], rounds: int) -> float:
    """Median time of SGEMM and ``call`` in turn, over the sum of their times alone."""
    ratios = []
    for _ in range(rounds):
        alone = 0.0
        for contender in (sgemm, call):
            time.sleep(0.3)  # until nobody spins
            contender()
            alone += min(_once(contender) for _ in range(3))
        both = min(_once(sgemm) + _once(call) for _ in range(3))
        ratios.append(both / alone)
    return statistics.median(ratios)


def _once(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--others", action="store_true", help="time torch and numkong, too")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = [s.name for s in gemmhub.backends() if s.state == "ready" and s.name in ("numpy", "cpu")]
    versions = {s.name: {**s.versions, "features": "; ".join(s.features)} for s in gemmhub.backends() if s.versions}
    table: dict[str, dict[int, float]] = {}
    neighbours: dict[str, dict[int, float]] = {}
    for size in arguments.sizes:
        calls = {**contenders(size, names), **(others(size) if arguments.others else {})}
        timings = interleave(list(calls.values()), rounds=arguments.rounds)
        base = timings[0].samples
        for label, timing in zip(calls, timings):
            ratio = statistics.median(b / t for b, t in zip(base, timing.samples))
            table.setdefault(label, {})[size] = ratio
        sgemm = calls["float32 numpy.matmul"]
        if 1024 <= size <= 2048 and not arguments.others:
            for label, call in calls.items():
                if "packed" not in label:
                    neighbours.setdefault(label, {})[size] = alternating(call, sgemm, arguments.rounds)
    print(f"{'speed over float32 numpy.matmul':34}" + "".join(f"{size:>8}" for size in arguments.sizes))
    for label, row in table.items():
        print(f"{label:34}" + "".join(f"{row[size]:8.2f}" if size in row else f"{'-':>8}" for size in arguments.sizes))
    small = [size for size in arguments.sizes if 1024 <= size <= 2048]
    print(f"\n{'SGEMM and it in turn, over alone':34}" + "".join(f"{size:>8}" for size in small))
    for label, row in neighbours.items():
        print(f"{label:34}" + "".join(f"{row[size]:8.2f}" if size in row else f"{'-':>8}" for size in small))
    if arguments.json:
        results.save(
            arguments.json,
            OPENBLAS_THREAD_TIMEOUT=os.environ.get("OPENBLAS_THREAD_TIMEOUT"),
            backends=versions,
            **{"speed over float32 numpy.matmul": table, "SGEMM and it in turn, over alone": neighbours},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
