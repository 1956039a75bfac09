"""The analytic estimate of a call: waves of blocks, each as slow as its slowest resource.

The blocks that a multiprocessor runs at once take, for each step of TILE_K, the longer of two times. One is what their
work needs of the units that they share: arithmetic, instruction issue slots, shared memory, bandwidth from L2. The
other is what one of them takes alone: its instructions one after the other, and the latencies that it waits for. The
partial sums of a split k are then added up. All that overlaps with moving the operands from memory. Operands that are
not aligned to 16 bytes make the whole slower (:data:`MISALIGNED`).

fitted.py has the constants that measurements on a card gave. :mod:`gemmhub_cuda.corrections` corrects the estimate on
cards where it was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gemmhub.kit.cuda import Gpu
from gemmhub.kit.cuda_scratch import COUNTERS, MOST_COUNTERS
from gemmhub_cuda import mma, sgemm
from gemmhub_cuda.fitted import SINGLE, TENSOR, Fitted
from gemmhub_cuda.lower import Lowered
from gemmhub_cuda.sources import Variant

LAUNCH = 4e-6
"""Seconds for an empty kernel, host time included."""
MISALIGNED = {2: 2.7, 4: 2.1, 8: 1.45}
"""By the bytes that a and b are loaded at a time: the factor on the time of the kernel with tensor cores, where a full
load has 16 bytes. The values for 2 and 4 bytes are geometric means over the four products of benchmarks/results/h100/
and h200/map.json that ran by this kernel (three at 2 bytes, 1.96 to 3.51; one at 4). That for 8 bytes is interpolated.
They depend on the operands alone, so that they rank backends, not shapes.
"""
_SHARED_BYTES = 128.0
"""That shared memory delivers in a cycle."""
_OVERHEAD = 40.0
"""Instructions for a step of TILE_K of the float32 kernel that neither multiply nor load fragments."""
_MEMORY_SHARPNESS = 4.0
"""As ``Fitted.sharpness``, of computing and moving data."""
_MOST_SPLITS = 64
_NAME = re.compile(r"([^/]+)(?:/([1-9]\d*))?")

_SHARED_PER_BLOCK, _SHARED_PER_SM, _THREADS_PER_SM = 97, 81, 39  # CUdevice_attribute
_SLOW_SINGLE = ((7, 0), (7, 2), (7, 5), (8, 0))
"""Capabilities with 64 float32 multiply-adds in a cycle of a multiprocessor; others have 128."""
_TENSOR = {(8, 0): 1024, (8, 7): 1024, (9, 0): 1270}
"""16-bit multiply-adds of mma.sync in a cycle of a multiprocessor; 512 of others. On 9.0 it is 0.62 of wgmma's 2048."""


@dataclass(frozen=True)
class Card:
    """What the model knows of a device."""

    sms: int
    clock: float
    """Hz."""
    bandwidth: float
    """Bytes a second."""
    capability: tuple[int, int]
    shared_per_block: int
    """Bytes, if asked for."""
    shared_per_sm: int
    threads_per_sm: int
    name: str = ""
    """Name of the card, as the driver reports it."""

    @classmethod
    def of(cls, gpu: Gpu) -> Card:
        """Calls the driver."""
        per_block, per_sm, threads = map(gpu.attribute, (_SHARED_PER_BLOCK, _SHARED_PER_SM, _THREADS_PER_SM))
        return cls(gpu.sms, gpu.clock, gpu.bandwidth, gpu.capability, per_block, per_sm, threads, gpu.name)


