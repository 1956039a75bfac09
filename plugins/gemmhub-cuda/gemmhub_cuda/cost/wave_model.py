"""The seconds of the kernels that give each CTA a tile: waves of CTAs, each bounded by its slowest resource.

The CTAs that an SM runs at once take, for each step of TILE_K, the longer of two times. One is what they need of shared
units: arithmetic, instruction issue slots, shared memory, bandwidth from L2. The other is what one CTA takes alone: its
instructions one after the other, and the latencies that it waits for. The reduction of split-K follows. All of this
overlaps with moving the operands from memory. Operands that are not aligned to 16 bytes slow both down
(:data:`MISALIGNED`).

fitted.py has the constants, fitted to measurements.
"""

from __future__ import annotations

from gemmhub_cuda.candidate import Choice
from gemmhub_cuda.cost import traffic
from gemmhub_cuda.cost.fitted import SINGLE, TENSOR, Fitted
from gemmhub_cuda.variants import mma, sgemm
from gemmhub_cuda.variants.card import Card

LAUNCH = 4e-6
"""Seconds for an empty kernel, host time included."""
MISALIGNED = {2: 2.7, 4: 2.1, 8: 1.45}
"""Factors on the time of the tensor-core kernel, by the bytes of a load; a full load has 16 bytes.

The values for 2 and 4 bytes are geometric means over the four products of map.json in benchmarks/results/h100/ and
h200/ that ran by this kernel (three at 2 bytes, 1.96 to 3.51; one at 4). That for 8 bytes is interpolated. They depend
on the operands alone, so that they rank backends, not shapes.
"""
_SHARED_BYTES = 128.0
"""Bytes that shared memory delivers in a cycle."""
_OVERHEAD = 40.0
"""Instructions for a step of TILE_K of the float32 kernel that neither multiply nor load fragments."""
_MEMORY_SHARPNESS = 4.0
"""Exponent of :func:`overlapped` for computing and memory traffic."""


def overlapped(sharpness: float, *times: float) -> float:
    """Return the time of things that overlap: the longest, and a little more where others are nearly as long."""
    longest = max(times)
    return float(longest * sum((time / longest) ** sharpness for time in times) ** (1 / sharpness))


def seconds(choice: Choice, card: Card, fitted: Fitted | None = None) -> float:
    """Return the seconds of a call, host time included, with the constants of fitted.py unless others are passed."""
    lowering, shape = choice.lowering, choice.shape
    if isinstance(shape, mma.Shape):
        fitted = fitted or TENSOR
        work, alone = tensor_step(shape, card, fitted)
    else:
        assert isinstance(shape, sgemm.Shape), shape
        fitted = fitted or SINGLE
        work, alone = single_step(shape, card, fitted)
    steps = -(-choice.k_blocks // choice.splits)
    work_tiles = choice.counters * choice.splits
    loaded = (shape.m + shape.n) * shape.k * lowering.form.input_bytes
    from_memory = min(1.0, choice.moved_bytes / (work_tiles * steps * loaded)) if lowering.k else 0.0
    latency = fitted.l2_latency + (fitted.memory_latency - fitted.l2_latency) * from_memory
    work = max(work, loaded / fitted.l2_bytes)
    alone += latency / (shape.stages - 1)  # overlaps with the steps of the other stages
    stored = shape.m * shape.n * (4 if choice.splits > 1 else lowering.form.output_bytes)

    def wave_of(blocks: int) -> float:
        """Return the cycles of a wave with ``blocks`` CTAs on an SM."""
        if not blocks:
            return 0.0
        return (
            fitted.start
            + steps * overlapped(fitted.sharpness, blocks * work, alone)
            + blocks * stored / fitted.store_bytes
        )

    max_ctas = choice.ctas_per_sm(card)
    waves, rest = divmod(-(-work_tiles // card.sms), max_ctas)
    cycles = waves * wave_of(max_ctas) + wave_of(rest)
    if choice.splits > 1:
        readers = -(-choice.counters // card.sms)  # CTAs of an SM that reduce a tile
        cycles += fitted.split_sync + readers * choice.splits * max(
            fitted.split_cycles, shape.partial_bytes / fitted.partial_bytes
        )
    computing = cycles / (card.clock * fitted.clock)
    moving = traffic.nbytes(choice, card) / (fitted.dram * card.bandwidth)
    slowdown = 1.0 if lowering.form.input == "float32" else MISALIGNED.get(lowering.form.alignment, 1.0)
    return slowdown * overlapped(_MEMORY_SHARPNESS, computing, moving) * choice.batches + LAUNCH * choice.launches


def single_step(shape: sgemm.Shape, card: Card, fitted: Fitted) -> tuple[float, float]:
    """Return the cycles of a CTA's step along K in the float32 kernel: of shared units, and of a warp alone without
    latency.
    """
    lanes_n = 8 if shape.warp_n >= 32 else 4
    loads = (shape.warp_m * lanes_n // 32 + shape.warp_n // lanes_n) / 4  # of 16 bytes, for one step along K
    quarter = shape.threads / 32 / 4  # warps of each of the four schedulers
    multiply = shape.k * shape.accumulators * card.single_cycles
    issue = max(multiply, shape.k * (shape.accumulators + loads) + _OVERHEAD)
    shared = shape.k * 4 * loads * 2
    work = quarter * overlapped(fitted.sharpness, issue, shared) / fitted.efficiency.get(shape.name, 1.0)
    return work, issue * fitted.single_warp


def tensor_step(shape: mma.Shape, card: Card, fitted: Fitted) -> tuple[float, float]:
    """Return the same for the tensor-core kernel."""
    multiply = shape.m * shape.n * shape.k / card.rates.half
    # Every fragment is read by its warp, and every tile written once.
    shared = 2 * shape.k * (shape.warps * (shape.warp_m + shape.warp_n) + shape.m + shape.n) / _SHARED_BYTES
    alone = multiply / (shape.warps / 4) * fitted.single_warp
    return overlapped(fitted.sharpness, multiply, shared) / fitted.efficiency.get(shape.name, 1.0), alone
