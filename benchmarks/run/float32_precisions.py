"""Float32 at the precisions ieee, bf16x3 and tf32 on a Hopper GPU, beside torch.matmul, by CUDA graphs.

    python -m benchmarks.run.float32_precisions [--draw SEED] [--seconds 60] [--candidates] [--json FILE]

Needs torch and gemmhub-hopper. Products are those of the classes "float32 large" and "float32 small" of
benchmarks/lib/drawn.py in turn, drawn from SEED. All precisions of a product are timed in one run with torch's, which
rounds nothing. Errors are the largest of 64 rows relative to |A||B|, against float64, of normal data and of its
magnitudes. With ``--candidates`` also all
that the plugin proposes for bf16x3 by that scheme, to judge its choice.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
from gemmhub_hopper.backend import HopperBackend

import gemmhub
from benchmarks.lib import results
from benchmarks.lib.beside_torch import caller
from benchmarks.lib.cuda_graphs import Call
from benchmarks.lib.drawn import Product, classes
from benchmarks.lib.drawn import problem as problem_of
from benchmarks.lib.one_backend import offered, opened
from benchmarks.lib.torch_calls import Setup, chosen, without_records
from benchmarks.run.float32_data import error

PRECISIONS = ("ieee", "bf16x3", "tf32")


def measure(backend: HopperBackend, product: Product, options: argparse.Namespace) -> dict[str, Any]:
    """Time one product, print a line, and return the row of the result file."""
    rig = Setup(product)
    a, b, out = rig.sets[0]
    plans = {name: gemmhub.plan(a, b, out=out, precision=name) for name in PRECISIONS}
    calls: dict[str, Call] = {name: (lambda a, b, out, made=made: made(a, b, out)) for name, made in plans.items()}
    calls["torch"] = lambda a, b, out: torch.matmul(a, b, out=out)
    if options.candidates:
        asked = replace(problem_of(product), precision="bf16x3")
        offer = offered(backend, asked, product.orders)
        calls |= {name: caller(backend, asked, name, offer.workspace) for name in offer.names} if offer else {}
    contenders = {name: rig.add(call) for name, call in calls.items()}
    times = dict(zip(contenders, rig.medians(list(contenders.values()), options.rounds)))
    errors: dict[str, dict[str, float]] = {"normal": {}, "positive": {}}
    for data, found in errors.items():
        if data == "positive":
            a.abs_(), b.abs_()
        for name in (*PRECISIONS, "torch"):
            out.fill_(float("nan"))
            calls[name](a, b, out)
            found[name] = error(out, a, b)
    row = {
        "class": product.name, "orders": product.orders, **product.sizes._asdict(),
        "us": {name: t * 1e6 for name, t in times.items()}, "errors": errors,
        "chosen": {name: chosen(made) for name, made in plans.items()},
        "estimate_us": (plans["bf16x3"].decision["hopper"].seconds or 0.0) * 1e6,
    }  # fmt: skip
    gains = "  ".join(
        f"{name} {times['torch'] / times[name]:.2f} ({errors['normal'][name]:.1e}, {errors['positive'][name]:.1e})"
        for name in PRECISIONS
    )
    print(
        f"{product.name:14} {product.orders} {tuple(product.sizes[1:])}  {times['ieee'] * 1e6:8.1f} us, torch over "
        f"{gains}  ieee / bf16x3 {times['ieee'] / times['bf16x3']:.3f}  {row['chosen']['bf16x3']}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=int(time.time()), metavar="SEED")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no product after this time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    without_records()
    backend = HopperBackend()
    found = opened(backend)
    if found is None:
        raise SystemExit(1)
    rng, end = np.random.default_rng(options.draw), time.monotonic() + options.seconds
    asked = [x for x in classes() if x[0] in ("float32 large", "float32 small")]
    rows: list[dict[str, Any]] = []
    while time.monotonic() < end:
        for name, dtype, orders, sizes, _ in asked:
            product = Product(name, dtype, str(rng.choice(orders)), sizes(rng))
            rows.append(measure(backend, product, options))
    for name, *_ in asked:
        mine = [row["us"] for row in rows if row["class"] == name]
        means = {x: geometric_mean(us["ieee"] / us[x] for us in mine) for x in ("bf16x3", "tf32", "torch")}
        print(f"{name}, {len(mine)} products: ieee over " + ", ".join(f"{x} {mean:.3f}" for x, mean in means.items()))
    if options.json:
        results.save(options.json, versions=dict(found.versions), draw=options.draw, rows=rows)


if __name__ == "__main__":
    main()
