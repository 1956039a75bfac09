"""The constants of the cost models, fitted to measurements."""

from __future__ import annotations

from typing import NamedTuple

from gemmhub_hopper.variants.config import BF16X3, BY_ROWS, F16X3, INT8, SHIFTED, SHIFTED_TF32


class Constants(NamedTuple):
    """The constants of model.py, in cycles of an SM at its highest clock where no unit is stated."""

    launch: float
    """Seconds from kernel to kernel."""
    start: float
    """The start of a kernel: launching CTAs, initialising barriers, the first load."""
    tensor: float
    """Factor on the cycles of the tensor cores: under load they lower the clock."""
    min_wgmma: float
    """The minimum of any wgmma."""
    one_consumer: float
    """Factor on multiplying where one consumer warpgroup does it."""
    shared_bytes: float
    """Bytes a cycle that wgmma reads from shared memory."""
    partial_boxes: float
    """Share by which multiplying is slower where b is contiguous along N and tiles end within a box of 64 columns."""
    stage: float
    """The cost of a stage besides multiplying."""
    min_stage: float
    """The minimum of a stage."""
    latency: float
    """From the request of a stage to its arrival."""
    multicast_latency: float
    """Added to the latency each time that the CTAs of a multicast double."""
    multicast_wait: float
    """Share by which a stage is slower each time that they double: CTAs wait for each other."""
    l2_bytes: float
    """Bytes a cycle that L2 delivers to an SM when all SMs read."""
    l2_bytes_alone: float
    """Bytes a cycle that L2 delivers to an SM when the others are idle."""
    aligned_64: float
    """Factor on the time of L2 for rows that are aligned to 64 bytes, and not to 128."""
    aligned_32: float
    """The same for 32 bytes."""
    aligned_16: float
    """The same for 16 bytes."""
    cluster_k_loads: float
    """Factor on the time of L2 for CTAs that share K: they have no tile of an operand in common."""
    loading: float
    """For loading a 64-row fragment of a stage into registers, and splitting it if it is float32."""
    splitting: float
    """For splitting 64 columns of a stage in shared memory."""
    unhidden: float
    """The share of the lesser of multiplying and loading that adds to the greater."""
    unhidden_one_consumer: float
    """The same where there is one consumer warpgroup."""
    promotion: float
    """For adding the sum of a stage to the accumulators."""
    store_bytes: float
    """Bytes of results a cycle that an SM stores."""
    epilogue: float
    """For any epilogue."""
    pingpong_epilogue: float
    """Factor on ``epilogue`` that ping-pong adds to it."""
    store_block: float
    """For a store block."""
    last_split: float
    """For the last split of split-K to arrive."""
    split: float
    """For each split that it adds."""
    slice: float
    """For waiting for the other splits and reducing a slice; with 16 splits it doubles."""
    partial_bytes: float
    """Bytes of partial sums a cycle."""
    cluster_reduction: float
    """For adding the sums of the CTAs that share K."""
    cluster_reduction_bytes: float
    """Bytes of these sums a cycle."""
    reading: float
    """Share of the memory's bandwidth for reading."""
    writing: float
    """Share of the memory's bandwidth for writing."""
    copying: float
    """Share of the memory's bandwidth that the pre-pass reaches."""
    overlap: float
    """The share of the lesser of computing and memory traffic that adds to the greater."""


class VectorConstants(NamedTuple):
    """The constants of :mod:`gemmhub_hopper.cost.gemv_model`, in seconds unless another unit is stated."""

    launch: float
    """From kernel to kernel."""
    block: float
    """Seconds of a CTA, besides waiting."""
    step: float
    """From the request of the loads that a thread has in flight to their arrival."""
    cluster: float
    """Seconds of CTAs that wait for each other."""
    result: float
    """Seconds of a CTA, for each of its results."""
    share: float
    """Share of the memory's bandwidth: small operands stay in L2."""
    k_major: float
    """Instructions for a multiplication where the matrix is contiguous along K."""
    n_major: float
    """The same where it is contiguous along N."""
    strided: float
    """Factor on the instructions where several vectors are not contiguous along K."""
    resident: float
    """CTAs on a multiprocessor."""


VECTORS = VectorConstants(
    launch=1.415e-06, block=6.442e-10, step=7.215e-07, cluster=2.485e-07, result=2.216e-09, share=0.9579,
    k_major=3.031, n_major=5.484, strided=5.516, resident=1.138,
)  # fmt: skip
"""The constants of the kernel for vectors."""

