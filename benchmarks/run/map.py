"""All classes of products against torch's best call for each, on an NVIDIA card, by CUDA graphs.

    python -m benchmarks.run.map [--seed N] [--draws 8] [--classes TEXT ...] [--raced] [--alone hopper cublas]
                             [--seconds 600] [--json FILE]

Each class draws sizes from ``--seed``: large and small, aligned and odd, row-major and column-major operands,
batches, few rows, tall and narrow, long k, every dtype, and epilogues. "hub" is a plan that names no backend and uses
no records; with ``--raced`` "raced" is a plan under the setting ``tune = "first"``. torch's best call is the fastest of
those that lib/torch_calls.py lists. All are timed in one run by CUDA graphs (benchmarks/lib/cuda_graphs.py), and
the results are compared with float64. The table has, for each class, the geometric mean of torch's time over gemmhub's,
how many products are below some limits, and the worst one.

Several cards of a host run one process each, with CUDA_VISIBLE_DEVICES, another seed and another file;
``python -m benchmarks.pages.map FILE ...`` prints the table of all of them together.
"""

from __future__ import annotations

import argparse
import math
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.lib.drawn import Product, classes
from benchmarks.lib.torch_calls import Setup, chosen, extras, planned, report, right, torch_calls, without_records
from benchmarks.pages.map import summary


def measure(product: Product, options: argparse.Namespace) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = product.dtype == "tf32"
    rig, more = Setup(product), extras(product)
    scalars = {name: value for name, value in more.items() if name in ("c", "bias")}
    plans = {"hub": planned(product, rig, more)}
    plans |= {name: planned(product, rig, more, backend=name) for name in options.alone}
    if options.raced:
        plans["raced"] = planned(product, rig, more, tune="first")
    plans = {name: made for name, made in plans.items() if made is not None}
    calls = {name: (lambda a, b, out, made=made: made(a, b, out, **scalars)) for name, made in plans.items()}
    wrong = [name for name, call in calls.items() if not right(product, rig, call, more)]
    theirs: dict[str, int] = {}
    for name, call in torch_calls(product, more).items():
        try:
            theirs[name] = rig.add(call)
        except RuntimeError as error:
            print(f"{product.name} {product.sizes}: torch.{name}: {str(error).splitlines()[0][:100]}")
    ours = {name: rig.add(call) for name, call in calls.items()}
    times = dict(zip([*theirs, *ours], rig.medians([*theirs.values(), *ours.values()], options.rounds)))
    best = min((times[name] for name in theirs), default=math.nan)
    row = {
        "class": product.name, "dtype": product.dtype, "orders": product.orders, **product.sizes._asdict(),
        "torch_us": best * 1e6, "us": {name: times[name] * 1e6 for name in ours},
        "chosen": {name: chosen(made) for name, made in plans.items()},
        "estimates_us": {
            v.backend: v.seconds * 1e6 for v in plans["hub"].decision.verdicts if v.seconds is not None
        } if "hub" in plans else {},
        "race": plans["raced"].decision.race if "raced" in plans else "",
        "wrong": wrong,
    }  # fmt: skip
    words = "  ".join(f"{name} {best / times[name]:.3f} ({row['chosen'][name]})" for name in ours)
    alarm = f"  WRONG: {', '.join(wrong)}" if wrong else ""
    print(
        f"{product.name:24} {product.orders} {tuple(product.sizes)}  {best * 1e6:9.1f} us  {words}{alarm}", flush=True
    )
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--draws", type=int, default=8, help="products of each class")
    parser.add_argument("--classes", nargs="*", default=[], metavar="TEXT", help="only those whose name has a TEXT")
    parser.add_argument("--raced", action="store_true")
    parser.add_argument("--alone", nargs="*", default=[], metavar="BACKEND")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no product after this time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    without_records()
    rows, end = [], time.monotonic() + options.seconds
    asked = [x for x in classes() if not options.classes or any(text in x[0] for text in options.classes)]
    for draw in range(options.draws):
        for name, dtype, orders, sizes, epilogue in asked:
            if time.monotonic() < end:
                rng = np.random.default_rng((options.seed, draw, zlib.crc32(name.encode())))
                product = Product(name, dtype, orders[draw % len(orders)], sizes(rng), epilogue)
                rows.append(measure(product, options))
                torch.cuda.empty_cache()
    rows.sort(key=lambda row: [x[0] for x in asked].index(row["class"]))
    status = report(rows, options)
    print("\n".join(["", *summary(rows)]))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
