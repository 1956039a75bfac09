"""Symmetric products beside plain ones of the same operands: ``python -m benchmarks.run.symmetric``.

    OMP_NUM_THREADS=1 taskset -c 1 python -m benchmarks.run.symmetric [--rounds 12] [--json FILE]
    python -m benchmarks.run.symmetric --device cuda [--dtype bfloat16] [--muon] [--rounds 12] [--json FILE]

b holds the values of a's transpose in memory of its own, as the factors of Muon's polynomial do. Calls of the two take
turns, with operands that rotate. Times are CPU time, which other work on the machine moves less than the clock.

On an NVIDIA card x x^T is compared with torch.matmul, and beta * c + alpha * s s, of a symmetric s, with torch.addmm
(benchmarks/lib/symmetric_device.py). ``--muon``: the steps of
Muon's orthogonalization, compared with torch.compile of its plain form.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import gemmhub
from benchmarks.lib import results

SIZES = (1024, 2048, 3072, 4096)
KINDS: dict[str, Any] = {
    "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "int8": np.int8, "float32": np.float32,
}  # fmt: skip


def seconds(call: Any) -> float:
    """Return the CPU time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def compare(kind: Any, n: int, rounds: int, rng: np.random.Generator) -> dict[str, Any]:
    """Time both, in turn."""
    pairs = []
    for _ in range(3):
        a = (rng.standard_normal((n, n)) * (20 if np.dtype(kind) == np.int8 else 1)).astype(kind)
        pairs.append((a, a.T.copy()))
    operands = cycle(pairs)
    times: dict[bool, list[float]] = {False: [], True: []}
    for i in range(rounds + 1):
        for symmetric in (False, True):
            a, b = next(operands)
            spent = seconds(lambda a=a, b=b, symmetric=symmetric: gemmhub.matmul(a, b, symmetric=symmetric))
            if i:
                times[symmetric].append(spent)
    ratio = statistics.median(x / y for x, y in zip(times[False], times[True]))
    plain, half = (statistics.median(times[x]) for x in (False, True))
    chosen = gemmhub.explain(*pairs[0], symmetric=True).chosen
    return {"n": n, "plain": plain, "symmetric": half, "ratio": ratio, "backend": chosen}


def on_a_card(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Print a line for each dtype and size, or with ``--muon`` for each update, and return the rows."""
    from benchmarks.lib import symmetric_device as device

    rows = []
    if arguments.muon:
        for row in device.muon(arguments.rounds):
            rows.append(row)
            print("{m:6} x {n:6}  torch.compile / gemmhub {ratio:.2f}".format(**row), flush=True)
        return rows
    for dtype in device.DTYPES if arguments.dtype is None else (arguments.dtype,):
        for row in device.products(dtype, arguments.rounds):
            rows.append(row)
            line = "{dtype:9}{n:6}  torch / symmetric {ratio:.2f}, with c {ratio with c:.2f}; plain / symmetric "
            print(line.format(**row) + f"{row['of plain']:.2f}" + "  WRONG" * bool(row["wrong"]), flush=True)
    return rows


def main() -> None:
    """Print a line for each dtype and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", help="this one alone, of the card's")
    parser.add_argument("--muon", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        rows = on_a_card(arguments)
        if arguments.json is not None:
            results.save(arguments.json, rows=rows)
        return
    rng, products = np.random.default_rng(), []
    for name, kind in KINDS.items():
        for n in SIZES:
            rounds = max(3, arguments.rounds * 1024 // n) if name in ("float16", "float32") else arguments.rounds
            found = {"dtype": name, **compare(kind, n, rounds, rng)}
            products.append(found)
            print("{dtype:9}{n:6}{plain:10.5f} s{symmetric:10.5f} s{ratio:7.2f}  {backend}".format(**found), flush=True)
    if arguments.json is not None:
        results.save(arguments.json, products=products)


if __name__ == "__main__":
    main()
