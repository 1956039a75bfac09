"""Programmatic dependent launch (PDL): when the next kernel of the stream may begin.

Blocks of a kernel that begins early settle where there is room. That is not always where they would lie on an idle
device, evenly on all multiprocessors, and a kernel that is slowed down by it may lose more than an early start gains,
the more the longer it takes. What gains was found by measuring (benchmarks/run/hopper_early.py).
"""

from __future__ import annotations

import os
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gemmhub_hopper.candidate import Choice, Room
    from gemmhub_hopper.gemv import GemvChoice

_SHORT = 2**26
"""Bytes that vectors by a matrix may move: where it is more, they take so long that nothing is gained."""


VARIABLE = "GEMMHUB_HOPPER_PDL"


@cache
def allowed() -> bool:
    """Whether kernels may begin early at all: read once, from the environment variable. ValueError for other values.

    A kernel that begins early waits until the one before it in the stream has ended. That one has waited for the one
    before, if it is of this plugin. A kernel of somebody else that was itself launched early, lets the next one begin
    and never waits may end before the one before it has: then what that one writes is read too early here.
    """
    given = os.environ.get(VARIABLE, "on")
    if given not in ("on", "off"):
        raise ValueError(f"the environment variable {VARIABLE} is {given!r}; allowed: on, off")
    return given == "on"


class Next(IntEnum):
    """The next kernel may begin when every block of this one has come as far. The kernels have the same numbers."""

    ENDED = 0
    STARTED = 1
    LOADED = 2
    """All of its loads are asked for."""
    SUMMED = 3
    """What remains is to store its last results."""


def gemm(choice: Choice, k_blocks: int, card: Room) -> Next:
    """Of gemm_kernel.cu, with so many blocks of k."""
    if choice.copied or choice.splits > 1:
        # Parts of k are added by the last block of each tile, or by blocks that wait for each other: others that settle
        # meanwhile slow them down. After copies comes another pre-pass, if products of one kind follow each other: many
        # of its small blocks would crowd where there is room.
        return Next.ENDED
    shape = choice.shape
    one_piece = choice.pieces * shape.cluster <= choice.grid(card)
    return Next.LOADED if one_piece and k_blocks <= shape.stages * shape.cluster_k else Next.SUMMED


def gemv(choice: GemvChoice, sms: int) -> Next:
    """Of gemv_kernel.cu. The next one may begin at once where there is room for the blocks of both."""
    if choice.moved >= _SHORT:
        return Next.ENDED
    return Next.STARTED if 2 * choice.grid <= choice.kernel.resident * sms else Next.SUMMED
