"""The products of CUDA-L2's public table against torch.matmul, by CUDA-L2's protocol, on an NVIDIA card.

    python -m benchmarks.run.cuda_l2 [--seed N] [--products 1000] [--raced] [--rounds 5] [--seconds 600] [--json FILE]

The protocol: the host's clock around one synchronised call at a time, with a cold L2 cache; float16, sizes from 64 to
16384. So host time is part of the measurement. "hub" is a plan that names no backend and uses no records; with
``--raced`` "raced" is a plan under the setting ``tune = "first"``. Products come in an order drawn from ``--seed``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.lib.drawn import Product, Sizes, cuda_l2
from benchmarks.lib.torch_calls import Setup, chosen, planned, report, right, without_records


def synchronised(options: argparse.Namespace) -> list[dict[str, Any]]:
    """CUDA-L2's protocol: the host's clock around one synchronised call at a time, with a cold L2 cache."""
    rows = []
    end = time.monotonic() + options.seconds
    todo = list(cuda_l2())
    np.random.default_rng(options.seed).shuffle(todo)  # where time runs out, the measured products are a fair sample
    flush = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    for sizes in todo[: options.products]:
        if time.monotonic() > end:
            break
        sizes = Sizes(*map(int, sizes))
        product = Product("cuda-l2", "float16", "nn", sizes)
        rig = Setup(product)
        plans = {"hub": planned(product, rig, {})}
        if options.raced:
            plans["raced"] = planned(product, rig, {}, tune="first")
        plans = {name: made for name, made in plans.items() if made is not None}
        calls = {"torch": lambda a, b, out: torch.matmul(a, b, out=out), **plans}
        wrong = [name for name, made in plans.items() if not right(product, rig, made, {})]
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(options.rounds + 2):
            for name, call in calls.items():
                flush.zero_()
                torch.cuda.synchronize()
                start = time.perf_counter()
                call(*rig.sets[turn % len(rig.sets)])
                torch.cuda.synchronize()
                samples[name].append(time.perf_counter() - start)
        times = {name: float(np.median(found[2:])) for name, found in samples.items()}
        best = times.pop("torch")
        rows.append(
            {"class": "cuda-l2", "dtype": "float16", "orders": "nn", **sizes._asdict(), "torch_us": best * 1e6,
             "us": {name: t * 1e6 for name, t in times.items()}, "wrong": wrong,
             "chosen": {name: chosen(made) for name, made in plans.items()}}
        )  # fmt: skip
        del rig
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--products", type=int, default=1000, metavar="N", help="of the table's 1000")
    parser.add_argument("--raced", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no product after this time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    without_records()
    return report(synchronised(options), options)


if __name__ == "__main__":
    raise SystemExit(main())
