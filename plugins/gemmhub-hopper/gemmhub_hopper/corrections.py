"""What measurements teach beyond the model of the machine: regression trees that correct its estimates.

They were fitted (benchmarks/hopper_fit.py) to log(measured / estimated), of what was measured on one kind of card, and
hold for no other. They see a choice by counts and rates, not by name, so that shapes nobody has measured are corrected
as those like them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gemmhub.trees import Trees

if TYPE_CHECKING:
    from gemmhub_hopper.cost_model import Choice, Ranked, Work

SMS = 132
"""Multiprocessors of the cards that the trees were fitted to: H100 and H200 on SXM boards."""
FOREST = {"bfloat16": "bfloat16", "float16": "bfloat16", "tf32": "tf32", "split": "split"}
"""The trees of an input. The tensor cores are as fast with float16 as with bfloat16."""
MOST = 0.4
"""Of a correction's logarithm."""
CORRECTED = 48
"""Of the analytic ranking, the first ones are corrected. What is further behind was seldom measured, and is seldom
fast.
"""


def features(choice: Choice, work: Work, seconds: float) -> list[float]:
    """What the trees see of a choice whose estimate is ``seconds``; m, n, a and b are the kernel's own."""
    way, shape, form = choice.way, choice.shape, choice.way.form
    tiles = choice.tiles
    covered = tiles[0] * shape.m * shape.cluster_m * tiles[1] * shape.n * shape.cluster_n
    return [
        math.log(way.m), math.log(way.n), math.log(way.k), math.log(way.batch), form.a_mn, form.b_mn, way.swapped,
        form.a_registers,
        # The shape.
        shape.m, shape.n, shape.stages, shape.consumers, shape.pingpong, shape.cluster_m, shape.cluster_n,
        # How it covers the product: the share of tiles within it, rounds of pieces, the share of them that is used.
        way.m * way.n / covered, work.full, work.rest, (work.full + work.rest) / math.ceil(work.full + work.rest),
        work.blocks, choice.splits, *work.loaded, math.log1p(work.copied),
        # The estimate, and the rates that it means: operations and bytes a second.
        math.log(seconds), math.log(2 * way.m * way.n * way.k * way.batch / seconds),
        math.log((work.read + work.written) / seconds),
        shape.cluster_k,
    ]  # fmt: skip


@cache
def load(name: str) -> Trees:
    """Those of that name in FOREST. One at a time: reading all of them is a third of what a first product takes."""
    with np.load(Path(__file__).with_name("data") / "trees.npz", allow_pickle=False) as arrays:
        return Trees.of(arrays, f"{name}.")


def trees(kind: str, sms: int) -> Trees | None:
    """Those for an input of ``kind`` on a card with that many multiprocessors; None where there are none."""
    return load(FOREST[kind]) if sms == SMS else None


def corrected(ranking: Sequence[Ranked], by: Trees) -> list[Ranked]:
    """The same choices with corrected estimates, sorted by them. Those behind the first ones stay behind them: their
    estimates are raised to the slowest of those, where they are lower.
    """
    if not ranking:
        return []
    first = ranking[:CORRECTED]
    rows = np.array([features(x.choice, x.work, x.seconds) for x in first], dtype=np.float64)
    factors = np.exp(np.clip(by.predict(rows), -MOST, MOST))
    found = sorted((x._replace(seconds=x.seconds * float(factor)) for x, factor in zip(first, factors)), key=_seconds)
    return found + [x._replace(seconds=max(x.seconds, found[-1].seconds)) for x in ranking[CORRECTED:]]


def _seconds(ranked: Ranked) -> float:
    return ranked.seconds
