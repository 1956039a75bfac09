"""How long a way of running a product should take: waves of pieces, each as slow as its slowest resource.

A piece (a tile, over a part of k) takes, for each stage of k, the largest of: the tensor cores' cycles, shared
memory's for feeding them, and what the memory system needs to deliver the stage. Around that lie the first load's
latency and the epilogue, which another piece of the same block hides in ping-pong shapes only. Constants without a
source are estimates; they have not been fitted to measurements yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from gemmhub_hopper import slabs
from gemmhub_hopper.config import Shape, Variant, shapes
from gemmhub_hopper.forms import Lowered
from gemmhub_hopper.slabs import Slabs

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
_EPILOGUE = 400.0
"""Cycles of an epilogue besides its stores, where two warpgroups share it or one has half a tile."""
_DRAM_EFFICIENCY = 0.9
_OVERLAP = 0.1
"""Of the lesser of computing and moving data that adds to the greater."""
_MOST_SPLITS = 32
_PAIRS = 6
"""Products of planes that make one of float32."""
_PROMOTION = 250.0
"""Cycles to add a stage's sum to the accumulators, and to begin the next."""
_LOADING = 100.0
"""Cycles to load 64 rows of a stage into registers, by a warp of each of the four parts of a multiprocessor."""
_SPLITTING = 300.0
"""To split them, too."""
_UNHIDDEN = 0.2
"""Of the lesser of multiplying and loading into registers that adds to the greater."""
_LEAST_STEP = 16.0
"""Cycles of a wgmma whose a comes from registers, however few columns it has."""
_COPY_EFFICIENCY = 0.75
"""Of the memory's bandwidth that the pre-pass uses."""


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
        """Such as "128x256x4", or "64x16x16rt/8": the shape, "r" where the kernel's a goes through registers, "t" where
        operands change places, parts of k.
        """
        letters = ("r" if self.way.form.a_registers else "") + ("t" if self.way.swapped else "")
        return self.shape.name + letters + (f"/{self.splits}" if self.splits > 1 else "")

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
        """Shares of tiles that consumer warpgroups have: counters that a split k takes."""
        return self.tiles[0] * self.tiles[1] * self.way.batch * self.shape.cluster * self.shape.sharers

    @property
    def part_bytes(self) -> int:
        """Of workspace for the parts of a split k."""
        if self.splits == 1:
            return 0
        return self.slots * self.splits * self.shape.m // self.shape.sharers * self.shape.n * 4

    def cut(self, workspace: int) -> Slabs | str:
        """The slabs of k that its copies need, in that many bytes of workspace; or why it does not run in them."""
        return slabs.cut(self.way, self.part_bytes, workspace)

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


