"""Constants of the cost model, fitted by benchmarks/cuda_fit.py to times measured on an NVIDIA H200."""

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
    clock=0.8314, alone=1.103, near=524, far=588.2, sharpness=4.209, start=3000,
    l2_bytes=44, store_bytes=64, meet=3796, part=855.8, part_bytes=63.93, dram=0.95,
    efficiency={
        "128x128x16t128": 0.984,
        "128x128x8t128": 1.055,
        "128x128x8t256": 0.965,
        "128x16x16t128": 0.790,
        "128x32x16t128": 0.994,
        "128x64x8t128": 1.061,
        "16x128x16t128": 0.888,
        "256x128x8t256": 0.979,
        "32x128x16t128": 1.001,
        "32x32x16t64": 0.922,
        "64x128x8t128": 1.126,
        "64x64x16t128": 0.962,
    },
)  # fmt: skip
TENSOR = Fitted(
    clock=1, alone=1, near=433.3, far=1126, sharpness=2.813, start=2210,
    l2_bytes=64, store_bytes=16, meet=7246, part=80.29, part_bytes=97.58, dram=0.9047,
    efficiency={
        "mma128x128x32x4w4": 0.997,
        "mma128x128x32x4w8": 0.946,
        "mma128x128x64x3w4": 1.029,
        "mma128x128x64x3w8": 1.055,
        "mma128x256x32x4w8": 0.955,
        "mma128x256x64x3w8": 1.006,
        "mma128x256x64x4w8": 0.943,
        "mma128x64x64x3w4": 0.989,
        "mma16x128x64x5w4": 1.030,
        "mma16x64x64x6w4": 1.015,
        "mma256x128x32x4w8": 0.941,
        "mma256x128x64x3w8": 0.961,
        "mma256x128x64x4w8": 0.943,
        "mma32x128x64x4w4": 1.046,
        "mma32x64x64x5w4": 0.983,
        "mma64x128x64x3w4": 0.989,
        "mma64x64x32x5w4": 0.974,
        "mma64x64x64x4w4": 1.009,
    },
)  # fmt: skip
