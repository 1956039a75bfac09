"""Products of DTensors of every pair of placements against torch's, a large size and a small one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

import gemmhub
from benchmarks.gpus import rig
from benchmarks.gpus.rig import Rig
from gemmhub import accuracy

PLACEMENTS = (Replicate(), Shard(0), Shard(1), Partial())
ROWS = 8
"""Sampled for comparison with float64."""


def measure(on: Rig) -> None:
    """A row for each pair and size; torch's result gets the placements of gemmhub's."""
    for size in (128, 64) if on.small else (8192, 512):
        a, b = (on.random(size, size, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
        rows = torch.linspace(0, size - 1, ROWS, device=a.device).long()
        reference = rig.reference_of(a[rows], b, accuracy)
        for p, q in itertools.product(PLACEMENTS, repeat=2):
            what = f"{size} cubed, {name(p)} by {name(q)}"
            x, y = rig.placed(a, on.mesh, p), rig.placed(b, on.mesh, q)
            on.attempt("pairs", what, one, on, x, y, rows, reference, what)


def one(on: Rig, x: Any, y: Any, rows: Any, reference: Any, what: str) -> None:
    decision = gemmhub.explain(x, y)
    out = decision.split.out
    runs = {
        "torch": lambda: rig.waited(torch.matmul(x, y).redistribute(placements=out)),
        "gemmhub": lambda: gemmhub.matmul(x, y),
    }
    with torch.no_grad():
        found = on.timed(runs)
        result = rig.whole(gemmhub.matmul(x, y))
        first, second = (gemmhub.matmul(x, y, reproducible="run").to_local() for _ in range(2))
    on.report(
        "pairs", what, **found, predicted=on.predicted(decision), estimate=decision.split.seconds,
        received=decision.split.received, splits=".".join(map(str, decision.split.axes)) or "nothing",
        backend=decision.local.chosen, worst=float(np.max(reference.ratio(rig.host(result[rows])))),
        different=int(on.largest(float(not torch.equal(first, second)))),
    )  # fmt: skip


def name(placement: Any) -> str:
    if isinstance(placement, Shard):
        return f"Shard({placement.dim})"
    return type(placement).__name__.lstrip("_")
