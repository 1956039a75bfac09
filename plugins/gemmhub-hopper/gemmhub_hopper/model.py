"""How long a way of running a product should take: rounds of pieces, each as slow as its slowest resource.

A piece (a tile, over a part of k) takes, for each stage of k, the largest of: the tensor cores' cycles and shared
memory's for feeding them, what L2 delivers, and the latency of memory over the stages of the ring. Around that lie the
first load's latency and the epilogue, which another piece of the same block hides in ping-pong shapes only. All this
runs beside what memory must move. The constants (fitted.py) are fitted to measurements.

There are hundreds of ways to run a product. The model is asked about all of them at once: its numbers may be arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gemmhub.kit.cuda_clusters import estimated
from gemmhub_hopper import config
from gemmhub_hopper.candidate import Choice, Choices
from gemmhub_hopper.config import Variant
from gemmhub_hopper.fitted import CONSTANTS, Constants
from gemmhub_hopper.k_passes import Slabs
from gemmhub_hopper.lower import Lowered
from gemmhub_hopper.operands import Reading
from gemmhub_hopper.shapes import Shapes

Numbers = Any
"""A number, or an array of one for each way of running the product."""
LAUNCH = 1e-6
"""Seconds of a kernel that does nothing, one of many: each begins while the one before ends."""
_SHARPNESS = 6
"""Of the largest of a stage's resources: others that are near to it add to it."""
_COPIES = ((8, 8), (16, 4), (32, 2))
"""Up to how many accumulators a thread adds how many parts of k at once; of more one."""
EPILOGUE = 4e-7
"""Seconds of any epilogue."""
ACTIVATIONS = {None: 1.5e-13, "relu": 1.5e-13, "gelu": 7e-13, "silu": 7e-13}
"""Seconds of an element of the result, bias included. Fitted by hand to 17 products of benchmarks/run/map.py."""
ADDEND = 4e-12
"""Seconds of an element of c; twice that where operands are exchanged, as one product of benchmarks/run/map.py
showed. The threads that store the result read c, not TMA.
"""


@dataclass(frozen=True)
class Card:
    """A device, as the models see it."""

    sms: int
    clock: float
    """Hz."""
    bandwidth: float
    """Bytes a second."""
    clusters: tuple[int, ...] = ()
    """How many run at once, by their size; of those that are not here it is estimated."""
    name: str = ""
    """As the driver reports it. The model does not depend on it; corrections do."""

    def clusters_at_once(self, size: int) -> int:
        """Clusters of ``size`` thread blocks that run at once, a block on each multiprocessor."""
        return self.clusters[size] if size < len(self.clusters) else estimated(self.sms, size)


