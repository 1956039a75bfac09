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
        launch=1.54e-06, start=2006.0, tensor=1.294, step=8.0, alone=0.7575, shared_bytes=201.8,
        ragged=0.1472, stage=0.99, least=155.5, latency=1714.0, remote=92.86, together=0.06637,
        l2_bytes=62.5, most_bytes=93.75, units_of_32=1.565, units_of_16=2.196, loading=100.0, unhidden=0.2,
        unhidden_alone=0.5, promotion=250.0, store_bytes=53.03, epilogue=11.47, turn=0.7506, chunk=175.9,
        split=3941.0, part=207.7, part_bytes=60.57, reading=0.9024, writing=0.5628, copying=0.75,
        overlap=0.2349,
    ),
    "float16": Constants(
        launch=1.54e-06, start=2006.0, tensor=1.294, step=8.0, alone=0.7575, shared_bytes=201.8,
        ragged=0.1472, stage=0.99, least=155.5, latency=1714.0, remote=92.86, together=0.06637,
        l2_bytes=62.5, most_bytes=93.75, units_of_32=1.565, units_of_16=2.196, loading=100.0, unhidden=0.2,
        unhidden_alone=0.5, promotion=250.0, store_bytes=53.03, epilogue=11.47, turn=0.7506, chunk=175.9,
        split=3941.0, part=207.7, part_bytes=60.57, reading=0.9024, writing=0.5628, copying=0.75,
        overlap=0.2349,
    ),
    "tf32": Constants(
        launch=1.84e-06, start=1407.0, tensor=1.171, step=8.0, alone=0.603, shared_bytes=193.2,
        ragged=0.1151, stage=1.095, least=169.4, latency=1732.0, remote=91.26, together=0.11,
        l2_bytes=54.74, most_bytes=79.97, units_of_32=1.213, units_of_16=2.484, loading=258.0, unhidden=0.1244,
        unhidden_alone=0.7654, promotion=250.0, store_bytes=35.16, epilogue=11.95, turn=0.7777, chunk=97.39,
        split=3586.0, part=254.5, part_bytes=51.5, reading=0.9745, writing=0.6722, copying=0.7809,
        overlap=0.2759,
    ),
    "split": Constants(
        launch=2.719e-06, start=2349.0, tensor=1.222, step=8.0, alone=1.018, shared_bytes=262.0,
        ragged=0.02237, stage=1.113, least=148.1, latency=1279.0, remote=91.2, together=0.0206,
        l2_bytes=38.86, most_bytes=108.9, units_of_32=1.18, units_of_16=1.595, loading=402.2, unhidden=0.3471,
        unhidden_alone=0.929, promotion=208.6, store_bytes=80.58, epilogue=12.43, turn=0.747, chunk=395.4,
        split=3222.0, part=180.1, part_bytes=52.84, reading=1.465, writing=0.4938, copying=0.8833,
        overlap=0.1588,
    ),
}  # fmt: skip
