"""Measured time over estimated time of gemmhub-cpu's kernels, by class: what the constants of its model are fitted by.

    python -m benchmarks.run.cpu_model [--rounds 7] [--all] [--json FILE]

Small products, few rows, batches, vectors, and squares, of every unit that runs here, b packed in the call and
beforehand. On one processor (``taskset -c 1``) CPU time is taken. ``--all`` prints each product.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from gemmhub_cpu.backend import CpuBackend

from benchmarks.lib import results
from benchmarks.lib.cpu_clock import CpuClock
from benchmarks.lib.cpu_products import Product
from gemmhub._base.timing import CLOCK, interleave
from gemmhub._call.describe import describe
from gemmhub._call.options import request
from gemmhub.backend import Kernel
from gemmhub.capability import Refusal
from gemmhub.numpy_backend.probe import cores

DTYPES = ("int8", "bfloat16", "float16", "int32", "int64")


def products() -> Iterator[Product]:
    """Yield the products of every class and dtype."""
    for dtype in DTYPES:
        floats_or_int8 = dtype not in ("int32", "int64")
        for size in (8, 32, 64, 128):
            yield Product("small", dtype, size, size, size)
        for m, n in ((1, 1024), (1024, 1), (1, 4096)):
            yield Product("vectors", dtype, m, n, 1024)
        for rows in (2, 4, 8, 32, 64):
            yield Product("few rows", dtype, rows, 1024, 1024)
            if floats_or_int8:
                yield Product("few rows, packed b", dtype, rows, 1024, 1024, packed=True)
        for batch, size in ((16, 16), (256, 16), (16, 64), (64, 64), (16, 128)):
            yield Product("batches", dtype, size, size, size, batch)
        for size in (256, 512, 1024) if floats_or_int8 else (256,):
            yield Product("squares", dtype, size, size, size)
            if floats_or_int8:
                yield Product("squares, packed b", dtype, size, size, size, packed=True)


def rows(rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the measured and the estimated microseconds of each product."""
    clock = CpuClock(time.process_time) if cores() == 1 else CLOCK
    backend = CpuBackend(by_cost=False)
    for product in products():
        a, b, out = product.operands()[0]
        problem = describe(a, b, out, request({})).problem
        right: Any = b
        if product.packed:
            right, problem = backend.pack(b, problem), replace(problem, packed_by="cpu")
        offer, unit = backend.offer(problem), backend.unit(problem)
        if isinstance(offer, Refusal) or isinstance(right, Refusal) or unit is None:
            continue
        name = "packed" if product.packed else "native"
        estimate = next(x.seconds for x in offer.candidates if x.name == name)
        kernel = backend.prepare(problem, name, offer.workspace)
        assert isinstance(kernel, Kernel)
        assert kernel.direct is not None
        assert estimate is not None
        timing = interleave([partial(kernel.direct, a, right, out)], clock=clock, rounds=rounds)[0]
        yield {
            "class": product.name, "product": product.label, "unit": unit.name, "us": timing.minimum * 1e6,
            "estimate_us": estimate * 1e6, "ratio": timing.minimum / estimate,
        }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--all", action="store_true", help="print each product")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    table: list[dict[str, Any]] = []
    by_class: dict[tuple[str, str], list[float]] = {}
    for row in rows(arguments.rounds):
        table.append(row)
        by_class.setdefault((row["unit"], row["class"]), []).append(row["ratio"])
        if arguments.all:
            print(
                f"{row['class']:20} {row['product']:28} {row['us']:9.1f} {row['estimate_us']:9.1f} {row['ratio']:6.2f}"
            )
    print(f"{cores()} processors, NumPy {np.__version__}: measured over estimated, mean, lowest, highest, products")
    for (unit, name), ratios in by_class.items():
        mean, low, high = geometric_mean(ratios), min(ratios), max(ratios)
        print(f"{unit:28} {name:20} {mean:6.2f} {low:6.2f} {high:6.2f} {len(ratios):4}")
    if arguments.json:
        results.save(arguments.json, rows=table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
