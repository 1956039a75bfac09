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
        launch=1.472e-06, start=1930.0, tensor=1.221, step=8.0, alone=0.8566, shared_bytes=234.4,
        ragged=0.1508, stage=1.17, least=170.5, latency=1586.0, remote=523.4, together=0.04274,
        l2_bytes=61.44, most_bytes=100.9, units_of_32=1.39, units_of_16=2.209, loading=100.0, unhidden=0.2,
        unhidden_alone=0.5, promotion=250.0, store_bytes=46.78, epilogue=8.746, turn=1.028, chunk=131.2,
        split=3551.0, part=427.4, part_bytes=75.83, reading=0.9262, writing=0.6051, copying=0.75,
        overlap=0.298,
    ),
    "tf32": Constants(
        launch=1.54e-06, start=2173.0, tensor=1.209, step=8.0, alone=0.684, shared_bytes=235.2,
        ragged=0.1508, stage=1.189, least=136.0, latency=1993.0, remote=315.9, together=0.06014,
        l2_bytes=59.68, most_bytes=96.19, units_of_32=1.321, units_of_16=2.209, loading=258.2, unhidden=0.1194,
        unhidden_alone=0.6117, promotion=250.0, store_bytes=44.25, epilogue=8.709, turn=1.064, chunk=101.6,
        split=3112.0, part=598.6, part_bytes=99.0, reading=0.947, writing=0.6894, copying=0.7098,
        overlap=0.277,
    ),
    "split": Constants(
        launch=2.818e-06, start=2109.0, tensor=1.294, step=8.0, alone=1.06, shared_bytes=234.2,
        ragged=0.02495, stage=1.231, least=242.0, latency=1600.0, remote=523.2, together=0.03357,
        l2_bytes=37.29, most_bytes=102.8, units_of_32=1.057, units_of_16=1.531, loading=403.5, unhidden=0.3206,
        unhidden_alone=0.8273, promotion=199.1, store_bytes=95.89, epilogue=9.015, turn=1.028, chunk=288.8,
        split=3545.0, part=349.4, part_bytes=79.65, reading=1.775, writing=0.6038, copying=1.086,
        overlap=0.1649,
    ),
}  # fmt: skip
CONSTANTS["float16"] = CONSTANTS["bfloat16"]
