"""How long a few vectors times a matrix should take: waves of waiting for memory, its bandwidth, and multiplying."""

from __future__ import annotations

from gemmhub_hopper.fitted import VECTORS, VectorConstants
from gemmhub_hopper.gemv import GemvChoice
from gemmhub_hopper.model import Card

_LANES = 128
"""Multiplications that a multiprocessor begins in a cycle."""
_SHARPNESS = 3
"""Exponent of the norm that adds up waiting, moving and multiplying: the larger, the less the smaller ones count."""


def seconds(choice: GemvChoice, card: Card, c: VectorConstants = VECTORS) -> float:
    """The modelled seconds of a call."""
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
