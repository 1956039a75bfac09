"""How long a way of running a product should take: rounds of pieces, each as slow as its slowest resource.

A piece (a tile, over a part of k) takes, for each stage of k, the largest of: the tensor cores' cycles and shared
memory's for feeding them, what L2 delivers, and the latency of memory over the stages of the ring. Around that lie the
first load's latency and the epilogue, which another piece of the same block hides in ping-pong shapes only. All this
runs beside what memory must move. The constants (fitted.py) are fitted to measurements, and so is what corrects the
model's estimates (corrections.py).
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gemmhub.native.cuda import clusters_at_once
from gemmhub_hopper import config, corrections, slabs
from gemmhub_hopper.config import Shape, Variant, shapes
from gemmhub_hopper.fitted import CONSTANTS, Constants
from gemmhub_hopper.forms import Lowered
from gemmhub_hopper.operands import Reading
from gemmhub_hopper.slabs import Slabs

LAUNCH = 1e-6
"""Seconds of a kernel that does nothing, one of many: each begins while the one before ends."""
_SHARPNESS = 6
"""Of the largest of a stage's resources: others that are near to it add to it."""
_MANY_PARTS, _MUCH = 6, 40
"""Parts of k, and fours of registers of all of them, from which on each adds a slice."""


@dataclass(frozen=True)
class Card:
    """What the model knows of a device."""

    sms: int
    clock: float
    """Hz."""
    bandwidth: float
    """Bytes a second."""


_NAME = re.compile(r"(\d+x\d+x\d+p?(?:c\dx\d)?(?:k\d)?)(r?)(s?)(t?)(?:/(\d+))?")
"""Of a choice: shape, through registers, split in shared memory, exchanged, parts of k."""


