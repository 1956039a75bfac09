"""The gain of programmatic dependent launch (PDL) on a Hopper GPU, at each of its moments, by random products.

    python -m benchmarks.run.hopper_early FILE.json [--vectors] [--dtype bfloat16] [--draw 1] [--seconds 60]

It needs torch and gemmhub-hopper. Random products are timed by CUDA graphs, each by one of the plugin's first four
choices, drawn at random, launched so that the next kernel may begin at each of the possible moments (Next): that is the
same kernel with another argument. The results of all are compared with torch's.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.cost import choose
from gemmhub_hopper.launches import pdl
from gemmhub_hopper.launches.pdl import Next
from gemmhub_hopper.lowering import lower

from benchmarks.lib import results
from benchmarks.lib.beside_torch import close, drawn, problem, rig_of
from benchmarks.lib.cuda_graphs import Call, launching
from benchmarks.lib.one_backend import opened
from benchmarks.lib.torch_calls import RATES
from gemmhub.capability import Refusal

_CHOICES = 4
_LONG, _LONGEST, _KEPT = 6e-5, 3e-4, 0.3
"""Seconds of a long product, fraction of long ones that is kept, and seconds beyond which none is."""
_BANDWIDTH = 3.3e12
_BOUNDS = (4.5e-6, 6e-6, 8e-6, 12e-6, 16e-6, 30e-6, 60e-6)
"""Boundaries of the rows of the printed table in seconds."""


def _workspace(backend: HopperBackend) -> int:
    return backend.machine.gpus[0].default_workspace


def launched(backend: HopperBackend, choice: Any, moment: Next) -> Call:
    if isinstance(choice, GemvChoice):
        launch: Any = backend.gemv(0, choice)
        starters = [launch._function]
    else:
        launch = backend.launch(0, choice, _workspace(backend))
        starters = launch._gemms if hasattr(launch, "_gemms") else [launch.gemm]
    for starter in starters:
        starter._made[0].p.next = moment
    return launching(launch.run)


def measure(backend: HopperBackend, size: Any, choice: Any, dtype: str) -> dict[str, Any]:
    m, n, k, order = size
    vectors = isinstance(choice, GemvChoice)
    rig = rig_of(m, n, k, order, dtype)
    contenders, wrong = {}, []
    for moment in (Next.ENDED, Next.STARTED if vectors else Next.LOADED, Next.SUMMED):
        call = launched(backend, choice, moment)
        if not close(call, rig, dtype):
            wrong.append(moment.name)
        contenders[moment.name] = rig.add(call)
    times = dict(zip(contenders, rig.medians(list(contenders.values()), 7)))
    sms = backend.machine.gpus[0].sms
    taken = (
        pdl.gemv(choice, sms)
        if vectors
        else pdl.gemm(choice, choice.k_passes(_workspace(backend)).k_blocks, backend._card_of(0))
    )
    us = {name: float(f"{seconds * 1e6:.4g}") for name, seconds in times.items()}
    return {
        "m": m, "n": n, "k": k, "order": order, "choice": choice.name, "taken": taken.name, "us": us, "wrong": wrong,
    }  # fmt: skip


def sizes(options: argparse.Namespace) -> Iterator[tuple[int, int, int, str]]:
    rng, rate = random.Random(options.draw), RATES[options.dtype]
    for m, n, k in drawn(options.draw, 8 if options.vectors else 0):
        seconds = max(2 * m * n * k / rate, 2 * (m * k + k * n + m * n) / _BANDWIDTH)
        if seconds < _LONG or (seconds < _LONGEST and rng.random() < _KEPT):
            yield m, n, k, rng.choice(("nn", "nt"))


def table(rows: list[dict[str, Any]]) -> None:
    for low, high in zip((0.0, *_BOUNDS), (*_BOUNDS, 1.0)):
        within = [x for x in rows if low <= x["us"]["ENDED"] * 1e-6 < high]
        words = [f"{low * 1e6:5.1f} us and more: {len(within):4}"]
        for name in sorted({name for x in within for name in x["us"]} - {"ENDED"}) + ["taken"] * bool(within):
            ratios = [x["us"]["ENDED"] / x["us"][x["taken"] if name == "taken" else name] for x in within]
            words.append(f"{name} {geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
        print("  ".join(words))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--vectors", action="store_true", help="up to eight of them by a matrix")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "tf32", "float32"))
    parser.add_argument("--draw", type=int, default=1, metavar="SEED")
    parser.add_argument("--seconds", type=float, default=60.0, help="begin no product after this time")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = options.dtype == "tf32"
    backend, rng = HopperBackend(), random.Random(options.draw)
    found = opened(backend)
    if found is None:
        return 1
    end, rows = time.monotonic() + options.seconds, []
    for size in takewhile(lambda _: time.monotonic() < end, sizes(options)):
        asked = problem(*size, options.dtype)
        lowerings = lower.lowerings(asked)
        if isinstance(lowerings, Refusal):
            continue
        timed = choose.timed(lowerings, backend._card_of(0), _workspace(backend))
        fastest = [choice for _, choice in choose.distinct(timed)]
        choices = [x for x in fastest if isinstance(x, GemvChoice) == options.vectors][:_CHOICES]
        if choices:
            rows.append(measure(backend, size, rng.choice(choices), options.dtype))
    table(rows)
    results.save(options.file, dtype=options.dtype, rows=rows)
    alarms = [x for x in rows if x["wrong"]]
    for x in alarms:
        print(f"WRONG: {x}")
    return int(bool(alarms))


if __name__ == "__main__":
    raise SystemExit(main())
