"""The cost model of a few vectors times a matrix: waves of waiting for memory, its bandwidth, and multiplying."""

from __future__ import annotations

from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.cost.fitted import STAGED_VECTORS, VECTORS, VectorConstants
from gemmhub_hopper.cost.model import Card
from gemmhub_hopper.variants.gemv_kernel import GemvKernel

_LANES = 128
"""Multiplications that an SM begins in a cycle."""
_SHARPNESS = 3
"""Exponent of the norm that adds up waiting, moving and multiplying: the larger, the less the smaller ones count."""


_CONVERSIONS = {"float32": 0, "bfloat16": 1, "float16": 1, "int8": 1, "float8_e4m3fn": 1.5, "float8_e5m2": 2}
"""Instructions that convert an element of a matrix. Of 8 bits they are counted, not measured."""


def constants(choice: GemvChoice) -> VectorConstants:
    """Return the constants of the kernel of ``choice``."""
    return STAGED_VECTORS if choice.kernel.staged else VECTORS


def _instructions(kernel: GemvKernel) -> float:
    """Return the instructions for an element of w: to convert it, and to multiply it by each vector."""
    if kernel.input == "int8" and not kernel.n_major:
        return kernel.vectors / 4  # products are added four at a time
    return kernel.vectors + _CONVERSIONS[kernel.input]


def seconds(choice: GemvChoice, card: Card) -> float:
    """Return the seconds of a call."""
    kernel, lowering, c = choice.kernel, choice.lowering, constants(choice)
    block = c.block + choice.steps * c.step + c.cluster * (kernel.cluster_size > 1)
    block += c.result * kernel.block_n * kernel.vectors
    waiting = block * max(1.0, choice.grid / (card.sms * c.resident))
    moving = choice.moved_bytes / (c.share * card.bandwidth)
    instructions = (
        lowering.n * lowering.k * lowering.batch * _instructions(kernel) * (c.n_major if kernel.n_major else c.k_major)
    )
    if kernel.strided_x and kernel.vectors > 1:
        instructions *= c.strided
    multiplying = instructions / (_LANES * card.sms * card.clock)
    together = sum(x**_SHARPNESS for x in (waiting, moving, multiplying))
    return float(c.launch + together ** (1 / _SHARPNESS))
