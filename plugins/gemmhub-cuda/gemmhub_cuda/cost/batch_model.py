"""The seconds of the kernel for batches of small matrices: the longer of memory traffic and computing.

Warps are independent, so that a launch takes little more than what the busiest unit takes. Where a warp has few tiles,
or the card few warps, their latency counts. Of 8-bit floats nothing was measured.
"""

from __future__ import annotations

from gemmhub_cuda.candidate import Choice
from gemmhub_cuda.cost import traffic
from gemmhub_cuda.cost.fitted import TENSOR
from gemmhub_cuda.cost.wave_model import overlapped
from gemmhub_cuda.variants import batch
from gemmhub_cuda.variants.card import Card

MEASURED = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
"""Names of the cards on which the constants, set by hand, were compared with times."""
LAUNCH = 2.2e-6
"""Seconds of a launch whose work takes no time."""
DRAM = 0.88
"""Share of the memory bandwidth that streams of small matrices reach."""
_LATENCY = 900.0
"""Cycles from a request to memory until the data are in shared memory."""
_TILE = 160.0
"""Instructions for a tile besides copies, multiplications and stores."""
_BLOCK = 40.0
"""Instructions for a step along K besides those that copy and multiply."""
_COPY = 4.0
"""Instructions for a copy of 16 bytes a lane by cp.async."""
_ELEMENT = 10.0
"""Instructions for an element that is loaded on its own."""
_STORE = 24.0
"""Instructions for the results of four elements a lane."""
_ISSUE = 3.0
"""Instructions that an SM issues in a cycle, of four."""
_SHARPNESS = 1.5
"""Exponent of :func:`gemmhub_cuda.cost.wave_model.overlapped`: few warps hide little of each other's waiting. Set by
hand to the two products of int8 on an H100 of benchmarks/run/map.py whose estimates were half of their times.
"""
_L2_BYTES = 48.0
"""Bytes a cycle that L2 delivers to an SM."""

_BESIDE_WGMMA = 1.5
"""Factor on estimates of 8-bit floats on compute capability 9.0, where nothing of them was measured: the kernels of
gemmhub-hopper, which were, are to be preferred where the two are close."""


def seconds(choice: Choice, shape: batch.Shape, card: Card) -> float:
    """Return the seconds of a call of ``choice``, whose shape is ``shape``."""
    form = choice.lowering.form
    tiles, blocks = choice.counters, choice.k_blocks
    steps = shape.k_bytes // 32
    multiply = steps * (shape.m * shape.n / 128 + (shape.m + shape.n) / 8)
    if shape.promoted:  # an addition for each sum, or a multiplication of scales and a multiply-add
        multiply += shape.m * shape.n / 32 * shape.k / 128 * (2 if form.scales == "blocks" else 1)
    copies = sum(
        side * shape.k_bytes / 512 * _copy(alignment, shape.itemsize)
        for side, alignment in ((shape.m, form.a_alignment), (shape.n, form.b_alignment))
    )
    rows = min(shape.m, -(-choice.lowering.m // 16) * 16)
    store = rows * shape.n / 128 * (_STORE if not form.addend else 2 * _STORE)
    instructions = _TILE + blocks * (_BLOCK + copies + multiply) + store
    per_sm = -(-tiles // card.sms)
    issue = per_sm * instructions / _ISSUE
    tensor = per_sm * blocks * shape.m * shape.n * shape.k / card.rates.of(form.input)
    l2 = per_sm * blocks * (shape.m + shape.n) * shape.k_bytes / _L2_BYTES
    each = -(-per_sm // (choice.ctas_per_sm(card) * shape.warps))  # tiles of a warp
    alone = _LATENCY + each * (instructions * 2 + blocks * _LATENCY / (shape.stages - 1))
    times = issue, tensor, l2, alone
    moving = traffic.nbytes(choice, card) / (DRAM * card.bandwidth)
    if shape.promoted:
        sharpness, factor = TENSOR.sharpness, _BESIDE_WGMMA if card.capability == (9, 0) else 1.0
        batch_seconds = factor * overlapped(sharpness, overlapped(sharpness, *times) / card.clock, moving)
    else:
        batch_seconds = max(overlapped(_SHARPNESS, *times) / card.clock, moving)
    return batch_seconds * choice.batches + LAUNCH * choice.launches


def _copy(alignment: int, itemsize: int) -> float:
    """Return the instructions for copying 16 bytes a lane."""
    return _COPY * 16 / alignment if alignment >= 4 else _ELEMENT * 16 / itemsize
