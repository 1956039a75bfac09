"""gemmhub against torch.matmul on an NVIDIA card: bfloat16 products, untuned and tuned, by CUDA graphs.

    python benchmarks/cublas_torch.py [--draw SEED] [--tune] [--json FILE] [--rounds 9] [--part 0/1] [--seconds 600]

Needs torch and gemmhub-cublas. The grid crosses numbers of rows with the weight matrices of well-known language
models and some squares, b stored both ways; with ``--draw`` it is 200 products of random sizes, as
benchmarks/cublas_grid.py draws them. None of its products is among the records shipped with the plugin (that is
checked). Each product is timed as benchmarks/cuda_graphs.py says, in one run with torch's. With ``--tune``
gemmhub.tune measures each product first (into a record file of this run's own) and is timed as a third contender;
products with results beyond 2**25 elements are left out of that.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import tempfile
import time
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from cublas_grid import draw, fits
from cuda_graphs import Call, Rig, expected
from gemmhub_cublas.choice import _records
from gemmhub_cublas.facts import Size

import gemmhub

ROWS = (16, 64, 128, 512, 1024, 2048, 4096, 8192)
WEIGHTS = (
    (4096, 4096), (11008, 4096), (4096, 11008), (14336, 4096), (4096, 14336), (28672, 8192), (2112, 7168),
    (24576, 1536), (32768, 512), (7168, 2048), (6144, 4096), (1024, 1024), (2048, 2048), (8192, 8192),
)  # fmt: skip
"""(n, k)."""
_TUNED_RESULT = 2**25
_DRAWN = 200


def grid(part: int, parts: int, seed: int | None) -> list[tuple[int, int, int, str]]:
    """(m, n, k, order of b): every ``parts``-th product."""
    every = [(m, n, k, order) for n, k in WEIGHTS for m in ROWS for order in ("nn", "nt")]
    if seed is not None:
        rng = random.Random(seed)
        drawn = (draw(rng) for _ in count())
        every = list(islice((x for x in drawn if fits(*x[:3])), _DRAWN))
    fresh = [(m, n, k, order) for m, n, k, order in every if Size(n, m, k, order == "nt", False) not in _records()]
    print(f"{len(every) - len(fresh)} of {len(every)} products are among the shipped records: left out")
    return fresh[part::parts]


def planned(rig: Rig, records: str) -> tuple[Call, str]:
    """A plan under this file of records, and the algorithm that it chose."""
    os.environ["GEMMHUB_RECORDS"] = records
    gemmhub.reload()
    a, b, out = rig.sets[0]
    plan = gemmhub.plan(a, b, out=out)
    return plan, plan.decision["cublas"].candidate


def measure(m: int, n: int, k: int, order: str, rounds: int, records: str | None) -> dict[str, Any]:
    """One row of the table."""
    rig = Rig(m, n, k, order, torch.bfloat16, expected(m, n, k))
    a, b, out = rig.sets[0]
    contenders: dict[str, int] = {"torch": rig.add(lambda a, b, out: torch.matmul(a, b, out=out))}
    call, chosen = planned(rig, "off")
    contenders["default"] = rig.add(call)
    row: dict[str, Any] = {"m": m, "n": n, "k": k, "order": order, "default": chosen}
    if records is not None and m * n <= _TUNED_RESULT:
        planned(rig, records)
        start = time.perf_counter()
        gemmhub.tune(a, b, out=out)
        row["seconds_to_tune"] = time.perf_counter() - start
        call, row["tuned"] = planned(rig, records)
        contenders["tuned"] = rig.add(call)
    times = dict(zip(contenders, rig.medians(list(contenders.values()), rounds)))
    row["tflops_torch"] = 2 * m * n * k / times["torch"] / 1e12
    row["microseconds"] = {name: t * 1e6 for name, t in times.items()}
    row["ratios"] = {name: times["torch"] / t for name, t in times.items() if name != "torch"}
    return row


def summary(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    ratios = sorted(row["ratios"][name] for row in rows if name in row["ratios"])
    if not ratios:
        return {}
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    result = {"products": len(ratios), "geometric_mean": mean, "worst": ratios[:3], "best": ratios[-1]}
    result["below"] = {str(limit): sum(ratio < limit for ratio in ratios) for limit in (0.97, 0.99, 1.0)}
    print(f"{name}: {result}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draw", type=int, metavar="SEED")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--part", default="0/1", help="I/N: every N-th product, beginning with the I-th")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no product after this time")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    part, parts = map(int, options.part.split("/"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        records = str(Path(folder) / "records.jsonl") if options.tune else None
        for m, n, k, order in grid(part, parts, options.draw):
            if time.monotonic() > end:
                print("out of time: the rest is left out")
                break
            rows.append(row := measure(m, n, k, order, options.rounds, records))
            ratios = "  ".join(f"{name} {ratio:.3f}" for name, ratio in row["ratios"].items())
            print(
                f"{m:6}{n:6}{k:6} {order}  torch {row['tflops_torch']:5.0f} TFLOP/s  {ratios}  {row['default']}",
                flush=True,
            )
    drawn = "" if options.draw is None else f" --draw {options.draw}"
    command = f"python benchmarks/cublas_torch.py{drawn} --rounds {options.rounds} --part {options.part}"
    result = {
        "command": command + " --tune" * options.tune, "device": torch.cuda.get_device_name(),
        "torch": torch.__version__, "dtype": "bfloat16",
        "default": summary(rows, "default"), "tuned": summary(rows, "tuned"), "rows": rows,
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