@dataclass(frozen=True)
class Choice:
    """One way of running a product."""

    way: Lowered
    shape: sgemm.Shape | mma.Shape
    splits: int
    """Parts of k."""

    @property
    def name(self) -> str:
        """Such as "128x128x8t256", or "mma64x64x64x4w4/8": the shape, parts of k."""
        return self.shape.name + (f"/{self.splits}" if self.splits > 1 else "")

    @property
    def variant(self) -> Variant:
        if isinstance(self.shape, sgemm.Shape):
            return sgemm.Variant(self.shape, self.way.form, self.splits > 1)
        return mma.Variant(self.shape, self.way.form, self.splits > 1)

    @property
    def tiles(self) -> tuple[int, int]:
        """Of one matrix, below and beside each other."""
        return -(-self.way.m // self.shape.m), -(-self.way.n // self.shape.n)

    @property
    def blocks_of_k(self) -> int:
        return max(1, -(-self.way.k // self.shape.k))

    @property
    def counters(self) -> int:
        """Tiles of the batch."""
        return self.tiles[0] * self.tiles[1] * self.way.batch.count

    @property
    def workspace_bytes(self) -> int:
        return COUNTERS + self.counters * self.splits * self.shape.partial_bytes if self.splits > 1 else 0

    def group(self, at_once: int) -> int:
        """Rows of tiles to walk together, so that the blocks that run at once read the least from memory."""
        rows = self.tiles[0]
        sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= rows]
        return min(sizes, key=lambda size: size * self.shape.m + -(-at_once // size) * self.shape.n)


def room(variant: Variant, card: Card) -> int:
    """Blocks that a multiprocessor runs at once."""
    by_shared = card.shared_per_sm // (variant.shared_bytes + 1024)
    blocks = variant.blocks if isinstance(variant, sgemm.Variant) else variant.shape.blocks
    return max(1, min(blocks, by_shared, card.threads_per_sm // variant.threads))


def either(sharpness: float, *times: float) -> float:
    """How long things take that overlap: the longest, and a little more where others are nearly as long."""
    longest = max(times)
    return float(longest * sum((time / longest) ** sharpness for time in times) ** (1 / sharpness))


def seconds(choice: Choice, card: Card, fitted: Fitted | None = None) -> float:
    """A call, host time included. ``fitted``: other constants than those of fitted.py."""
    way, shape, variant = choice.way, choice.shape, choice.variant
    fitted = fitted or (SINGLE if isinstance(shape, sgemm.Shape) else TENSOR)
    steps = -(-choice.blocks_of_k // choice.splits)
    pieces = choice.counters * choice.splits
    loaded = (shape.m + shape.n) * shape.k * way.form.input_bytes
    from_memory = min(1.0, moved(choice) / (pieces * steps * loaded)) if way.k else 0.0
    latency = fitted.near + (fitted.far - fitted.near) * from_memory
    if isinstance(shape, sgemm.Shape):
        work, alone = _single_step(shape, card, fitted)
        alone += latency  # nothing but the present tile hides it
    else:
        work, alone = _tensor_step(shape, card, fitted)
        alone += latency / (shape.stages - 1)
    work = max(work, loaded / fitted.l2_bytes)
    stored = shape.m * shape.n * (4 if choice.splits > 1 else way.form.output_bytes)

    def round_of(blocks: int) -> float:
        """Cycles for that many blocks on a multiprocessor."""
        if not blocks:
            return 0.0
        return (
            fitted.start + steps * either(fitted.sharpness, blocks * work, alone) + blocks * stored / fitted.store_bytes
        )

    most = room(variant, card)
    rounds, rest = divmod(-(-pieces // card.sms), most)
    cycles = rounds * round_of(most) + round_of(rest)
    if choice.splits > 1:
        readers = -(-choice.counters // card.sms)  # of a multiprocessor
        cycles += fitted.meet + readers * choice.splits * max(fitted.part, shape.partial_bytes / fitted.part_bytes)
    computing = cycles / (card.clock * fitted.clock)
    moving = moved(choice) / (fitted.dram * card.bandwidth)
    slowdown = 1.0 if way.form.input == "float32" else MISALIGNED.get(way.form.aligned, 1.0)
    return (slowdown * either(_MEMORY_SHARPNESS, computing, moving) + LAUNCH) * sum(1 for _ in way.offsets())


def _single_step(shape: sgemm.Shape, card: Card, fitted: Fitted) -> tuple[float, float]:
    """Cycles for a block's step of the float32 kernel: of what a multiprocessor shares, and of a warp alone."""
    lanes_n = 8 if shape.warp_n >= 32 else 4
    loads = (shape.warp_m * lanes_n // 32 + shape.warp_n // lanes_n) / 4  # of 16 bytes, for a step of k
    quarter = shape.threads / 32 / 4  # warps of one of the four schedulers
    multiply = shape.k * shape.sums * (2 if card.capability in _SLOW_SINGLE else 1)
    issue = max(multiply, shape.k * (shape.sums + loads) + _OVERHEAD)
    shared = shape.k * 4 * loads * 2
    return quarter * either(fitted.sharpness, issue, shared) / fitted.efficiency.get(
        shape.name, 1.0
    ), issue * fitted.alone


def _tensor_step(shape: mma.Shape, card: Card, fitted: Fitted) -> tuple[float, float]:
    """Likewise of the kernel with tensor cores."""
    multiply = shape.m * shape.n * shape.k / _TENSOR.get(card.capability, 512)
    # Every fragment is read by its warp, and every tile written once.
    shared = 2 * shape.k * (shape.warps * (shape.warp_m + shape.warp_n) + shape.m + shape.n) / _SHARED_BYTES
    alone = multiply / (shape.warps / 4) * fitted.alone
    return either(fitted.sharpness, multiply, shared) / fitted.efficiency.get(shape.name, 1.0), alone


def moved(choice: Choice) -> int:
    """Bytes that a launch must move at least."""
    way = choice.way
    count = way.batch.count
    a, b = (count if stride else 1 for stride in way.batch.strides[:2])
    results = way.m * way.n * count * (2 if way.form.addend else 1) * way.form.output_bytes
    return (a * way.m + b * way.n) * way.k * way.form.input_bytes + results + 2 * choice.workspace_bytes


def choices(way: Lowered, card: Card, workspace: int) -> list[tuple[float, Choice]]:
    """Every shape with its best number of parts of k: the fastest first."""
    found: dict[str, tuple[float, Choice]] = {}
    for timed in every(way, card, workspace):
        found.setdefault(timed[1].shape.name, timed)
    return list(found.values())


def every(way: Lowered, card: Card, workspace: int) -> list[tuple[float, Choice]]:
    """Every shape with all numbers of parts of k that may pay: the fastest first."""
    shapes = sgemm.SHAPES if way.form.input == "float32" else mma.SHAPES
    found = [(seconds(x, card), x) for shape in shapes for x in _parts(way, shape, card, workspace)]
    return sorted(found, key=lambda pair: pair[0])


def _parts(way: Lowered, shape: sgemm.Shape | mma.Shape, card: Card, workspace: int) -> Iterator[Choice]:
    """This shape with the numbers of parts of k that may pay: all of them together make at most one round."""
    whole = Choice(way, shape, 1)
    if refusal(whole, card, workspace) is None:
        yield whole
    most = room(Choice(way, shape, 2).variant, card)
    longest = min(_MOST_SPLITS, whole.blocks_of_k // 4)
    for splits in sorted({min(longest, blocks * card.sms // whole.counters) for blocks in range(1, most + 1)}):
        choice = Choice(way, shape, splits)
        if splits > 1 and refusal(choice, card, workspace) is None:
            yield choice


def named(way: Lowered, name: str) -> Choice:
    """The choice of that name, as :attr:`Choice.name` writes it. ValueError where there is no such shape."""
    found = _NAME.fullmatch(name)
    shapes = {shape.name: shape for shape in (*sgemm.SHAPES, *mma.SHAPES)}
    if found is None or found[1] not in shapes:
        raise ValueError(f"there is no kernel called {name}")
    return Choice(way, shapes[found[1]], int(found[2] or 1))


def refusal(choice: Choice, card: Card, workspace: int) -> str | None:
    """Why a product cannot be run so; None when it can."""
    if choice.splits > 1:
        if choice.splits > choice.blocks_of_k:
            return f"k has {choice.blocks_of_k} blocks, fewer than {choice.splits} parts"
        if choice.counters > MOST_COUNTERS:
            return f"{choice.counters} tiles, at most {MOST_COUNTERS} have counters"
        if choice.workspace_bytes > workspace:
            return f"it needs {choice.workspace_bytes} bytes of workspace"
    if choice.tiles[0] * choice.tiles[1] * choice.splits >= 2**31:
        return "more tiles than a launch has blocks"
    return choice.variant.refusal(card.shared_per_block)
