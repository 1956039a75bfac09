"""When the next kernel in the stream may begin: the sooner, the less it is waited for. It waits itself for results.

Blocks of a kernel that begins early settle where there is room. That is not always where they would lie on an idle
device, evenly on all multiprocessors, and a kernel that is slowed down by it may lose more than an early start gains,
the more the longer it takes. What gains was found by measuring (benchmarks/hopper_early.py).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmhub_hopper.choice import Choice
    from gemmhub_hopper.gemv import GemvChoice

_SHORT = 2**26
"""Bytes that vectors by a matrix may move: where it is more, they take so long that nothing is gained."""


class Next(IntEnum):
    """The next kernel may begin when every block of this one has come as far. The kernels have the same numbers."""

    ENDED = 0
    STARTED = 1
    LOADED = 2
    """All of its loads are asked for."""
    SUMMED = 3
    """What remains is to store its last results."""


def gemm(choice: Choice, k_blocks: int, sms: int) -> Next:
    """Of gemm_kernel.cu, with so many blocks of k."""
    if choice.copied or choice.splits > 1:
        # Parts of k are added by the last block of each tile, or by blocks that wait for each other: others that settle
        # meanwhile slow them down. After copies comes another pre-pass, if products of one kind follow each other: many
        # of its small blocks would crowd where there is room.
        return Next.ENDED
    shape = choice.shape
    one_piece = choice.pieces * shape.cluster <= choice.grid(sms)
    return Next.LOADED if one_piece and k_blocks <= shape.stages * shape.cluster_k else Next.SUMMED


def gemv(choice: GemvChoice, sms: int) -> Next:
    """Of gemv_kernel.cu. The next one may begin at once where there is room for the blocks of both."""
    if choice.moved >= _SHORT:
        return Next.ENDED
    return Next.STARTED if 2 * choice.grid <= choice.kernel.resident * sms else Next.SUMMED
