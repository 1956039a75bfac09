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
    reading: float
    """Share of memory's bandwidth."""
    writing: float
    copying: float
    """The share that the pre-pass uses."""
    overlap: float
    """Of the lesser of computing and moving data that adds to the greater."""


CONSTANTS = {
    "bfloat16": Constants(
        launch=1.489e-06, start=1950.0, tensor=1.239, step=8.0, alone=0.8407, shared_bytes=225.2,
        ragged=0.1199, stage=1.127, least=167.6, latency=1689.0, remote=548.0, together=0.04001,
        l2_bytes=61.7, most_bytes=99.33, units_of_32=1.415, units_of_16=2.211, loading=100.0, unhidden=0.2,
        unhidden_alone=0.5, promotion=250.0, store_bytes=47.98, epilogue=9.47, turn=0.9485, chunk=136.0,
        split=3444.0, part=433.6, part_bytes=70.3, reading=0.907, writing=0.5871, copying=0.75,
        overlap=0.2777,
    ),
    "tf32": Constants(
        launch=1.596e-06, start=2153.0, tensor=1.226, step=8.0, alone=0.7359, shared_bytes=226.2,
        ragged=0.1199, stage=1.132, least=142.7, latency=1941.0, remote=350.0, together=0.05205,
        l2_bytes=59.66, most_bytes=126.9, units_of_32=1.316, units_of_16=2.211, loading=256.3, unhidden=0.1185,
        unhidden_alone=0.5515, promotion=250.0, store_bytes=46.81, epilogue=9.372, turn=0.97, chunk=103.4,
        split=2962.0, part=588.8, part_bytes=96.06, reading=0.9271, writing=0.6978, copying=0.7385,
        overlap=0.2748,
    ),
    "split": Constants(
        launch=2.786e-06, start=2136.0, tensor=1.287, step=8.0, alone=1.072, shared_bytes=234.7,
        ragged=0.03079, stage=1.172, least=183.5, latency=1725.0, remote=547.6, together=0.03063,
        l2_bytes=37.48, most_bytes=102.0, units_of_32=1.077, units_of_16=1.532, loading=400.7, unhidden=0.3279,
        unhidden_alone=0.8349, promotion=205.7, store_bytes=79.94, epilogue=9.676, turn=0.9485, chunk=223.7,
        split=3703.0, part=332.6, part_bytes=90.51, reading=1.855, writing=0.5457, copying=1.071,
        overlap=0.1821,
    ),
}  # fmt: skip
CONSTANTS["float16"] = CONSTANTS["bfloat16"]
