"""How long a way of running a product should take: rounds of blocks, each as slow as its slowest resource.

The blocks that a multiprocessor runs at once take, for each step of TILE_K, the largest of: their arithmetic, issuing
their instructions, reading their fragments from shared memory, their operands' way through the L2 cache, and the wait
for what is not yet there. Constants without a source are estimates; they have not been fitted to measurements yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from gemmhub.native.cuda import Gpu
from gemmhub.native.cuda_scratch import COUNTERS, MOST_COUNTERS
from gemmhub_cuda import mma, sgemm
from gemmhub_cuda.lowered import Lowered
from gemmhub_cuda.sources import Variant

LAUNCH = 4e-6
"""Seconds for an empty kernel, host time included."""
_CLOCK_UNDER_LOAD = 0.8
"""Of the maximum clock."""
_L2_BYTES = 44.0
"""That a multiprocessor gets from L2 in a cycle when all of them read."""
_LATENCY = 800.0
"""Cycles from asking for a tile to having it in shared memory, behind a barrier."""
_START = 2500.0
"""Cycles: launching a block, its first tile, the end of the last one."""
_SHARED_BYTES = 128.0
"""That shared memory delivers in a cycle."""
_STORE_BYTES = 24.0
"""Of results that a multiprocessor gets rid of in a cycle."""
_DRAM_EFFICIENCY = 0.9
_MOST_SPLITS = 64

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

    @classmethod
    def of(cls, gpu: Gpu) -> Card:
        """Calls the driver."""
        limits = (gpu.attribute(x) for x in (_SHARED_PER_BLOCK, _SHARED_PER_SM, _THREADS_PER_SM))
        return cls(gpu.sms, gpu.clock, gpu.bandwidth, gpu.capability, *limits)


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


def seconds(choice: Choice, card: Card) -> float:
    """A call, host time included."""
    way, shape, variant = choice.way, choice.shape, choice.variant
    if isinstance(variant, sgemm.Variant):
        step, waiting = _single_step(variant, card), _LATENCY
    else:
        step, waiting = _tensor_step(variant, card), _LATENCY / (variant.shape.stages - 1)
    loaded = (shape.m + shape.n) * shape.k * way.form.input_bytes
    step = max(step, loaded / _L2_BYTES)
    steps = -(-choice.blocks_of_k // choice.splits)
    stored = shape.m * shape.n * (4 * choice.splits if choice.splits > 1 else way.form.output_bytes)

    def round_of(blocks: int) -> float:
        """Cycles for that many blocks on a multiprocessor."""
        return _START + steps * max(blocks * step, waiting) + blocks * stored / _STORE_BYTES

    most = room(variant, card)
    pieces = choice.counters * choice.splits
    rounds, rest = divmod(pieces, most * card.sms)
    cycles = rounds * round_of(most) + (round_of(ceil(rest / card.sms)) if rest else 0)
    computing = cycles / (card.clock * _CLOCK_UNDER_LOAD)
    moving = _bytes(choice) / (_DRAM_EFFICIENCY * card.bandwidth) + _START / card.clock
    return (max(computing, moving) + LAUNCH) * sum(1 for _ in way.offsets())


def _single_step(variant: sgemm.Variant, card: Card) -> float:
    """Cycles of a multiprocessor for a block's step of the float32 kernel."""
    shape = variant.shape
    lanes_n = 8 if shape.warp_n >= 32 else 4
    loads = (shape.warp_m * lanes_n // 32 + shape.warp_n // lanes_n) / 4  # of 16 bytes, for a step of k
    warps = shape.threads // 32
    multiply = shape.m * shape.n / (64 if card.capability in _SLOW_SINGLE else 128)
    issue = warps * (shape.sums + loads + 30 / shape.k) / 4
    shared = warps * loads * 2
    return shape.k * max(multiply, issue, shared)


def _tensor_step(variant: mma.Variant, card: Card) -> float:
    """Likewise of the kernel with tensor cores."""
    shape = variant.shape
    multiply = shape.m * shape.n * shape.k / _TENSOR.get(card.capability, 512)
    shared = shape.warps * (shape.warp_m + shape.warp_n) * shape.k * 2 / _SHARED_BYTES
    return max(multiply, shared)


def _bytes(choice: Choice) -> int:
    """That must move at least, in a launch."""
    way = choice.way
    count = way.batch.count
    a, b = (count if stride else 1 for stride in way.batch.strides[:2])
    results = way.m * way.n * count * (2 if way.form.addend else 1) * way.form.output_bytes
    return (a * way.m + b * way.n) * way.k * way.form.input_bytes + results + 2 * choice.workspace_bytes


def choices(way: Lowered, card: Card, workspace: int) -> list[tuple[float, Choice]]:
    """Every shape with its best number of parts of k: the fastest first."""
    shapes = sgemm.SHAPES if way.form.input == "float32" else mma.SHAPES
    found = []
    for shape in shapes:
        timed = [(seconds(x, card), x) for x in _parts(way, shape, card, workspace)]
        if timed:
            found.append(min(timed, key=lambda pair: pair[0]))
    return sorted(found, key=lambda pair: pair[0])


def _parts(way: Lowered, shape: sgemm.Shape | mma.Shape, card: Card, workspace: int) -> Iterator[Choice]:
    """This shape with the numbers of parts of k that may pay: all of them together make at most one round."""
    whole = Choice(way, shape, 1)
    if refusal(whole, card, workspace) is None:
        yield whole
    for at_once in (1, 2, 4):
        splits = min(_MOST_SPLITS, at_once * card.sms // whole.counters, whole.blocks_of_k // 4)
        choice = Choice(way, shape, splits)
        if splits > 1 and refusal(choice, card, workspace) is None:
            yield choice


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