@dataclass(frozen=True)
class Choice:
    """One way of running a product."""

    way: Lowered
    shape: Shape
    splits: int

    @property
    def name(self) -> str:
        """Such as "128x256x4", or "64x16x16rt/8": the shape, "r" where the kernel's a goes through registers, "s" where
        its b is split in shared memory, "t" where operands change places, parts of k.
        """
        form = self.way.form
        letters = "r" * form.a_registers + "s" * form.b_split + "t" * self.way.swapped
        return self.shape.name + letters + (f"/{self.splits}" if self.splits > 1 else "")

    @cached_property
    def variant(self) -> Variant:
        return config.variant(self.shape, self.way.form, self.splits > 1)

    @property
    def copied(self) -> tuple[Reading, ...]:
        """Operands that a pre-pass copies."""
        return self.way.copied

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
        return self.slots * self.splits * self.shape.m // self.shape.sharers * self.shape.columns * 4

    def cut(self, workspace: int) -> Slabs | str:
        """The slabs of k that its copies need, in that many bytes of workspace; or why it does not run in them."""
        return slabs.cut(self.way, self.part_bytes, workspace)

    def grid(self, sms: int) -> int:
        """Thread blocks. A cluster that shares k has one piece."""
        if self.shape.cluster_k > 1:
            return self.pieces * self.shape.cluster
        return min(self.pieces, clusters_at_once(sms, self.shape.cluster)) * self.shape.cluster

    def group(self, sms: int) -> int:
        """Rows of cluster tiles to walk together, so that the blocks that run at once read the least from memory."""
        shape, (rows, _) = self.shape, self.tiles
        at_once = clusters_at_once(sms, shape.cluster)
        height, width = shape.m * shape.cluster_m, shape.n * shape.cluster_n
        sizes = [size for size in (1, 2, 4, 8, 16, 32) if size < 2 * rows]
        return min(sizes, key=lambda size: min(size, rows) * height + -(-at_once // min(size, rows)) * width)


def named(ways: Sequence[Lowered], name: str) -> Choice:
    """The choice of that name (:attr:`Choice.name`). ValueError where there is none."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"there is no kernel called {name}")
    for way in ways:
        if (way.form.a_registers, way.form.b_split, way.swapped) == (bool(found[2]), bool(found[3]), bool(found[4])):
            for shape in shapes(way.form):
                if shape.name == found[1]:
                    return Choice(way, shape, int(found[5] or 1))
    raise ValueError(f"there is no kernel called {name} for this problem")


class Work(NamedTuple):
    """What there is to do, before any constant is known. Bytes and cycles are of one multiprocessor."""

    blocks: int
    """Stages of k in a piece."""
    step: float
    """Cycles of the tensor cores for 64 rows and 32 bytes of k."""
    fed: int
    """Bytes that shared memory delivers for that."""
    steps: float
    """How many there are in a stage."""
    rows: float
    """Of a in a tile, in 64s."""
    ragged: bool
    """Neighbours of b along n are neighbours, and a tile ends within 64 of them."""
    registers: bool
    """They go through registers."""
    split: float
    """Columns of b that are split in shared memory, in 64s."""
    planes: bool
    alone: bool
    """One consumer warpgroup."""
    turns: bool
    """Ping-pong."""
    stages: int
    doublings: int
    """Of the blocks that share operands."""
    shared_k: int
    """Blocks that share k."""
    loaded: tuple[float, float, float, float]
    """Bytes of a stage from L2: of operands whose rows begin at multiples of 128 bytes; of 64; of 32; of 16."""
    full: int
    """Rounds in which every multiprocessor has a piece."""
    rest: float
    """The share of multiprocessors that have one in the round after those."""
    stored: int
    """Bytes of a tile's results as they are stored, some of them twice."""
    chunks: float
    """Of results that a warpgroup stores one after the other."""
    splits: int
    in_slices: bool
    """Each part of a split k adds a slice of the tile."""
    part: int
    """Bytes of a block's part of a split k, or of k that a cluster shares."""
    at_once: int
    """Parts that are added at once."""
    slabs: int
    launches: int
    read: float
    """Bytes of memory, for all."""
    written: float
    copied: float
    """By the pre-pass."""


def work(choice: Choice, cut: Slabs, sms: int) -> Work:
    way, shape, form = choice.way, choice.shape, choice.way.form
    variant = choice.variant
    at_once = clusters_at_once(sms, shape.cluster)
    full, rest = divmod(choice.pieces, at_once)
    loaded = [0.0, 0.0, 0.0, 0.0]
    for reading, nbytes in ((way.a, variant.a_bytes / shape.cluster_n), (way.b, variant.b_bytes / shape.cluster_m)):
        loaded[_misalignment(reading, way, cut)] += nbytes
    accumulators = shape.m // shape.sharers * shape.columns // 128
    results = way.m * way.n * way.batch
    again = (cut.count - 1) * results * 4  # sums that slabs add to
    parts = choice.part_bytes * cut.count
    stored = results * form.output_bytes
    return Work(
        blocks=-(-cut.blocks // (choice.splits * shape.cluster_k)),
        step=shape.n / 2,
        fed=(shape.n if form.a_registers else 64 + shape.n) * 32,
        steps=form.steps,
        rows=shape.m / 64,
        ragged=form.b_mn and not form.b_split and shape.n % 64 > 0,
        registers=form.a_registers,
        split=shape.n / 64 if form.b_split else 0.0,
        planes=form.planes > 1,
        alone=shape.consumers == 1,
        turns=shape.pingpong,
        stages=shape.stages,
        doublings=shape.sharing.bit_length() - 1,
        shared_k=shape.cluster_k,
        loaded=(loaded[0], loaded[1], loaded[2], loaded[3]),
        full=full,
        rest=rest / at_once,
        stored=shape.m * variant.chunks * variant.chunk * form.output_bytes,
        chunks=shape.m / 64 * variant.chunks / shape.sharers,
        splits=choice.splits,
        in_slices=in_slices(choice, at_once),
        part=shape.m * shape.columns * 4 // shape.sharers,
        at_once=8 if accumulators <= 8 else 4 if accumulators <= 16 else 2 if accumulators <= 32 else 1,
        slabs=cut.count,
        launches=cut.count * (2 if way.copied else 1),
        read=way.nbytes - stored + parts + again,
        written=stored + parts + again,
        copied=sum(x.elements * (x.size + form.planes * form.input_bytes) for x in way.copied),
    )


def in_slices(choice: Choice, at_once: int) -> bool:
    """Whether each part of a split k adds a slice of the tile, as split_k.cuh says; else the last one adds all."""
    shape, splits = choice.shape, choice.splits
    fours = shape.m // shape.sharers * shape.columns // 512
    many = fours >= 4 and splits >= _MANY_PARTS and splits * fours >= _MUCH
    return many and shape.consumers < 3 and not shape.pingpong and choice.pieces <= at_once


def _misalignment(reading: Reading, way: Lowered, cut: Slabs) -> int:
    """Of the rows that TMA reads: 0 to 3, as in Work.loaded."""
    ld = reading.stored(way.form, cut.k(way.form)).ld
    return 3 if ld % 32 else 2 if ld % 64 else 1 if ld % 128 else 0


def seconds_of(w: Work, card: Card, c: Constants) -> float:
    """A call with its slabs."""
    multiply = w.steps * w.rows * max(w.step * c.tensor, w.fed / c.shared_bytes, c.step)
    multiply *= (c.alone if w.alone else 1) * (1 + c.ragged * w.ragged)
    if w.registers:
        loading = w.rows * c.loading + w.split * c.splitting
        unhidden = c.unhidden_alone if w.alone else c.unhidden
        multiply = max(multiply, loading) + unhidden * min(multiply, loading)
    elif w.planes and w.alone:
        multiply += c.promotion  # nobody multiplies meanwhile
    multiply += c.stage
    latency = (c.latency + c.remote * w.doublings) / w.stages
    lines, halves, quarters, eighths = w.loaded
    loaded = lines + c.units_of_64 * halves + c.units_of_32 * quarters + c.units_of_16 * eighths
    if w.shared_k > 1 and not w.doublings:
        loaded *= c.apart

    def main_loop(busy: float) -> float:
        resources = multiply, loaded / min(c.most_bytes, c.l2_bytes / busy), latency, c.least
        stage: float = sum([x**_SHARPNESS for x in resources]) ** (1 / _SHARPNESS)
        return w.blocks * stage * (1 + c.together * w.doublings)

    epilogue = w.stored / c.store_bytes + c.epilogue * (1 + c.turn * w.turns) + w.chunks * c.chunk
    if w.shared_k > 1:
        epilogue += c.gather + w.shared_k * w.part / c.gathered_bytes
    if w.splits > 1:
        adding = c.slice * (1 + w.splits / 16) if w.in_slices else w.splits * c.part / w.at_once
        epilogue += c.split + adding + (2 if w.in_slices else w.splits) * w.part / c.part_bytes
    rounds = [(count, main_loop(busy)) for count, busy in ((w.full, 1.0), (1, w.rest)) if count and busy]
    if w.turns:  # one piece's epilogue is under the main loop of the next, but for the last one's
        pieces = sum(count * max(each, epilogue) for count, each in rounds) + min(rounds[-1][1], epilogue)
    else:
        pieces = sum(count * (each + epilogue) for count, each in rounds)
    computing = w.slabs * (c.start + pieces) / card.clock
    moving = w.slabs * c.start / card.clock + (w.read / c.reading + w.written / c.writing) / card.bandwidth
    # They do not overlap perfectly.
    whole = max(computing, moving) + c.overlap * min(computing, moving)
    return whole + c.launch * w.slabs + copying(w, card, c)


def copying(w: Work, card: Card, c: Constants) -> float:
    """Seconds of the pre-passes."""
    return w.copied / (c.copying * card.bandwidth) + c.launch * (w.launches - w.slabs)


def seconds(choice: Choice, cut: Slabs, card: Card) -> float:
    """A call with its slabs."""
    return seconds_of(work(choice, cut, card.sms), card, CONSTANTS[choice.way.form.input])


class Ranked(NamedTuple):
    """A choice with the seconds that it should take."""

    seconds: float
    choice: Choice
    work: Work
    apart: float = 0.0
    """Seconds of those that corrections are not for: of copies, where they were fitted to products without any."""


def ranked(ways: tuple[Lowered, ...], card: Card, workspace: int) -> list[Ranked]:
    """Every shape, with the kernel's a through registers and not, either way around, with the numbers of parts of k
    that may pay. The fastest first, by the model alone.
    """
    constants, uncopied = CONSTANTS[ways[0].form.input], ways[0].form.input in corrections.HALVES
    with _uncollected():
        found = [
            Ranked(
                seconds_of(facts, card, constants), choice, facts, copying(facts, card, constants) if uncopied else 0.0
            )
            for way in ways
            for shape in shapes(way.form)
            for choice, facts in ((x, work(x, cut, card.sms)) for x, cut in _parts(way, shape, card, workspace))
        ]
    return sorted(found, key=lambda x: x.seconds)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collections: the thousands of objects that are made here would call for several, of which one may
    be of all objects of the process. Beside torch that takes longer than all the rest of a first call.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def corrected(ways: tuple[Lowered, ...], card: Card, workspace: int) -> list[Ranked]:
    """Those of :func:`ranked` as measurements correct them, where there are any of such a card."""
    ranking, by = ranked(ways, card, workspace), corrections.learned(ways[0].form.input, card.sms)
    return ranking if by is None else corrections.corrected(ranking, by)


def choices(ways: tuple[Lowered, ...], card: Card, workspace: int) -> list[tuple[float, Choice]]:
    """Every shape, once with the kernel's a through registers and once without, once with its b split in shared memory:
    each the better way around and with its best number of parts of k, by the model as measurements correct it. The
    fastest first.
    """
    best: dict[tuple[Shape, bool, bool], tuple[float, Choice]] = {}
    for x in corrected(ways, card, workspace):
        form = x.choice.way.form
        best.setdefault((x.choice.shape, form.a_registers, form.b_split), (x.seconds, x.choice))
    return list(best.values())


def _parts(way: Lowered, shape: Shape, card: Card, workspace: int) -> Iterator[tuple[Choice, Slabs]]:
    """This shape with the numbers of parts of k that may pay: all of them together make at most two waves. Blocks that
    share k may where all of them run at once: they are for products of few tiles.
    """
    whole, at_once = Choice(way, shape, 1), clusters_at_once(card.sms, shape.cluster)
    if shape.cluster_k > 1 and whole.pieces > at_once:
        return
    cut = runnable(whole, workspace)
    if isinstance(cut, str):
        return
    yield whole, cut
    if shape.cluster_k > 1 and not way.form.b_split:
        return
    for waves in (1, 2):
        splits = min(slabs.MOST_PARTS, waves * at_once // whole.pieces, cut.blocks // (2 * shape.cluster_k))
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
    shared, last = choice.shape.cluster_k, choice.way.k_blocks - (cut.count - 1) * cut.blocks
    if shared > last:
        return f"k, or its last slab, has {last} blocks, fewer than the {shared} that are to share it"
    if choice.splits > slabs.MOST_PARTS:
        return f"{choice.splits} parts of k, at most {slabs.MOST_PARTS}"
    if choice.splits > 1:
        if choice.splits * shared > cut.blocks:
            return f"k has {cut.blocks} blocks, fewer than {choice.splits * shared} parts"
        most = slabs.counters(choice.way.form)
        if choice.slots > most:
            return f"{choice.slots} tiles, at most {most} have counters"
    if choice.pieces >= 2**31:
        return f"{choice.pieces} pieces: they are numbered by 31 bits"
    one = cut.count == 1
    kernels = (choice.variant,) if one else slabs.variants(choice.shape, choice.way.form, choice.splits > 1, cut.count)
    for variant in kernels:
        if variant.refusal is not None:
            return variant.refusal
    return cut
