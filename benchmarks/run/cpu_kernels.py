"""Rates of gemmhub-cpu's micro-kernels by themselves, and of whole products beside NumPy's and torch's.

    python -m benchmarks.run.cpu_kernels [--sizes 64 ... 4096] [--rounds 7] [--json FILE]

The first table is compiled from the sources of the kernels (g++) and runs on one core: G/s (2 operations a
multiplication) of the instruction on registers alone, of a micro-tile in the L1 cache, of a tile of 128 x 192 in L2, of
512 x 1024 results beyond L2 and of 2048 x 2048 results beyond the caches, operands packed; and the second and third as
fractions of the first. The tables after it are of gemmhub.matmul with ``out=`` and of a packed b, in processes of their
own: on one core, and on as many as the process may use; torch is timed where it is installed. All take some 2 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
from gemmhub_cpu import sources
from gemmhub_cpu.units import UNITS

import gemmhub
from benchmarks.lib import results
from gemmhub._base.timing import interleave
from gemmhub.numpy_backend.probe import cores, cpu_flags

Table = dict[str, dict[str, float]]
BF16 = np.dtype(ml_dtypes.bfloat16)
CASES = {
    "int8": (np.dtype(np.int8), np.dtype(np.int32)),
    "bfloat16": (BF16, BF16),
    "bfloat16 to float32": (BF16, np.dtype(np.float32)),
    "float16": (np.dtype(np.float16), np.dtype(np.float16)),
}
"""Labels, and the dtypes of operands and of results."""


def kernels() -> Table:
    """Rates of the micro-kernels that this processor has, by unit."""
    words, library = cpu_flags(), sources.library()
    here = [unit for unit in UNITS if all(flag in words for flag in unit.flags)]
    source = Path(__file__).with_suffix(".cpp")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "cpu_kernels")
        flags = ("-O2", "-std=c++17", "-pthread", "-fno-exceptions", "-fno-rtti", f"-I{sources.FOLDER}")
        files = map(str, (source, *library.sources))
        subprocess.run(["g++", *flags, *files, "-o", str(program)], check=True)
        arguments = [f"{unit.index}{':amx' if unit.amx else ''}" for unit in here]
        lines = subprocess.run(
            [str(program), *arguments], check=True, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}),
        ).stdout  # fmt: skip
    names = {str(unit.index): unit.name for unit in here}
    table: Table = {}
    for line in lines.splitlines():
        index, case, rate = line.split()
        table.setdefault(names[index], {})[case] = float(rate)
    return table


def products(size: int, rounds: int) -> dict[str, float]:
    """G/s of whole products of one size, by label."""
    rng = np.random.default_rng()
    wide = [rng.standard_normal((size, size)).astype(np.float32) for _ in range(2)]
    calls: dict[str, Callable[[], object]] = {}
    for name, (dtype, sums) in CASES.items():
        if size > 2048 and name in ("float16", "bfloat16 to float32"):
            continue
        a, b = ((x * (20 if name == "int8" else 1)).astype(dtype) for x in wide)
        out = np.empty((size, size), sums)
        packed = gemmhub.pack(b, backend="cpu")
        calls[name] = lambda a=a, b=b, out=out: gemmhub.matmul(a, b, out=out)
        calls[f"{name} packed"] = lambda a=a, packed=packed, out=out: gemmhub.matmul(a, packed, out=out)
        for activation in (None, "gelu", "silu") if dtype == sums == BF16 else ():
            options = {"bias": wide[0][0].astype(dtype), "activation": activation, "out": out}
            label = f"{name} bias {activation or ''}".strip()
            calls[label] = lambda a=a, b=b, options=options: gemmhub.matmul(a, b, **options)
    if size <= 2048:
        result = np.empty((size, size), np.float32)
        calls["float32 numpy"] = lambda: np.matmul(*wide, out=result)
    if find_spec("torch"):
        calls.update(of_torch(wide))
    timings = interleave(list(calls.values()), rounds=max(3, rounds if size < 2048 else rounds // 2))
    return {label: 2e-9 * size**3 / min(timing.samples) for label, timing in zip(calls, timings)}


def of_torch(wide: list[np.ndarray]) -> dict[str, Callable[[], object]]:
    """The calls of torch, by label."""
    import torch

    torch.set_num_threads(cores())
    p, q = (torch.from_numpy(v).to(torch.bfloat16) for v in wide)
    i, j = (torch.from_numpy((v * 20).astype(np.int8)) for v in wide)
    half, whole = torch.empty(p.shape, dtype=torch.bfloat16), torch.empty(i.shape, dtype=torch.int32)
    weight, bias = q.t().contiguous(), p[0].contiguous()
    return {
        "bfloat16 torch": lambda: torch.matmul(p, q, out=half),
        "bfloat16 bias gelu torch": lambda: torch.nn.functional.gelu(torch.nn.functional.linear(p, weight, bias)),
        "int8 torch": lambda: torch._int_mm(i, j, out=whole),
    }


def table_of(sizes: list[int], rounds: int) -> Table:
    """G/s of whole products in this process, by label and size."""
    table: Table = {}
    for size in sizes:
        for label, rate in products(size, rounds).items():
            table.setdefault(label, {})[str(size)] = rate
    return dict(sorted(table.items()))


def table_on(processors: set[int], sizes: list[int], rounds: int) -> Table:
    """The same of a process that may use these processors."""
    threads = {name: str(len(processors)) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command = [sys.executable, "-m", "benchmarks.run.cpu_kernels", "--products", "--rounds", str(rounds)]
    done = subprocess.run(
        [*command, "--sizes", *map(str, sizes)], env=os.environ | threads, stdout=subprocess.PIPE, text=True,
        check=True, preexec_fn=lambda: os.sched_setaffinity(0, processors),
    )  # fmt: skip
    table: Table = json.loads(done.stdout)
    return table


def cell(row: dict[str, float], case: str) -> str:
    """A value of a table, or a dash."""
    width = max(10, len(case) + 1)
    return f"{row[case]:{width}.{2 if '/' in case else 1}f}" if case in row else f"{'-':>{width}}"


def show(title: str, table: Table) -> None:
    """Print a table: labels and a column for each case."""
    columns = list(dict.fromkeys(case for row in table.values() for case in row))
    print(f"{title:36}" + "".join(f"{case:>{max(10, len(case) + 1)}}" for case in columns))
    for label, row in table.items():
        print(f"{label:36}" + "".join(cell(row, x) for x in columns))
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--products", action="store_true", help="only the products, in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.products:
        print(json.dumps(table_of(arguments.sizes, arguments.rounds)))
        return 0
    begin = time.monotonic()
    alone = kernels()
    for row in alone.values():
        if "registers" in row:
            row |= {f"{case} / registers": row[case] / row["registers"] for case in ("L1", "L2")}
    show("micro-kernels, one core, G/s", alone)
    here = os.sched_getaffinity(0)
    tables = {f"products on {len(p)}, G/s": table_on(p, arguments.sizes, arguments.rounds) for p in ({max(here)}, here)}
    for title, table in tables.items():
        show(f"\n{title}", table)
    print(f"{time.monotonic() - begin:.0f} s")
    if arguments.json:
        results.save(arguments.json, **{"micro-kernels": alone}, **tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