STAGED_VECTORS = VectorConstants(
    launch=2.6e-06, block=0.0, step=6.2e-07, cluster=7e-07, result=1.2e-09, share=0.925, k_major=2.6, n_major=2.2,
    strided=1.0, resident=0.9,
)  # fmt: skip
"""The same where the vectors go through shared memory: by hand, to 68 products on an H100."""

CONSTANTS = {
    "bfloat16": Constants(
        launch=1.773e-06, start=185.3, tensor=1.172, min_wgmma=8.0, one_consumer=0.9016, shared_bytes=257.5,
        partial_boxes=0.123, stage=1.677, min_stage=174.3, latency=1905.0, multicast_latency=294.7,
        multicast_wait=0.0637, l2_bytes=62.39, l2_bytes_alone=95.66, aligned_64=1.22, aligned_32=1.425,
        aligned_16=2.099, cluster_k_loads=1.248, loading=100.0, splitting=300.0, unhidden=0.2,
        unhidden_one_consumer=0.5, promotion=250.0, store_bytes=29.61, epilogue=10.21, pingpong_epilogue=50.51,
        store_block=140.8, last_split=3920.0, split=593.6, slice=1300.0, partial_bytes=208.6, cluster_reduction=75.51,
        cluster_reduction_bytes=12.03, reading=0.9558, writing=0.6678, copying=0.507, overlap=0.3644,
    ),
    "tf32": Constants(
        launch=2.032e-06, start=221.6, tensor=1.185, min_wgmma=8.0, one_consumer=0.7789, shared_bytes=258.0,
        partial_boxes=0.123, stage=1.75, min_stage=101.9, latency=2302.0, multicast_latency=409.2,
        multicast_wait=0.04393, l2_bytes=62.38, l2_bytes_alone=146.0, aligned_64=1.18, aligned_32=1.329,
        aligned_16=2.099, cluster_k_loads=1.525, loading=260.0, splitting=300.0, unhidden=0.1091,
        unhidden_one_consumer=0.5879, promotion=250.0, store_bytes=36.85, epilogue=10.73, pingpong_epilogue=56.92,
        store_block=91.12, last_split=3393.0, split=695.7, slice=1000.0, partial_bytes=177.4, cluster_reduction=49.97,
        cluster_reduction_bytes=12.4, reading=0.9582, writing=0.6915, copying=0.7579, overlap=0.2974,
    ),
    "split": Constants(
        launch=2.18e-06, start=902.5, tensor=1.232, min_wgmma=8.0, one_consumer=1.271, shared_bytes=257.7,
        partial_boxes=0.0143, stage=1.714, min_stage=535.7, latency=1686.0, multicast_latency=294.5,
        multicast_wait=0.03283, l2_bytes=38.05, l2_bytes_alone=99.97, aligned_64=1.03, aligned_32=1.063,
        aligned_16=1.465, cluster_k_loads=2.101, loading=388.6, splitting=654.9, unhidden=0.3641,
        unhidden_one_consumer=0.3491, promotion=27.22, store_bytes=38.71, epilogue=11.31, pingpong_epilogue=50.51,
        store_block=285.8, last_split=5868.0, split=281.1, slice=300.0, partial_bytes=144.4, cluster_reduction=74.01,
        cluster_reduction_bytes=30.52, reading=1.499, writing=0.7979, copying=0.9159, overlap=0.1174,
    ),
}  # fmt: skip
"""The constants of the kernel for matrices, by the input of the tensor cores."""
CONSTANTS["float16"] = CONSTANTS["bfloat16"]
# The two that differ give the smallest mean loss of the model alone on 639 float32 products on an H100.
CONSTANTS[F16X3] = CONSTANTS["split"]._replace(tensor=1.3, copying=0.6)
CONSTANTS[BY_ROWS] = CONSTANTS["split"]
# The rate of the pre-pass, which writes as many bytes as it reads: fitted by hand to 90 candidates on an H100.
CONSTANTS[BF16X3] = CONSTANTS["bfloat16"]._replace(copying=0.7)
# By arithmetic, not measured: 32 bytes of K take the tensor cores the same cycles whatever the elements are, but large
# products of other libraries reach 1.8 times the rate of 16 bits, not twice it, as power limits the clock. Promoting a
# fragment of 64 x 128 takes a warp about 130 issue slots.
CONSTANTS["float8"] = CONSTANTS["bfloat16"]._replace(tensor=1.3, promotion=130.0)
CONSTANTS[INT8] = CONSTANTS["bfloat16"]._replace(tensor=1.3)
CONSTANTS[SHIFTED] = CONSTANTS["bfloat16"]._replace(loading=150.0)
# By arithmetic, not measured: a thread loads as many words as of tf32 that is contiguous along M.
CONSTANTS[SHIFTED_TF32] = CONSTANTS["tf32"]
