"""Half, bfloat16 and int8 products against float32 SGEMM, in one run: the built-in backend and gemmhub-cpu.

    python -m benchmarks.run.cpu [--sizes 512 1024 2048 4096] [--rounds 9] [--others] [--mkl FILE] [--json FILE]
    python -m benchmarks.run.cpu --vectors [--sizes 1024 8192] [--rounds 9] [--json FILE]

Square operands in C order, random data, a new result each call, everything included. Every contender is
timed in every round; ratios are speed over ``numpy.matmul`` in float32 (median over rounds of the ratio in
each round). The second table alternates SGEMM with each product and compares the time of the pair with what
both take alone: what pools of threads cost their neighbours. OpenBLAS's threads spin for about 0.1 s after a
call, on cores that others then want; OPENBLAS_THREAD_TIMEOUT=4 in the environment shortens that to microseconds.
``--cpu-time`` takes the CPU time of the process in place of the time of the clock, for one core of a machine that has
other work (``taskset -c 1``, OPENBLAS_NUM_THREADS and OMP_NUM_THREADS 1).
``--others`` adds the kernels of torch and of numkong, called directly, where they are installed, and with ``--mkl``
those of MKL, whose libmkl_rt FILE is. ``--vectors`` times products of square matrices by a vector instead, in GB/s of
the matrix, beside NumPy's reading it in as many threads as there are cores.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import gemmhub
from benchmarks.lib import results
from gemmhub._base.timing import CLOCK, HostClock, interleave
from gemmhub.numpy_backend.probe import cores

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "int8": np.dtype(np.int8), "float16": np.dtype(np.float16)}


class CpuClock(HostClock):
    """The CPU time of the process."""

    def measure(self, call: Callable[[], object], repeats: int) -> float:
        start = time.process_time()
        for _ in range(repeats):
            call()
        return (time.process_time() - start) / repeats


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


def mkl(size: int, library: Path) -> dict[str, Callable[[], object]]:
    """MKL's products through ctypes. Its int8 product in row-major order takes an unsigned a: a plus 128."""
    blas = ctypes.CDLL(str(library))
    rng = np.random.default_rng()
    wide = [rng.standard_normal((size, size)).astype(np.float32) for _ in range(2)]
    row_major, no_transpose, one_offset = 101, 111, 173
    one, none, nothing = ctypes.c_float(1), ctypes.c_float(0), np.zeros(1, np.int32)

    def floats(name: str, x: Any, y: Any) -> object:
        out = np.empty((size, size), np.float32)
        a, b, c = (ctypes.c_void_p(v.ctypes.data) for v in (x, y, out))
        call = getattr(blas, name)
        call(row_major, no_transpose, no_transpose, size, size, size, one, a, size, b, size, none, c, size)
        return out

    def integers(x: Any, y: Any) -> object:
        out, moved = np.empty((size, size), np.int32), x.view(np.uint8) ^ np.uint8(128)
        a, b, c, d = (ctypes.c_void_p(v.ctypes.data) for v in (moved, y, out, nothing))
        blas.cblas_gemm_s8u8s32(
            row_major, no_transpose, no_transpose, one_offset, size, size, size, one, a, size, ctypes.c_int8(-128),
            b, size, ctypes.c_int8(0), none, c, size, d,
        )  # fmt: skip
        return out

    calls: dict[str, Callable[[], object]] = {}
    for dtype, name in (("bfloat16", "cblas_gemm_bf16bf16f32"), ("float16", "cblas_gemm_f16f16f32")):
        x, y = (v.astype(DTYPES[dtype]) for v in wide)
        calls[f"{dtype} MKL"] = lambda name=name, x=x, y=y: floats(name, x, y)
    x, y = ((v * 20).astype(np.int8) for v in wide)
    calls["int8 MKL"] = lambda x=x, y=y: integers(x, y)
    return calls