def seconds(choice: Choice, cut: Slabs, card: Card) -> float:
    """A call with its slabs, host time included."""
    way, shape, form = choice.way, choice.shape, choice.way.form
    blocks = -(-cut.blocks // choice.splits)
    # A step of 32 bytes of k takes n / 2 cycles, of tf32 too; shared memory delivers 64 rows of a and n of b for it.
    step = max(shape.n / 2, _LEAST_STEP if form.a_registers else (64 + shape.n) * 32 / _SHARED_BYTES)
    steps = form.k_bytes // 32 * (_PAIRS if form.planes > 1 else 1)
    multiply = steps * (shape.m / 64) * step
    variant = choice.variant
    plane_bytes, a_bytes = form.planes * form.k_bytes, form.planes * form.k_bytes
    if form.a_registers:
        a_bytes = 4 * form.block_k
        loading = shape.m / 64 * (_SPLITTING if form.planes > 1 else _LOADING)
        multiply = max(multiply, loading) + _UNHIDDEN * min(multiply, loading)
    elif form.planes > 1 and shape.consumers == 1:
        multiply += _PROMOTION  # nobody multiplies meanwhile
    loaded = a_bytes * shape.m / shape.cluster_n + plane_bytes * shape.n / shape.cluster_m
    busy = min(1.0, choice.pieces * shape.cluster / card.sms)
    clock = card.clock * _CLOCK_UNDER_LOAD
    from_l2 = loaded / min(_MOST_BYTES, _L2_BYTES / busy)
    in_flight = variant.stage_bytes * shape.stages / _LATENCY
    stage = max(multiply, from_l2, variant.stage_bytes / in_flight)
    main_loop = blocks * stage
    epilogue = shape.m * shape.n * form.output_bytes / _STORE_BYTES + _EPILOGUE * (2 if shape.pingpong else 1)
    if choice.splits > 1:
        epilogue += 1500 + (1 + choice.splits) * shape.m * shape.n * 4 / (2 * _L2_BYTES)
    waves = -(-choice.pieces // max(1, card.sms // shape.cluster))
    if shape.pingpong:  # one piece's epilogue is under the main loop of the next, but for the last one's
        pieces = waves * max(main_loop, epilogue) + min(main_loop, epilogue)
    else:
        pieces = waves * (main_loop + epilogue)
    computing = cut.count * (_START + _LATENCY + pieces) / clock
    again = 2 * (cut.count - 1) * way.m * way.n * way.batch * 4  # sums that slabs add to
    moved = way.nbytes + 2 * choice.part_bytes * cut.count + again
    moving = cut.count * (_START + _LATENCY) / clock + moved / (_DRAM_EFFICIENCY * card.bandwidth)
    # They do not overlap perfectly.
    whole = max(computing, moving) + _OVERLAP * min(computing, moving)
    return whole + _copying(way, card) + LAUNCH * cut.count * (2 if way.copied else 1)


def _copying(way: Lowered, card: Card) -> float:
    """Reading operands, and writing their copies."""
    form = way.form
    nbytes = sum(x.elements * (x.size + form.planes * form.input_bytes) for x in way.copied)
    return nbytes / (_COPY_EFFICIENCY * card.bandwidth)


def choices(ways: tuple[Lowered, ...], card: Card, workspace: int) -> list[tuple[float, Choice]]:
    """Every shape, once with the kernel's a through registers and once without: each the better way around and with its
    best number of parts of k. The fastest first.
    """
    found = []
    for registers in (False, True):
        alike = [way for way in ways if way.form.a_registers == registers]
        for shape in shapes(ways[0].form.input, registers):
            timed = [(seconds(x, cut, card), x) for way in alike for x, cut in _parts(way, shape, card, workspace)]
            if timed:
                found.append(min(timed, key=lambda pair: pair[0]))
    return sorted(found, key=lambda pair: pair[0])


def _parts(way: Lowered, shape: Shape, card: Card, workspace: int) -> Iterator[tuple[Choice, Slabs]]:
    """This shape with the numbers of parts of k that may pay: all of them together make at most two waves."""
    whole = Choice(way, shape, 1)
    cut = runnable(whole, workspace)
    if isinstance(cut, str):
        return
    yield whole, cut
    at_once = max(1, card.sms // shape.cluster)
    for waves in (1, 2):
        splits = min(_MOST_SPLITS, waves * at_once // whole.pieces, cut.blocks // 2)
        if splits > 1:
            choice = Choice(way, shape, splits)
            parts = runnable(choice, workspace)
            if not isinstance(parts, str):
                yield choice, parts


def runnable(choice: Choice, workspace: int) -> Slabs | str:
    """How k is cut when a product is run so in that many bytes of workspace; or why it cannot be."""
    cut = choice.cut(workspace)
    if isinstance(cut, str):
        return cut
    if choice.splits > 1:
        if choice.splits > cut.blocks:
            return f"k has {cut.blocks} blocks, fewer than {choice.splits} parts"
        most = slabs.counters(choice.way.form)
        if choice.slots > most:
            return f"{choice.slots} tiles, at most {most} have counters"
    if choice.pieces >= 2**31:
        return f"{choice.pieces} pieces: they are numbered by 31 bits"
    for variant in slabs.variants(choice.shape, choice.way.form, choice.splits > 1, cut.count):
        if variant.refusal is not None:
            return variant.refusal
    return cut
