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
        launch=1.508e-06, start=1971.0, tensor=1.238, step=8.0, alone=0.8524, shared_bytes=220.4,
        ragged=0.1231, stage=1.091, least=174.9, latency=1479.0, remote=563.5, together=0.0372,
        l2_bytes=61.58, most_bytes=101.9, units_of_32=1.406, units_of_16=2.182, loading=100.0, unhidden=0.2,
        unhidden_alone=0.5, promotion=250.0, store_bytes=44.34, epilogue=10.09, turn=0.8675, chunk=126.9,
        split=3485.0, part=439.3, part_bytes=70.65, reading=0.9108, writing=0.5912, copying=0.75,
        overlap=0.2764,
    ),
    "float16": Constants(
        launch=1.508e-06, start=1971.0, tensor=1.238, step=8.0, alone=0.8524, shared_bytes=220.4,
        ragged=0.1231, stage=1.091, least=174.9, latency=1479.0, remote=563.5, together=0.0372,
        l2_bytes=61.58, most_bytes=101.9, units_of_32=1.406, units_of_16=2.182, loading=100.0, unhidden=0.2,
        unhidden_alone=0.5, promotion=250.0, store_bytes=44.34, epilogue=10.09, turn=0.8675, chunk=126.9,
        split=3485.0, part=439.3, part_bytes=70.65, reading=0.9108, writing=0.5912, copying=0.75,
        overlap=0.2764,
    ),
    "tf32": Constants(
        launch=1.583e-06, start=2186.0, tensor=1.226, step=8.0, alone=0.7452, shared_bytes=221.6,
        ragged=0.1231, stage=1.1, least=153.0, latency=1836.0, remote=378.4, together=0.05207,
        l2_bytes=59.55, most_bytes=125.7, units_of_32=1.315, units_of_16=2.182, loading=256.0, unhidden=0.1186,
        unhidden_alone=0.5395, promotion=250.0, store_bytes=45.12, epilogue=9.978, turn=0.8879, chunk=91.52,
        split=2949.0, part=596.9, part_bytes=97.2, reading=0.9286, writing=0.6985, copying=0.7372,
        overlap=0.2758,
    ),
    "split": Constants(
        launch=2.779e-06, start=2159.0, tensor=1.287, step=8.0, alone=1.073, shared_bytes=233.3,
        ragged=0.02984, stage=1.132, least=222.6, latency=1491.0, remote=563.3, together=0.03,
        l2_bytes=37.49, most_bytes=103.4, units_of_32=1.077, units_of_16=1.533, loading=400.8, unhidden=0.3277,
        unhidden_alone=0.8335, promotion=204.8, store_bytes=76.79, epilogue=10.33, turn=0.8675, chunk=216.4,
        split=3704.0, part=335.3, part_bytes=91.15, reading=1.859, writing=0.548, copying=1.071,
        overlap=0.182,
    ),
}  # fmt: skip
