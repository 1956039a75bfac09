"""Constants of the cost model, fitted by benchmarks/fit/cuda_model.py to times measured on an NVIDIA H200."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fitted:
    """Of one kernel. Where there is no measurement of a card, it is taken to be an H200 of another size and clock."""

    clock: float
    """Of the maximum clock: what cards fall back to under load."""
    alone: float
    """Times its issue slots that a warp takes for a step of k where nobody fills its gaps."""
    near: float
    """Cycles until what was asked for is in shared memory, behind a barrier: from L2 ..."""
    far: float
    """... and from memory."""
    sharpness: float
    """How sharply the slower of work and waiting decides: the exponent of ``cost_model.either``."""
    start: float
    """Cycles: a block's first tile, the end of its last one."""
    l2_bytes: float
    """That a multiprocessor gets from L2 in a cycle when all of them read."""
    store_bytes: float
    """Of results that a multiprocessor gets rid of in a cycle."""
    meet: float
    """Cycles for the blocks of a tile to find out who is last, where k is split."""
    part: float
    """Cycles to add a part, at least..."""
    part_bytes: float
    """...and how many bytes of parts a block reads in a cycle."""
    dram: float
    """Of the memory's bandwidth."""
    efficiency: Mapping[str, float]
    """By shape: what all else makes of its steps; 1 where there is none."""


SINGLE = Fitted(
    clock=0.8297, alone=1.035, near=580.2, far=719, sharpness=4.113, start=3000,
    l2_bytes=44, store_bytes=63.3, meet=4629, part=401.3, part_bytes=61.44, dram=0.95,
    efficiency={
        "128x128x16t128": 1.008,
        "128x128x8t128": 1.058,
        "128x128x8t256": 0.981,
        "128x16x16t128": 0.816,
        "128x32x16t128": 0.974,
        "128x64x8t128": 1.044,
        "16x128x16t128": 0.915,
        "256x128x8t256": 0.983,
        "32x128x16t128": 0.992,
        "32x32x16t64": 0.936,
        "64x128x8t128": 1.075,
        "64x64x16t128": 0.993,
    },
)  # fmt: skip
TENSOR = Fitted(
    clock=1, alone=1, near=708.1, far=958.6, sharpness=2.819, start=2421,
    l2_bytes=64, store_bytes=16, meet=5731, part=50, part_bytes=74.5, dram=0.8676,
    efficiency={
        "mma128x128x32x4w4": 0.986,
        "mma128x128x32x4w8": 0.960,
        "mma128x128x64x3w4": 0.968,
        "mma128x128x64x3w8": 1.066,
        "mma128x256x32x4w8": 0.978,
        "mma128x256x64x3w8": 0.998,
        "mma128x256x64x4w8": 0.965,
        "mma128x64x64x3w4": 1.009,
        "mma16x128x64x5w4": 1.020,
        "mma16x64x64x6w4": 1.035,
        "mma256x128x32x4w8": 0.959,
        "mma256x128x64x3w8": 0.966,
        "mma256x128x64x4w8": 0.952,
        "mma32x128x64x4w4": 1.041,
        "mma32x64x64x5w4": 1.028,
        "mma64x128x64x3w4": 1.008,
        "mma64x64x32x5w4": 0.986,
        "mma64x64x64x4w4": 1.027,
    },
)  # fmt: skip
