"""The cost of ``reproducible="batch"`` for bfloat16 on a Hopper GPU, beside torch.matmul, by CUDA graphs.

    python -m benchmarks.run.reproducible [--seed N] [--products 42] [--seconds 100] [--rounds 5] [--json FILE]

Needs torch and gemmhub-hopper. Each class draws m from 1 to 15, 16 to 63, or 64 to 8192, and n and k log-uniformly,
multiples of 8 from 512 to 16384, n below 4096 or not; b is row-major or, as weights are, column-major. Timed in one run
are torch.matmul, torch.matmul by cuBLASLt without split-K, which is how vLLM's batch-invariant mode makes it, and plans
of gemmhub without and with ``reproducible="batch"``. torch's setting for that is a pair of
``torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction``; where torch does not have it the column is empty.
No records are used. Kernels are compiled before the first product. Results are compared with torch's.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.beside_torch import close
from benchmarks.lib.compiled_ahead import compile_ahead
from benchmarks.lib.cuda_graphs import Call
from benchmarks.lib.drawn import Product, Sizes, power
from benchmarks.lib.torch_calls import Setup, chosen, without_records

ROWS = {"m 1 to 15": (1, 15), "m 16 to 63": (16, 63), "m 64 to 8192": (64, 8192)}
COLUMNS = {"n below 4096": (9, 12), "n from 4096 on": (12, 14)}
"""Powers of 2 between which n is drawn."""
PLANS: dict[str, dict[str, Any]] = {"gemmhub": {}, "gemmhub batch": {"reproducible": "batch"}}
RATIOS = (
    ("torch without split-K", "torch"), ("gemmhub batch", "gemmhub"), ("gemmhub batch", "torch"),
    ("gemmhub batch", "torch without split-K"),
)  # fmt: skip
"""The pairs whose times are compared: the first over the second."""


def drawn(seed: int, count: int) -> Iterator[Product]:
    """Yield ``count`` products, the classes in turn."""
    for i in range(count):
        classes = [(rows, columns) for columns in COLUMNS for rows in ROWS]
        rows, columns = classes[i % len(classes)]
        rng = np.random.default_rng((seed, i))
        low, high = ROWS[rows]
        m = min(high, max(low, int(2 ** rng.uniform(math.log2(low), math.log2(high + 1)))))
        sizes = Sizes(1, m, power(rng, *COLUMNS[columns], 8), power(rng, 9, 14, 8))
        yield Product(f"{rows}, {columns}", "bfloat16", str(rng.choice(("nn", "nt"))), sizes)


@contextmanager
def without_split_k() -> Iterator[None]:
    """Have torch call cuBLASLt without split-K. Raises TypeError or RuntimeError where this torch cannot."""
    matmul: Any = torch.backends.cuda.matmul
    library = torch.backends.cuda.preferred_blas_library()
    before = matmul.allow_bf16_reduced_precision_reduction
    try:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        matmul.allow_bf16_reduced_precision_reduction = (False, False)
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before
        torch.backends.cuda.preferred_blas_library(library)


def multiply(a: Any, b: Any, out: Any) -> None:
    torch.matmul(a, b, out=out)


def explained(product: Product) -> Iterator[tuple[Any, str]]:
    """Yield the problem and the candidate of each plan that gemmhub-hopper runs."""
    _, m, n, k = product.sizes
    a = torch.empty(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.empty((n, k) if product.orders[1] == "t" else (k, n), device="cuda", dtype=torch.bfloat16)
    for options in PLANS.values():
        decision = gemmhub.explain(a, b.t() if product.orders[1] == "t" else b, **options)
        if decision.chosen == "hopper":
            yield decision.problem, decision["hopper"].candidate


def measure(product: Product, rounds: int) -> dict[str, Any]:
    """Time one product, print a line, and return the row of the result file."""
    rig = Setup(product)
    a, b, out = rig.sets[0]
    plans = {name: gemmhub.plan(a, b, out=out, **options) for name, options in PLANS.items()}
    calls: dict[str, Call] = {name: (lambda a, b, out, made=made: made(a, b, out)) for name, made in plans.items()}
    wrong = [name for name, call in calls.items() if not close(call, rig, product.dtype)]
    contenders = {"torch": rig.add(multiply)}
    try:
        with without_split_k():
            contenders["torch without split-K"] = rig.add(multiply)
    except (TypeError, RuntimeError) as error:
        print(f"torch {torch.__version__} has no setting without split-K: {str(error).splitlines()[0]}")
    contenders |= {name: rig.add(call) for name, call in calls.items()}
    times = dict(zip(contenders, rig.medians(list(contenders.values()), rounds)))
    row = {
        "class": product.name, "orders": product.orders, **product.sizes._asdict(),
        "us": {name: t * 1e6 for name, t in times.items()},
        "chosen": {name: chosen(made) for name, made in plans.items()}, "wrong": wrong,
    }  # fmt: skip
    words = "  ".join(f"{name} {t * 1e6:.1f}" for name, t in times.items())
    print(
        f"{product.orders} {tuple(product.sizes[1:])}  {words} us  ({', '.join(row['chosen'].values())})"
        + (f"  WRONG: {', '.join(wrong)}" if wrong else ""),
        flush=True,
    )
    return row


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines: for each class, geometric means of the ratios of RATIOS, and the largest."""
    lines = [f"{'class':30}{'n':>4}" + "".join(f"  {f'{x} / {y}':>39}" for x, y in RATIOS)]
    for name in (*dict.fromkeys(row["class"] for row in rows), ""):
        mine = [row["us"] for row in rows if name in ("", row["class"])]
        cells = ""
        for x, y in RATIOS:
            ratios = [us[x] / us[y] for us in mine if x in us and y in us]
            cell = f"{geometric_mean(ratios):.3f} ({max(ratios):.3f})" if ratios else "-"
            cells += f"  {cell:>39}"
        lines.append(f"{name or 'all':30}{len(mine):4}{cells}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--products", type=int, default=42)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=100.0, help="begin no product after this time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    without_records()
    begin = time.monotonic()
    products = list(drawn(options.seed, options.products))
    count = compile_ahead(pair for product in products for pair in explained(product))
    print(f"{count} kernels after {time.monotonic() - begin:.0f} s", flush=True)
    rows = []
    for product in products:
        if time.monotonic() < begin + options.seconds:
            rows.append(measure(product, options.rounds))
            torch.cuda.empty_cache()
    rows.sort(key=lambda row: str(row["class"]))
    print("\n".join(table(rows)))
    if options.json:
        ready = {name: s.versions for name, s in gemmhub.backends().items() if s.state == "ready"}
        results.save(options.json, seed=options.seed, backends=ready, rows=rows)
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