def vectors(sizes: list[int], rounds: int) -> dict[str, dict[int, float]]:
    """GB/s of a matrix in products by a vector, best of the rounds."""
    rng = np.random.default_rng()
    table: dict[str, dict[int, float]] = {}
    with ThreadPoolExecutor(cores()) as pool:
        for size in sizes:
            for name, dtype in DTYPES.items():
                matrix = (rng.standard_normal((size, size), np.float32) * 20).astype(dtype)
                x = (rng.standard_normal(size) * 20).astype(dtype)
                parts = np.array_split(matrix.reshape(-1).view(np.uint64), cores())
                calls: dict[str, Callable[[], object]] = {
                    f"{name} read by NumPy": lambda parts=parts: list(pool.map(np.max, parts)),
                    f"{name} matrix @ vector": lambda m=matrix, x=x: gemmhub.matmul(m, x),
                    f"{name} vector @ matrix": lambda m=matrix, x=x: gemmhub.matmul(x, m),
                    f"{name} matrix @ vector, numpy": lambda m=matrix, x=x: gemmhub.matmul(m, x, backend="numpy"),
                }
                for label, timing in zip(calls, interleave(list(calls.values()), rounds=rounds)):
                    table.setdefault(label, {})[size] = matrix.nbytes / min(timing.samples) / 1e9
    return table


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


def _table(title: str, rows: dict[str, dict[int, float]], sizes: list[int]) -> str:
    """Labels and a column for each size."""
    lines = [f"{title:34}" + "".join(f"{size:>8}" for size in sizes)]
    for label, row in rows.items():
        lines.append(f"{label:34}" + "".join(f"{row[x]:8.2f}" if x in row else f"{'-':>8}" for x in sizes))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--others", action="store_true", help="time torch and numkong, too")
    parser.add_argument("--mkl", type=Path, help="time the MKL with this libmkl_rt, too")
    parser.add_argument("--cpu-time", action="store_true", help="take the CPU time of the process")
    parser.add_argument("--vectors", action="store_true", help="time products by a vector instead")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.vectors:
        speeds = vectors(arguments.sizes, arguments.rounds)
        print(_table("GB/s of the matrix", speeds, arguments.sizes))
        if arguments.json:
            results.save(arguments.json, **{"GB/s of the matrix": speeds})
        return 0
    names = [s.name for s in gemmhub.backends() if s.state == "ready" and s.name in ("numpy", "cpu")]
    versions = {s.name: {**s.versions, "features": "; ".join(s.features)} for s in gemmhub.backends() if s.versions}
    table: dict[str, dict[int, float]] = {}
    neighbours: dict[str, dict[int, float]] = {}
    for size in arguments.sizes:
        calls = contenders(size, names)
        if arguments.others:
            calls |= others(size)
        if arguments.mkl:
            calls |= mkl(size, arguments.mkl)
        clock = CpuClock() if arguments.cpu_time else CLOCK
        timings = interleave(list(calls.values()), clock=clock, rounds=arguments.rounds)
        base = timings[0].samples
        for label, timing in zip(calls, timings):
            ratio = statistics.median(b / t for b, t in zip(base, timing.samples))
            table.setdefault(label, {})[size] = ratio
        sgemm = calls["float32 numpy.matmul"]
        if 1024 <= size <= 2048 and not (arguments.others or arguments.cpu_time):
            for label, call in calls.items():
                if "packed" not in label:
                    neighbours.setdefault(label, {})[size] = alternating(call, sgemm, arguments.rounds)
    print(_table("speed over float32 numpy.matmul", table, arguments.sizes))
    small = [size for size in arguments.sizes if 1024 <= size <= 2048]
    print(_table("\nSGEMM and it in turn, over alone", neighbours, small))
    if arguments.json:
        results.save(
            arguments.json,
            OPENBLAS_THREAD_TIMEOUT=os.environ.get("OPENBLAS_THREAD_TIMEOUT"),
            backends=versions,
            **{
                "speed over float32 numpy.matmul": table,
                "SGEMM and it in turn, over alone": neighbours,
            },
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
