"""What measurements teach beyond the model of the machine: a neural network and regression trees correct its estimates.

They were fitted to log(measured / estimated), of what was measured on one kind of card, and hold for no other: the
network, for operands of 16 bits, by benchmarks/net_fit.py together with gemmhub-cublas's, trees for others by
benchmarks/hopper_fit.py. They see a choice by counts and rates, not by name, so that shapes nobody has measured are
corrected as those like them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmhub.net import Net
from gemmhub.trees import Trees
from gemmhub_hopper.cost_model import Card

if TYPE_CHECKING:
    from gemmhub_hopper.choice import Choice
    from gemmhub_hopper.cost_model import Work
    from gemmhub_hopper.ranking import Ranked

SMS = 132
_FITTED = Card(SMS, 1.98e9, 4.8e12)
"""Multiprocessors of the cards that were measured: H100 and H200 on SXM boards."""
NET, TREES = "net.npz", "trees.npz"
HALVES = ("float16", "bfloat16")
"""Inputs that the network is for, with which the tensor cores are as fast. Products were measured that copy nothing."""
MOST = 0.4
"""Of a correction's logarithm."""
CORRECTED = 48
"""Of the analytic ranking, the first ones are corrected. What is further behind was seldom measured, and is seldom
fast.
"""


def features(choice: Choice, work: Work, seconds: float) -> list[float]:
    """What is told of a choice whose estimate is ``seconds``; m, n, a and b are the kernel's own."""
    way, shape, form = choice.way, choice.shape, choice.way.form
    tiles = choice.tiles
    covered = tiles[0] * shape.m * shape.cluster_m * tiles[1] * shape.n * shape.cluster_n
    waves = work.full + work.rest
    rounds = math.ceil(waves)
    rows, cols = -(-way.m // shape.m), -(-way.n // shape.n)
    return [
        math.log(way.m), math.log(way.n), math.log(way.k), math.log(way.batch), form.a_mn, form.b_mn, way.swapped,
        form.a_registers + form.b_split,
        # The shape.
        shape.m, shape.n, shape.stages, shape.consumers, shape.pingpong, shape.cluster_m, shape.cluster_n,
        # How it covers the product: the share of tiles within it, rounds of pieces, the share of them that is used.
        way.m * way.n / covered, work.full, work.rest, waves / rounds,
        work.blocks, choice.splits, *work.loaded, math.log1p(work.copied),
        # The estimate, and the rates that it means: operations and bytes a second.
        math.log(seconds), math.log(2 * way.m * way.n * way.k * way.batch / seconds),
        math.log((work.read + work.written) / seconds),
        shape.cluster_k,
        # Tiles below and beside each other, and how much of the last ones is needed.
        math.log(rows), math.log(cols), math.log(rows * cols * choice.splits * way.batch),
        way.m / shape.m - rows, way.n / shape.n - cols, way.m % 64 > 0,
        # Rounds, and what is idle in the last one.
        math.log(rounds), 1 / rounds, rounds - waves, rounds == 1, rounds == 2,
        # What each round multiplies, loads and stores, and what memory moves.
        math.log(max(1, work.blocks)), math.log(choice.splits), math.log(shape.m * shape.n),
        math.log1p(work.steps * work.rows * work.step * work.blocks * rounds),
        math.log1p(sum(work.loaded) * work.blocks * rounds), math.log(work.stored), math.log(work.read + work.written),
        math.log(choice.group(_FITTED)), math.log1p(work.part) if choice.splits > 1 or shape.cluster_k > 1 else 0.0,
        # How even the width is: wgmma, swizzles and stores take powers of two.
        math.log(math.gcd(shape.n, 64)),
    ]  # fmt: skip


def learned(kind: str, sms: int) -> Net | Trees | None:
    """What corrects an input of ``kind`` on a card with that many multiprocessors; None where there is nothing."""
    if sms != SMS:
        return None
    return net() if kind in HALVES else trees(kind)


@cache
def net() -> Net:
    """As benchmarks/net_fit.py wrote it."""
    with _data(NET) as arrays:
        return Net.of(arrays)


@cache
def trees(kind: str) -> Trees:
    """As benchmarks/hopper_fit.py wrote them. One at a time: reading all is a third of what a first product takes."""
    with _data(TREES) as arrays:
        return Trees.of(arrays, f"{kind}.")


def _data(name: str) -> Any:
    return np.load(Path(__file__).with_name("data") / name, allow_pickle=False)


def corrected(ranking: Sequence[Ranked], by: Net | Trees) -> list[Ranked]:
    """The same choices with corrected estimates, sorted by them. Those behind the first ones stay behind them: their
    estimates are raised to the slowest of those, where they are lower.
    """
    if not ranking:
        return []
    first = ranking[:CORRECTED]
    rows = np.array([features(x.choice, x.work, x.seconds - x.apart) for x in first], dtype=np.float64)
    factors = np.exp(np.clip(by.predict(rows), -MOST, MOST)).tolist()
    found = sorted(
        (x._replace(seconds=x.apart + (x.seconds - x.apart) * factor) for x, factor in zip(first, factors)),
        key=_seconds,
    )
    return found + [x._replace(seconds=max(x.seconds, found[-1].seconds)) for x in ranking[CORRECTED:]]


def _seconds(ranked: Ranked) -> float:
    return ranked.seconds
