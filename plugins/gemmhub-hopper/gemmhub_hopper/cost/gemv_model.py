"""The cost model of a few vectors times a matrix: waves of waiting for memory, its bandwidth, and multiplying."""

from __future__ import annotations

from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.cost.fitted import STAGED_VECTORS, VECTORS, VectorConstants
from gemmhub_hopper.cost.model import Card

_LANES = 128
"""Multiplications that an SM begins in a cycle."""
_SHARPNESS = 3
"""Exponent of the norm that adds up waiting, moving and multiplying: the larger, the less the smaller ones count."""


def constants(choice: GemvChoice) -> VectorConstants:
    """Return the constants of the kernel of ``choice``."""
    return STAGED_VECTORS if choice.kernel.staged else VECTORS


def seconds(choice: GemvChoice, card: Card) -> float:
    """Return the seconds of a call."""
    kernel, lowering, c = choice.kernel, choice.lowering, constants(choice)
    block = c.block + choice.steps * c.step + c.cluster * (kernel.cluster_size > 1)
    block += c.result * kernel.block_n * kernel.vectors
    waiting = block * max(1.0, choice.grid / (card.sms * c.resident))
    moving = choice.moved_bytes / (c.share * card.bandwidth)
    # An element of w is converted, and multiplied by each vector.
    multiplications = lowering.n * lowering.k * lowering.batch * (kernel.vectors + (kernel.input != "float32"))
    instructions = multiplications * (c.n_major if kernel.n_major else c.k_major)
    if kernel.strided_x and kernel.vectors > 1:
        instructions *= c.strided
    multiplying = instructions / (_LANES * card.sms * card.clock)
    together = sum(x**_SHARPNESS for x in (waiting, moving, multiplying))
    return float(c.launch + together ** (1 / _SHARPNESS))
