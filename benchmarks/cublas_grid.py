"""Time cuBLASLt's algorithms over a broad random grid of bfloat16 products: the records shipped with gemmhub-cublas.

    python benchmarks/cublas_grid.py FILE.jsonl [--seconds 240] [--seed 1] [--bursts]

Needs an NVIDIA card, torch, gemmhub-cublas. Sizes are drawn at random (see :func:`draw`), not chosen. For each
product every candidate of the plugin is timed twice, those near the best several times more (benchmarks/cuda_graphs.py
says how), together with torch.matmul. One line a product: its size in the library's column-major terms, the
seconds of every algorithm ("times", the library's first choice first), and torch's. benchmarks/cublas_fit.py turns
the file into the plugin's data.

A card at work for seconds lowers its clocks, and then other algorithms win. With ``--bursts`` only products of 1e10
operations and more are measured, in fewer rounds, and the card is idle three quarters of the time; records say so.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import torch
from cuda_graphs import Call, Rig, expected, launching
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cublas.choice import size_of

from gemmhub.arrays import describe
from gemmhub.capability import Refusal
from gemmhub.options import request

_NEAR = 1.12
"""Candidates within this factor of the best are measured more often."""
_IDLE = 3.0
"""Seconds without work for each at work, in bursts."""
_LOADING = 1e10
"""Operations from which on a product loads the card."""


def draw(rng: random.Random) -> tuple[int, int, int, str]:
    """(m, n, k, order of b), over all that deep learning and linear algebra ask for: log-uniform sizes, half of them
    with the few rows and round widths of language models, some odd.
    """

    def size(low: int, high: int, step: int) -> int:
        value = math.exp(rng.uniform(math.log(low), math.log(high)))
        return max(step, round(value / step) * step)

    kind = rng.random()
    if kind < 0.5:
        m = rng.choice([1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384])
        n, k = (size(low, high, rng.choice([128, 512, 1024])) for low, high in ((512, 32768), (256, 16384)))
    elif kind < 0.85:
        m, n, k = (size(64, 16384, 64) for _ in range(3))
    else:
        m, n, k = (size(16, 8192, 8) for _ in range(3))
    return m, n, k, rng.choice(["nn", "nt"])


def fits(m: int, n: int, k: int) -> bool:
    """Whether a product is neither too long nor too large to be measured many times."""
    return 2 * m * n * k <= 3e12 and 2 * (m * k + n * k + m * n) <= 3e9


def measure(backend: CublasBackend, m: int, n: int, k: int, order: str, bursts: bool) -> dict[str, Any] | None:
    """One line of the file; None where the library refuses the product."""
    looks, most, rounds = (1, 8, 3) if bursts else (2, 12, 5)
    start = time.monotonic()
    rig = Rig(m, n, k, order, torch.bfloat16, expected(m, n, k))
    a, b, out = rig.sets[0]
    problem = describe(a, b, out, request({})).problem
    analysis = backend._analyse(problem)
    if analysis is None or isinstance(analysis, Refusal):
        return None
    names = [algorithm.config for algorithm in analysis.algorithms[analysis.form]]
    torch_matmul = rig.add(lambda a, b, out: torch.matmul(a, b, out=out))
    numbers = [rig.add(_call(backend, problem, name)) for name in names]
    first = [min(rig.once(number) for _ in range(looks)) for number in (torch_matmul, *numbers)]
    best = min(first[1:])
    near = sorted((t, i) for i, t in enumerate(first) if i > 1 and t < best * _NEAR)[:most]
    kept = [0, 1, *(i for _, i in near)]
    for i, seconds in zip(kept, rig.medians(kept, rounds)):
        first[i] = seconds
    if bursts:
        time.sleep(max(0.0, (1 + _IDLE) * rig.busy - (time.monotonic() - start)))
    size = size_of(analysis.form)
    return {
        "m": size.m, "n": size.n, "k": size.k, "trans_a": size.trans_a, "trans_b": size.trans_b,
        "sustained": not bursts, "torch": first[0], "times": dict(zip(names, first[1:])),
    }  # fmt: skip


def _call(backend: CublasBackend, problem: Any, name: str) -> Call:
    return launching(backend.prepare(problem, name, 64 * 2**20).run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bursts", action="store_true")
    options = parser.parse_args()
    rng, end = random.Random(options.seed), time.monotonic() + options.seconds
    backend = CublasBackend()
    print(backend.probe())
    gains: list[float] = []
    with options.file.open("a", encoding="utf-8") as file:
        while time.monotonic() < end:
            m, n, k, order = draw(rng)
            if not fits(m, n, k) or (options.bursts and 2 * m * n * k < _LOADING):
                continue
            line = measure(backend, m, n, k, order, options.bursts)
            if line is not None:
                rounded = {name: float(f"{t:.4g}") for name, t in line["times"].items()}
                file.write(json.dumps({**line, "torch": float(f"{line['torch']:.4g}"), "times": rounded}) + "\n")
                gains.append(math.log(line["torch"] / min(line["times"].values())))
    mean = math.exp(sum(gains) / len(gains))
    print(f"{len(gains)} products; the fastest algorithm over torch.matmul: geometric mean {mean:.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
