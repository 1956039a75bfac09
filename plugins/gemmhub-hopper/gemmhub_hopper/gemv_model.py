"""How long a few vectors times a matrix should take: rounds of waiting for memory, its bandwidth, and multiplying.

As with matrices (cost_model.py) constants are fitted to measurements, and so are trees that correct what the model
makes of them, by benchmarks/gemv_fit.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gemmhub.trees import Trees
from gemmhub_hopper.corrections import SMS
from gemmhub_hopper.cost_model import Card
from gemmhub_hopper.gemv import GemvChoice

MOST = 1.0
"""Of a correction's logarithm: the model alone is rough."""
_LANES = 128
"""Multiplications that a multiprocessor begins in a cycle."""
_LINES = 512
"""Bytes: rows at multiples of this are as good as any."""
_SHARPNESS = 3
"""Of the largest of waiting, moving and multiplying: others that are near to it add to it."""


class Constants(NamedTuple):
    """Seconds where not said else."""

    launch: float
    """From kernel to kernel."""
    block: float
    """Of a block, besides waiting."""
    step: float
    """From asking memory for what a thread has under way at a time to having it."""
    cluster: float
    """Of blocks that wait for each other."""
    result: float
    """Of a block, for each of its results."""
    share: float
    """Of the bandwidth of memory: small operands stay in L2."""
    k_major: float
    """Instructions for a multiplication."""
    n_major: float
    strided: float
    """So many times as many, where neighbours along k are no neighbours in several vectors."""
    resident: float
    """Blocks on a multiprocessor."""


class Fitted(NamedTuple):
    """What data/gemv.npz has."""

    constants: Constants
    trees: Trees


@cache
def fitted() -> Fitted:
    with np.load(Path(__file__).with_name("data") / "gemv.npz", allow_pickle=False) as arrays:
        return Fitted(Constants(*arrays["constants"].tolist()), Trees.of(arrays))


def seconds(choice: GemvChoice, card: Card, c: Constants) -> float:
    """By the model alone."""
    kernel, way = choice.kernel, choice.way
    block = c.block + choice.steps * c.step + c.cluster * (kernel.cluster > 1)
    block += c.result * kernel.columns * kernel.vectors
    waiting = block * max(1.0, choice.grid / (card.sms * c.resident))
    moving = choice.moved / (c.share * card.bandwidth)
    # An element of w is converted, and multiplied by each vector.
    multiplications = way.n * way.k * way.batch * (kernel.vectors + (kernel.input != "float32"))
    instructions = multiplications * (c.n_major if kernel.n_major else c.k_major)
    if kernel.x_strided and kernel.vectors > 1:
        instructions *= c.strided
    multiplying = instructions / (_LANES * card.sms * card.clock)
    together = sum(x**_SHARPNESS for x in (waiting, moving, multiplying))
    return float(c.launch + together ** (1 / _SHARPNESS))


def features(choice: GemvChoice, estimate: float) -> list[float]:
    """What the trees see of a choice that should take so many seconds."""
    kernel, way = choice.kernel, choice.way
    rounds = [choice.grid / (SMS * resident) for resident in (1, 2, 4, 8)]
    return [
        math.log(way.m), kernel.vectors, kernel.n_major, kernel.x_strided, kernel.ahead, kernel.load, kernel.width,
        kernel.spread, kernel.cluster, math.log(choice.grid), math.log(choice.steps),
        math.log(choice.steps * max(SMS, choice.grid)), math.log(choice.moved), math.log(way.k), math.log(way.n),
        math.log(way.batch), math.log(estimate),
        # What of the last steps, and of the last block's results, is needed.
        choice.steps * kernel.sharers * kernel.at_once / way.k, choice.strips * kernel.columns / way.n,
        # Rounds, and what is idle in the last one, for as many blocks as may reside on a multiprocessor.
        rounds[0], *(math.ceil(x) - x for x in rounds),
        # Bytes a second, and of a block.
        math.log(choice.moved / estimate), math.log(choice.moved / choice.grid),
        # Bytes of a row that a block reads at a time, and what rows lie at multiples of: where that is no line, what is
        # read at a time lies in one line more.
        choice.run, math.gcd(choice.pitch, _LINES), choice.steps,
    ]  # fmt: skip


def timed(choices: Sequence[GemvChoice], card: Card) -> list[tuple[float, GemvChoice]]:
    """The choices with the seconds that each should take, as measurements correct them where there are any of such a
    card. The fastest first.
    """
    if not choices:
        return []
    constants, trees = fitted()
    estimates = np.array([seconds(choice, card, constants) for choice in choices])
    if card.sms == SMS:
        rows = np.array([features(x, t) for x, t in zip(choices, estimates.tolist())], np.float64)
        estimates = estimates * np.exp(np.clip(trees.predict(rows), -MOST, MOST))
    return sorted(zip(estimates.tolist(), choices), key=lambda x: x[0])
