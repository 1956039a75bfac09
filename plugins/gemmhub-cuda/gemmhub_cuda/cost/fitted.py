"""The constants of the cost model, fitted by benchmarks/fit/cuda_model.py to times on an NVIDIA H200."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fitted:
    """The constants of one kernel. Every other card is modelled as an H200 of another size and clock."""

    clock: float
    """Share of the highest clock that cards keep under load."""
    single_warp: float
    """Factor on the issue slots of a step along K where a warp runs alone."""
    l2_latency: float
    """Cycles from a request to L2 until the data are in shared memory, barrier included."""
    memory_latency: float
    """The same for a request to memory."""
    sharpness: float
    """Exponent of ``wave_model.overlapped`` for work and waiting: the larger, the less the shorter of them counts."""
    start: float
    """Cycles for the first tile of a CTA and the end of its last one."""
    l2_bytes: float
    """Bytes a cycle that L2 delivers to an SM when all SMs read."""
    store_bytes: float
    """Bytes of results that an SM stores in a cycle."""
    split_sync: float
    """Cycles for the splits of a tile to determine the last one to arrive."""
    split_cycles: float
    """The fewest cycles for adding the partial sums of a split."""
    partial_bytes: float
    """Bytes of partial sums that a CTA reads in a cycle."""
    dram: float
    """Share of the memory's bandwidth."""
    efficiency: Mapping[str, float]
    """Factors on the speed of each shape's steps, for all other effects; 1 for shapes without one."""


SINGLE = Fitted(
    clock=0.8297, single_warp=1.035, l2_latency=580.2, memory_latency=719, sharpness=4.113, start=3000,
    l2_bytes=44, store_bytes=63.3, split_sync=4629, split_cycles=401.3, partial_bytes=61.44, dram=0.95,
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
    clock=1, single_warp=1, l2_latency=708.1, memory_latency=958.6, sharpness=2.819, start=2421,
    l2_bytes=64, store_bytes=16, split_sync=5731, split_cycles=50, partial_bytes=74.5, dram=0.8676,
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
