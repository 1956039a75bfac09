"""What gemmhub chooses, and each of its backends alone, against torch.matmul on an NVIDIA card, by CUDA graphs.

    python benchmarks/hub_torch.py [--draw SEED] [--dtype bfloat16] [--alone hopper cublas] [--tune] [--called]
                                   [--json FILE]

Needs torch and the plugins to compare. Products are those of hopper_torch.py: sizes of language models, or with
``--draw`` random ones (--seconds long), b stored both ways. Each is timed as benchmarks/cuda_graphs.py says, in one run
with torch's: "hub" is a plan that names no backend. With ``--tune`` gemmhub.tune measures each product first (into a
record file of this run's own) and "tuned" is the plan after that. With ``--called`` all are timed a second time, as a
program calls them that captures no graph: launched one after the other, by gemmhub's clock. tf32 is compared with
torch's tf32, float32 with torch's float32. Packing, and all that a call may keep from the one before, is not used.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, takewhile
from pathlib import Path
from typing import Any

import torch
from cuda_graphs import Call, Rig
from hopper_fit import KERNELS
from hopper_torch import PRODUCTS, close, drawn, rig_of

import gemmhub
from gemmhub.device_families import torch_family
from gemmhub.timing import interleave

_LARGE = 1e10
"""Operations from which a product counts as a large one."""


def precision(options: argparse.Namespace) -> str:
    return "tf32" if options.dtype == "tf32" else "ieee"


def plan(rig: Rig, options: argparse.Namespace, backend: str | None = None) -> Any:
    """A plan, or None where the backend refuses."""
    a, b, out = rig.sets[0]
    try:
        return gemmhub.plan(a, b, out=out, backend=backend, precision=precision(options))
    except gemmhub.GemmhubError as error:
        print(f"{backend}: {str(error).splitlines()[0]}")
        return None


def chosen(made: Any) -> str:
    """The backend and the candidate of a plan."""
    name = made.decision.chosen
    return f"{name} {made.decision[name].candidate}"


def measure(m: int, n: int, k: int, order: str, options: argparse.Namespace, records: str) -> dict[str, Any]:
    rig = rig_of(m, n, k, order, options.dtype)
    plans = {"hub": plan(rig, options), **{name: plan(rig, options, name) for name in options.alone}}
    if options.tune:
        use(records)
        a, b, out = rig.sets[0]
        gemmhub.tune(a, b, out=out, precision=precision(options))
        plans["tuned"] = plan(rig, options)
        use("off")
    plans = {name: made for name, made in plans.items() if made is not None}
    wrong = [name for name, made in plans.items() if not close(made, rig, options.dtype)]
    calls = [lambda a, b, out: torch.matmul(a, b, out=out), *plans.values()]
    reference, *times = rig.medians([rig.add(call) for call in calls], options.rounds)
    ratios = {name: reference / t for name, t in zip(plans, times)}
    if options.called:
        eager, *times = called(rig, calls)
        ratios |= {f"{name} called": eager / t for name, t in zip(plans, times)}
    row = {
        "m": m, "n": n, "k": k, "order": order, "torch_us": reference * 1e6, "wrong": wrong,
        "chosen": {name: chosen(made) for name, made in plans.items()},
        "ratios": ratios,
    }  # fmt: skip
    words = "  ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    alarm = f"  WRONG: {', '.join(wrong)}" if wrong else ""
    rate = 2e-12 * m * n * k / reference
    print(f"{m:6}{n:6}{k:6} {order}  torch {rate:5.0f} TFLOP/s  {words}  {row['chosen'].get('hub')}{alarm}", flush=True)
    return row


def called(rig: Rig, calls: list[Call]) -> list[float]:
    """Seconds a call of each, launched one by one and queued up."""

    def turning(call: Call) -> Callable[[], object]:
        sets = cycle(rig.sets)
        return lambda: call(*next(sets))

    clock = torch_family("cuda", torch.cuda.current_device()).clock()
    return [timing.median for timing in interleave([turning(call) for call in calls], clock=clock)]


def use(records: str) -> None:
    os.environ["GEMMHUB_RECORDS"] = records
    gemmhub.reload()


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """For each contender, by size."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row["ratios"]):
        for words, large in (("large", True), ("small", False)):
            ratios = sorted(
                row["ratios"][name]
                for row in rows
                if name in row["ratios"] and (2 * row["m"] * row["n"] * row["k"] >= _LARGE) == large
            )
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                below = {str(limit): sum(ratio < limit for ratio in ratios) for limit in (0.9, 0.98, 1.0)}
                found[f"{name}, {words}"] = {
                    "products": len(ratios), "geometric_mean": mean, "worst": ratios[:3], "best": ratios[-1],
                    "below": below,
                }  # fmt: skip
                print(f"{name}, {words}: geometric mean {mean:.3f} over {len(ratios)}, worst {ratios[0]:.3f}, {below}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draw", type=int, metavar="SEED")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "tf32", "float32"))
    parser.add_argument("--alone", nargs="*", default=[], metavar="BACKEND")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--called", action="store_true", help="time calls without graphs, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no product after this time")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.dtype == "tf32"
    use("off")
    end, rows = time.monotonic() + options.seconds, []
    products = PRODUCTS if options.draw is None else drawn(options.draw)
    with tempfile.TemporaryDirectory() as folder:
        records = str(Path(folder) / "records.jsonl")
        for m, n, k in takewhile(lambda _: time.monotonic() < end, products):
            rows += [measure(m, n, k, order, options, records) for order in ("nn", "nt")]
    result = {
        "command": " ".join(["python", *sys.argv]), "device": torch.cuda.get_device_name(),
        "torch": torch.__version__, "dtype": options.dtype, **KERNELS, "summary": summary(rows),
        "rows": rows,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