class Work(NamedTuple):
    """What there is to do, before any constant is known. Bytes and cycles are of one multiprocessor."""

    blocks: Numbers
    """Stages of k in a piece."""
    step: Numbers
    """Cycles of the tensor cores for 64 rows and 32 bytes of k."""
    fed: Numbers
    """Bytes that shared memory delivers for that."""
    steps: Numbers
    """How many there are in a stage."""
    rows: Numbers
    """Of a in a tile, in 64s."""
    ragged: Numbers
    """Neighbours of b along n are neighbours, and a tile ends within 64 of them."""
    registers: Numbers
    """They go through registers."""
    split: Numbers
    """Columns of b that are split in shared memory, in 64s."""
    planes: Numbers
    alone: Numbers
    """One consumer warpgroup."""
    turns: Numbers
    """Ping-pong."""
    stages: Numbers
    doublings: Numbers
    """Of the blocks that share operands."""
    shared_k: Numbers
    """Blocks that share k."""
    lines: Numbers
    """Bytes of a stage from L2: of operands whose rows begin at multiples of 128 bytes."""
    halves: Numbers
    """Of 64."""
    quarters: Numbers
    """Of 32."""
    eighths: Numbers
    """Of 16."""
    full: Numbers
    """Rounds in which every multiprocessor has a piece."""
    rest: Numbers
    """The share of multiprocessors that have one in the round after those."""
    stored: Numbers
    """Bytes of a tile's results as they are stored, some of them twice."""
    chunks: Numbers
    """Of results that a warpgroup stores one after the other."""
    splits: Numbers
    in_slices: Numbers
    """Each part of a split k adds a slice of the tile."""
    part: Numbers
    """Bytes of a block's part of a split k, or of k that a cluster shares."""
    at_once: Numbers
    """Parts that are added at once."""
    slabs: Numbers
    launches: Numbers
    read: Numbers
    """Bytes of memory, for all."""
    written: Numbers
    copied: Numbers
    """By the pre-pass."""

    @property
    def loaded(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        return self.lines, self.halves, self.quarters, self.eighths

    def one_by_one(self, which: Any) -> list[Work]:
        """The work of these indices, one by one, where numbers are arrays."""
        return [Work(*row) for row in zip(*(column[which].tolist() for column in self))]


def together(works: Sequence[Work]) -> Work:
    """All of them at once: those of one thing or of many, one after the other."""
    return Work(*(np.concatenate([np.atleast_1d(x) for x in column]) for column in zip(*works)))


def work(choice: Choice, cut: Slabs, card: Card) -> Work:
    """Of one choice, in plain numbers."""
    many = Choices(choice.way, Shapes.of([choice.shape]), np.array([choice.splits]))
    return works(many, np.array([cut.blocks]), np.array([cut.count]), card).one_by_one([0])[0]


def works(choices: Choices, blocks: Numbers, slabs: Numbers, card: Card) -> Work:
    """Of many choices, whose k is cut into ``slabs`` of ``blocks`` each."""
    way, shape, form, splits = choices.way, choices.shape, choices.way.form, choices.splits
    count, columns = len(splits), shape.columns
    at_once = clusters(shape, card)
    full, rest = np.divmod(choices.pieces, at_once)
    variant = Variant(shape, form)  # whose bytes are arrays
    loaded = np.zeros((4, count))
    for reading, nbytes in ((way.a, variant.a_bytes / shape.cluster_n), (way.b, variant.b_bytes / shape.cluster_m)):
        loaded[_misalignment(reading, way, blocks), np.arange(count)] += nbytes
    width = np.array([config.chunk(x, form.output_bytes, form.addend is not None) for x in columns.tolist()], int)
    chunks = -(-columns // width)
    accumulators = shape.m // shape.sharers * columns // 128
    results = float(way.m * way.n * way.batch)  # bytes of all may be more than an array of int has room for
    again = (slabs - 1) * results * 4  # sums that slabs add to
    parts = choices.part_bytes * slabs
    stored = results * form.output_bytes
    found = Work(
        blocks=-(-blocks // (splits * shape.cluster_k)),
        step=shape.n / 2,
        fed=(shape.n if form.a_registers else 64 + shape.n) * 32,
        steps=form.steps,
        rows=shape.m / 64,
        ragged=(form.b_mn and not form.b_split) & (shape.n % 64 > 0),
        registers=form.a_registers,
        split=shape.n / 64 * form.b_split,
        planes=form.planes > 1,
        alone=shape.consumers == 1,
        turns=shape.pingpong,
        stages=shape.stages,
        doublings=np.frexp(shape.sharing)[1] - 1,
        shared_k=shape.cluster_k,
        lines=loaded[0], halves=loaded[1], quarters=loaded[2], eighths=loaded[3],
        full=full,
        rest=rest / at_once,
        stored=shape.m * chunks * width * form.output_bytes,
        chunks=shape.m / 64 * chunks / shape.sharers,
        splits=splits,
        in_slices=choices.in_slices(at_once),
        part=shape.m * columns * 4 // shape.sharers,
        at_once=np.select([accumulators <= most for most, _ in _COPIES], [added for _, added in _COPIES], 1),
        slabs=slabs,
        launches=slabs * (2 if way.copied else 1),
        read=way.nbytes - stored + parts + again,
        written=stored + parts + again,
        copied=float(sum(x.elements * (x.size + form.planes * form.input_bytes) for x in way.copied)),
    )  # fmt: skip
    return Work(*(np.broadcast_to(column, count) for column in found))


def clusters(shapes: Any, card: Card) -> Numbers:
    """How many of those of each of :class:`gemmhub_hopper.shapes.Shapes` run at once."""
    sizes = range(1, 1 + shapes.cluster.max(initial=0))
    return np.array([0, *(card.clusters_at_once(size) for size in sizes)])[shapes.cluster]


def _misalignment(reading: Reading, way: Lowered, blocks: Numbers) -> Numbers:
    """Of the rows that TMA reads: 0 to 3, for the lines, halves, quarters and eighths of :class:`Work`."""
    ld = np.asarray(reading.stored(way.form, blocks * way.form.block_k).ld)
    return (ld % 128 > 0).astype(int) + (ld % 64 > 0) + (ld % 32 > 0)


def seconds_of(w: Work, card: Card, c: Constants) -> Numbers:
    """A call with its slabs."""
    multiply = w.steps * w.rows * np.maximum(np.maximum(w.step * c.tensor, w.fed / c.shared_bytes), c.step)
    multiply = multiply * np.where(w.alone, c.alone, 1) * (1 + c.ragged * w.ragged)
    loading = w.rows * c.loading + w.split * c.splitting
    unhidden = np.where(w.alone, c.unhidden_alone, c.unhidden)
    loaded_too = np.maximum(multiply, loading) + unhidden * np.minimum(multiply, loading)
    added = c.promotion * np.logical_and(w.planes, w.alone)  # nobody multiplies meanwhile
    multiply = np.where(w.registers, loaded_too, multiply + added) + c.stage
    latency = (c.latency + c.remote * w.doublings) / w.stages
    loaded = w.lines + c.units_of_64 * w.halves + c.units_of_32 * w.quarters + c.units_of_16 * w.eighths
    share_k = np.greater(w.shared_k, 1)
    loaded = loaded * np.where(np.logical_and(share_k, np.equal(w.doublings, 0)), c.apart, 1)

    def main_loop(busy: Numbers) -> Numbers:
        resources = multiply, loaded / np.minimum(c.most_bytes, c.l2_bytes / busy), latency, c.least
        stage = sum(x**_SHARPNESS for x in resources) ** (1 / _SHARPNESS)
        return w.blocks * stage * (1 + c.together * w.doublings)

    epilogue = w.stored / c.store_bytes + c.epilogue * (1 + c.turn * w.turns) + w.chunks * c.chunk
    epilogue = epilogue + share_k * (c.gather + w.shared_k * w.part / c.gathered_bytes)
    adding = np.where(w.in_slices, c.slice * (1 + w.splits / 16), w.splits * c.part / w.at_once)
    adding = adding + np.where(w.in_slices, 2, w.splits) * w.part / c.part_bytes
    epilogue = epilogue + np.greater(w.splits, 1) * (c.split + adding)
    some = np.greater(w.rest, 0)  # have a piece in one more round
    each, last = main_loop(1.0), main_loop(np.where(some, w.rest, 1.0))
    # In turns one piece's epilogue is under the main loop of the next, but for the last one's.
    in_turns = w.full * np.maximum(each, epilogue) + some * np.maximum(last, epilogue)
    in_turns = in_turns + np.minimum(np.where(some, last, each), epilogue)
    one_by_one = w.full * (each + epilogue) + some * (last + epilogue)
    computing = w.slabs * (c.start + np.where(w.turns, in_turns, one_by_one)) / card.clock
    moving = w.slabs * c.start / card.clock + (w.read / c.reading + w.written / c.writing) / card.bandwidth
    # They do not overlap perfectly.
    whole = np.maximum(computing, moving) + c.overlap * np.minimum(computing, moving)
    return whole + c.launch * w.slabs + copying(w, card, c)


def epilogue(way: Lowered) -> float:
    """Seconds that a bias, an activation and an addend add to a plain product. Corrections know nothing of them."""
    form = way.form
    if not (form.bias or form.activation or form.addend):
        return 0.0
    each = ACTIVATIONS[form.activation] + (ADDEND * (1 + form.transposed) if form.addend else 0.0)
    return EPILOGUE + each * way.m * way.n * way.batch


def copying(w: Work, card: Card, c: Constants) -> Numbers:
    """Seconds of the pre-passes."""
    return w.copied / (c.copying * card.bandwidth) + c.launch * (w.launches - w.slabs)


def seconds(choice: Choice, cut: Slabs, card: Card) -> float:
    """A call with its slabs."""
    return float(seconds_of(work(choice, cut, card), card, CONSTANTS[choice.way.form.input]))
