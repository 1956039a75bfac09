"""How long a way of running a product should take: waves of pieces, each as slow as its slowest resource.

A piece (a tile, over a part of k) takes, for each stage of k, the largest of: the tensor cores' cycles, shared
memory's for feeding them, and what the memory system needs to deliver the stage. Around that lie the first load's
latency and the epilogue, which no other piece of the same block hides. Constants without a source are estimates; they
have not been fitted to measurements yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmhub.native.cuda_scratch import COUNTERS, MOST_COUNTERS
from gemmhub_hopper.config import SHAPES, Shape, Variant
from gemmhub_hopper.forms import Lowered

LAUNCH = 4e-6
"""Seconds for an empty kernel, host time included."""
_CLOCK_UNDER_LOAD = 0.85
"""Of the maximum clock: cards lower it when their tensor cores are busy."""
_L2_BYTES = 44.0
"""That a multiprocessor gets from L2 in a cycle when all of them read."""
_MOST_BYTES = 56.0
"""That one gets when the others are idle."""
_LATENCY = 1100.0
"""Cycles from asking for a stage to having it, from memory."""
_START = 2200.0
"""Cycles: launching a block, barriers, the first maps."""
_SHARED_BYTES = 128.0
"""That wgmma reads from shared memory in a cycle."""
_STORE_BYTES = 24.0
"""Of results that a multiprocessor gets rid of in a cycle."""
_DRAM_EFFICIENCY = 0.9
_OVERLAP = 0.1
"""Of the lesser of computing and moving data that adds to the greater."""
_MOST_SPLITS = 32


@dataclass(frozen=True)
class Card:
    """What the model knows of a device."""

    sms: int
    clock: float
    """Hz."""
    bandwidth: float
    """Bytes a second."""


@dataclass(frozen=True)
class Choice:
    """One way of running a product."""

    way: Lowered
    shape: Shape
    splits: int

    @property
    def name(self) -> str:
        """Such as "128x256x4", or "64x16x16t/8": the shape, "t" where operands change places, parts of k."""
        return self.shape.name + ("t" if self.way.swapped else "") + (f"/{self.splits}" if self.splits > 1 else "")

    @property
    def variant(self) -> Variant:
        return Variant(self.shape, self.way.form, self.splits > 1)

    @cached_property
    def tiles(self) -> tuple[int, int]:
        """Cluster tiles of one matrix below and beside each other."""
        shape, way = self.shape, self.way
        return -(-way.m // (shape.m * shape.cluster_m)), -(-way.n // (shape.n * shape.cluster_n))

    @property
    def pieces(self) -> int:
        return self.tiles[0] * self.tiles[1] * self.splits * self.way.batch

    @property
    def slots(self) -> int:
        """Tiles of consumer warpgroups: counters that a split k takes."""
        return self.tiles[0] * self.tiles[1] * self.way.batch * self.shape.cluster * self.shape.consumers

    @property
    def workspace_bytes(self) -> int:
        if self.splits == 1:
            return 0
        return COUNTERS + self.slots * self.splits * self.shape.m // self.shape.consumers * self.shape.n * 4

    def grid(self, sms: int) -> int:
        """Thread blocks."""
        return min(self.pieces, sms // self.shape.cluster) * self.shape.cluster

    def group(self, sms: int) -> int:
        """Rows of cluster tiles to walk together, so that the blocks that run at once read the least from memory."""
        shape, (rows, _) = self.shape, self.tiles
        at_once = max(1, sms // shape.cluster)
        height, width = shape.m * shape.cluster_m, shape.n * shape.cluster_n
        sizes = [size for size in (1, 2, 4, 8, 16, 32) if size < 2 * rows]
        return min(sizes, key=lambda size: min(size, rows) * height + -(-at_once // min(size, rows)) * width)


def seconds(choice: Choice, card: Card) -> float:
    """A call, host time included."""
    way, shape, form = choice.way, choice.shape, choice.way.form
    blocks = -(-way.k_blocks // choice.splits)
    # A step of 32 bytes of k takes n / 2 cycles, of tf32 too; shared memory delivers 64 rows of a and n of b for it.
    step = max(shape.n / 2, (64 + shape.n) * 32 / _SHARED_BYTES)
    multiply = 4 * (shape.m / 64) * step
    variant = choice.variant
    loaded = shape.m * 128 / shape.cluster_n + shape.n * 128 / shape.cluster_m
    busy = min(1.0, choice.pieces * shape.cluster / card.sms)
    clock = card.clock * _CLOCK_UNDER_LOAD
    from_l2 = loaded / min(_MOST_BYTES, _L2_BYTES / busy)
    in_flight = variant.stage_bytes * shape.stages / _LATENCY
    stage = max(multiply, from_l2, variant.stage_bytes / in_flight)
    piece = blocks * stage + shape.m * shape.n * form.output_bytes / _STORE_BYTES + 400
    if choice.splits > 1:
        piece += 1500 + (1 + choice.splits) * shape.m * shape.n * 4 / (2 * _L2_BYTES)
    waves = -(-choice.pieces // max(1, card.sms // shape.cluster))
    computing = (_START + _LATENCY + waves * piece) / clock
    moved = way.nbytes + (2 * choice.workspace_bytes if choice.splits > 1 else 0)
    moving = (_START + _LATENCY) / clock + moved / (_DRAM_EFFICIENCY * card.bandwidth)
    # They do not overlap perfectly.
    return max(computing, moving) + _OVERLAP * min(computing, moving) + LAUNCH


def choices(ways: tuple[Lowered, ...], card: Card, workspace: int) -> list[tuple[float, Choice]]:
    """Every shape, each the better way around and with its best number of parts of k: the fastest first."""
    found = []
    for shape in SHAPES:
        timed = [(seconds(x, card), x) for way in ways for x in _parts(way, shape, card, workspace)]
        if timed:
            found.append(min(timed, key=lambda pair: pair[0]))
    return sorted(found, key=lambda pair: pair[0])


def _parts(way: Lowered, shape: Shape, card: Card, workspace: int) -> Iterator[Choice]:
    """This shape with the numbers of parts of k that may pay: all of them together make at most two waves."""
    whole = Choice(way, shape, 1)
    if refusal(whole, workspace) is not None:
        return
    yield whole
    at_once = max(1, card.sms // shape.cluster)
    for waves in (1, 2):
        splits = min(_MOST_SPLITS, waves * at_once // whole.pieces, way.k_blocks // 2)
        choice = Choice(way, shape, splits)
        if splits > 1 and refusal(choice, workspace) is None:
            yield choice


def refusal(choice: Choice, workspace: int) -> str | None:
    """Why a product cannot be run so; None when it can."""
    if choice.splits > 1:
        if choice.splits > choice.way.k_blocks:
            return f"k has {choice.way.k_blocks} blocks, fewer than {choice.splits} parts"
        if choice.slots > MOST_COUNTERS:
            return f"{choice.slots} tiles, at most {MOST_COUNTERS} have counters"
        if choice.workspace_bytes > workspace:
            return f"it needs {choice.workspace_bytes} bytes of workspace"
    if choice.pieces >= 2**31:
        return f"{choice.pieces} pieces: they are numbered by 31 bits"
    return choice.variant.refusal
