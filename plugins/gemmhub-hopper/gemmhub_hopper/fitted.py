"""The constants of the cost models, fitted to measurements: of the kernel for vectors, and for each input of the tensor
cores of the kernel for matrices.
"""

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
    """More of it, each time that the blocks of a cluster double."""
    together: float
    """More cycles of a stage, as a share, likewise: blocks wait for each other."""
    l2_bytes: float
    """That a multiprocessor gets from L2 in a cycle when all of them read."""
    most_bytes: float
    """That one gets when the others are idle."""
    units_of_64: float
    """Times as long that L2 takes for rows that begin at multiples of 64 bytes, and not of 128."""
    units_of_32: float
    units_of_16: float
    apart: float
    """Times as long that L2 takes for blocks that share k: their neighbours ask for nothing that they ask for."""
    loading: float
    """To load 64 rows of a stage into registers, and to split them if they are."""
    splitting: float
    """To split 64 columns of a stage in shared memory."""
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
    slice: float
    """Of waiting for the others and adding a slice, where there are few parts; of 16 twice as much."""
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


class VectorConstants(NamedTuple):
    """The constants of :mod:`gemmhub_hopper.gemv_model`, in seconds unless another unit is given."""

    launch: float
    """From kernel to kernel."""
    block: float
    """Of a CTA, besides waiting."""
    step: float
    """From the request of the loads that a thread has in flight to their arrival."""
    cluster: float
    """Of CTAs that wait for each other."""
    result: float
    """Of a CTA, for each of its results."""
    share: float
    """Share of the memory's bandwidth: small operands stay in L2."""
    k_major: float
    """Instructions for a multiplication."""
    n_major: float
    strided: float
    """Factor on the instructions where several vectors are not contiguous along K."""
    resident: float
    """CTAs on a multiprocessor."""


VECTORS = VectorConstants(
    launch=1.415e-06, block=6.442e-10, step=7.215e-07, cluster=2.485e-07, result=2.216e-09, share=0.9579,
    k_major=3.031, n_major=5.484, strided=5.516, resident=1.138,
)  # fmt: skip


CONSTANTS = {
    "bfloat16": Constants(
        launch=1.773e-06, start=185.3, tensor=1.172, step=8.0, alone=0.9016, shared_bytes=257.5,
        ragged=0.123, stage=1.677, least=174.3, latency=1905.0, remote=294.7, together=0.0637,
        l2_bytes=62.39, most_bytes=95.66, units_of_64=1.22, units_of_32=1.425, units_of_16=2.099, apart=1.248,
        loading=100.0, splitting=300.0, unhidden=0.2, unhidden_alone=0.5, promotion=250.0, store_bytes=29.61,
        epilogue=10.21, turn=50.51, chunk=140.8, split=3920.0, part=593.6, slice=1300.0,
        part_bytes=208.6, gather=75.51, gathered_bytes=12.03, reading=0.9558, writing=0.6678, copying=0.507,
        overlap=0.3644,
    ),
    "tf32": Constants(
        launch=2.032e-06, start=221.6, tensor=1.185, step=8.0, alone=0.7789, shared_bytes=258.0,
        ragged=0.123, stage=1.75, least=101.9, latency=2302.0, remote=409.2, together=0.04393,
        l2_bytes=62.38, most_bytes=146.0, units_of_64=1.18, units_of_32=1.329, units_of_16=2.099, apart=1.525,
        loading=260.0, splitting=300.0, unhidden=0.1091, unhidden_alone=0.5879, promotion=250.0, store_bytes=36.85,
        epilogue=10.73, turn=56.92, chunk=91.12, split=3393.0, part=695.7, slice=1000.0,
        part_bytes=177.4, gather=49.97, gathered_bytes=12.4, reading=0.9582, writing=0.6915, copying=0.7579,
        overlap=0.2974,
    ),
    "split": Constants(
        launch=2.18e-06, start=902.5, tensor=1.232, step=8.0, alone=1.271, shared_bytes=257.7,
        ragged=0.0143, stage=1.714, least=535.7, latency=1686.0, remote=294.5, together=0.03283,
        l2_bytes=38.05, most_bytes=99.97, units_of_64=1.03, units_of_32=1.063, units_of_16=1.465, apart=2.101,
        loading=388.6, splitting=654.9, unhidden=0.3641, unhidden_alone=0.3491, promotion=27.22, store_bytes=38.71,
        epilogue=11.31, turn=50.51, chunk=285.8, split=5868.0, part=281.1, slice=300.0,
        part_bytes=144.4, gather=74.01, gathered_bytes=30.52, reading=1.499, writing=0.7979, copying=0.9159,
        overlap=0.1174,
    ),
}  # fmt: skip
CONSTANTS["float16"] = CONSTANTS["bfloat16"]
