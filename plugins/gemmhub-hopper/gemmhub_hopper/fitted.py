"""The constants of the cost model, for each input of the tensor cores. Written by benchmarks/hopper_fit.py."""

from __future__ import annotations

from typing import NamedTuple


class Constants(NamedTuple):
    """Cycles where not said else, of a multiprocessor at its highest clock."""

    launch: float
    """Seconds from kernel to kernel."""
    start: float
    """Of a kernel: launching blocks, barriers, the first load."""
    tensor: float
    """For a cycle that the tensor cores take at full speed: under load they lower the clock."""
    step: float
    """Of any wgmma."""
    alone: float
    """Of multiplying, where one warpgroup does it: the share of what two take."""
    shared_bytes: float
    """That wgmma reads from shared memory in a cycle."""
    ragged: float
    """Of multiplying, as a share, more where neighbours of b along n are neighbours and tiles end within 64 of them."""
    stage: float
    """Of a stage of k, besides multiplying."""
    least: float
    """Of a stage."""
    latency: float
    """From asking for a stage to having it."""
    remote: float
    """Of it, for a cluster."""
    together: float
    """More cycles of a stage, as a share, where two blocks wait for each other."""
    l2_bytes: float
    """That a multiprocessor gets from L2 in a cycle when all of them read."""
    most_bytes: float
    """That one gets when the others are idle."""
    units_of_32: float
    """Times as long that L2 takes for rows that begin at multiples of 32 bytes."""
    units_of_16: float
    loading: float
    """To load 64 rows of a stage into registers, and to split them if they are."""
    unhidden: float
    """Of the lesser of multiplying and loading that adds to the greater."""
    unhidden_alone: float
    """The same where there is one warpgroup."""
    promotion: float
    """To add a stage's sum to the accumulators."""
    store_bytes: float
    """Of results that a multiprocessor gets rid of in a cycle."""
    epilogue: float
    turn: float
    """Of that, more of it where consumers take turns."""
    chunk: float
    """Of a staging buffer."""
    split: float
    """Of the last part of a split k."""
    part: float
    """Of each part that it adds."""
    part_bytes: float
    """Of parts, in a cycle."""
    gather: float
    """Of adding what the blocks of a cluster have that share k."""
    gathered_bytes: float
    """Of that, in a cycle."""
    reading: float
    """Share of memory's bandwidth."""
    writing: float
    copying: float
    """The share that the pre-pass uses."""
    overlap: float
    """Of the lesser of computing and moving data that adds to the greater."""


CONSTANTS = {
    "bfloat16": Constants(
        launch=2.245e-06, start=217.1, tensor=1.174, step=8.0, alone=0.9119, shared_bytes=255.3,
        ragged=0.1223, stage=1.622, least=175.5, latency=1904.0, remote=305.2, together=0.05355,
        l2_bytes=62.97, most_bytes=94.88, units_of_32=1.45, units_of_16=2.166, loading=100.0, unhidden=0.2,
        unhidden_alone=0.5, promotion=250.0, store_bytes=29.91, epilogue=11.04, turn=46.76, chunk=134.6,
        split=3880.0, part=576.5, part_bytes=192.9, gather=139.6, gathered_bytes=10.68, reading=0.9612,
        writing=0.6743, copying=0.5567, overlap=0.3754,
    ),
    "tf32": Constants(
        launch=2.523e-06, start=284.4, tensor=1.171, step=8.0, alone=0.8335, shared_bytes=255.9,
        ragged=0.1223, stage=1.703, least=100.4, latency=2177.0, remote=360.4, together=0.04988,
        l2_bytes=59.29, most_bytes=93.77, units_of_32=1.332, units_of_16=2.166, loading=255.4, unhidden=0.1092,
        unhidden_alone=0.5442, promotion=250.0, store_bytes=38.79, epilogue=10.37, turn=47.31, chunk=76.61,
        split=3333.0, part=666.6, part_bytes=193.4, gather=87.97, gathered_bytes=11.29, reading=0.9717,
        writing=0.7039, copying=0.7732, overlap=0.3218,
    ),
    "split": Constants(
        launch=3.205e-06, start=218.5, tensor=1.276, step=8.0, alone=1.095, shared_bytes=255.3,
        ragged=0.04354, stage=1.704, least=419.2, latency=1738.0, remote=305.1, together=0.03528,
        l2_bytes=36.96, most_bytes=107.5, units_of_32=1.197, units_of_16=2.062, loading=332.2, unhidden=0.3694,
        unhidden_alone=0.8682, promotion=158.4, store_bytes=86.92, epilogue=11.5, turn=46.76, chunk=330.9,
        split=3302.0, part=566.2, part_bytes=169.8, gather=139.6, gathered_bytes=10.68, reading=1.087,
        writing=0.8965, copying=1.095, overlap=0.2561,
    ),
}  # fmt: skip
CONSTANTS["float16"] = CONSTANTS["bfloat16"]
