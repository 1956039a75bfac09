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
        launch=2.411e-06, start=397.3, tensor=1.207, step=8.0, alone=0.8116, shared_bytes=240.7,
        ragged=0.1166, stage=1.23, least=144.2, latency=1823.0, remote=480.8, together=0.04714,
        l2_bytes=60.64, most_bytes=97.09, units_of_32=1.382, units_of_16=2.13, loading=100.0, unhidden=0.2,
        unhidden_alone=0.5, promotion=250.0, store_bytes=41.0, epilogue=8.17, turn=1.188, chunk=123.2,
        split=3579.0, part=420.4, part_bytes=76.91, reading=0.9296, writing=0.608, copying=0.7059,
        overlap=0.3144,
    ),
    "tf32": Constants(
        launch=1.856e-06, start=1688.0, tensor=1.209, step=8.0, alone=0.6764, shared_bytes=241.4,
        ragged=0.1166, stage=1.25, least=131.1, latency=2004.0, remote=308.8, together=0.06068,
        l2_bytes=59.66, most_bytes=95.99, units_of_32=1.321, units_of_16=2.13, loading=258.1, unhidden=0.12,
        unhidden_alone=0.6233, promotion=250.0, store_bytes=43.7, epilogue=8.179, turn=1.233, chunk=97.54,
        split=3105.0, part=600.3, part_bytes=99.11, reading=0.9462, writing=0.6888, copying=0.7356,
        overlap=0.2758,
    ),
    "split": Constants(
        launch=3.203e-06, start=401.3, tensor=1.28, step=8.0, alone=1.07, shared_bytes=258.9,
        ragged=0.04346, stage=1.35, least=150.2, latency=1706.0, remote=480.4, together=0.03368,
        l2_bytes=36.69, most_bytes=117.8, units_of_32=1.189, units_of_16=2.039, loading=336.5, unhidden=0.3523,
        unhidden_alone=1.009, promotion=169.6, store_bytes=94.22, epilogue=8.501, turn=1.188, chunk=296.3,
        split=3127.0, part=358.6, part_bytes=79.1, reading=1.089, writing=0.8089, copying=1.102,
        overlap=0.2612,
    ),
}  # fmt: skip
CONSTANTS["float16"] = CONSTANTS["bfloat16"]
