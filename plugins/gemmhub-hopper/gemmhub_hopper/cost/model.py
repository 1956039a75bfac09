"""The cost model: the seconds of a candidate, from waves of work tiles, each bounded by its slowest resource.

A work tile takes, for each stage along K, the largest of: the cycles of the tensor cores and of shared memory to feed
them, the cycles of L2 to load the stage, and the memory's latency divided by the stages of the ring. The latency of the
first load and the epilogue come on top; ping-pong hides them under another work tile of the same CTA. All of this
overlaps with the traffic of the memory. The constants (fitted.py) are fitted to measurements.

A product has hundreds of candidates, and the model estimates all of them at once: its numbers may be arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gemmhub_nvidia.clusters import estimated

from gemmhub_hopper.candidates.candidate import MAX_SLICES, Choice
from gemmhub_hopper.candidates.columns import Choices, Columns, Numbers
from gemmhub_hopper.cost.fitted import CONSTANTS, Constants
from gemmhub_hopper.lowering.k_passes import KPasses
from gemmhub_hopper.lowering.lower import Lowering
from gemmhub_hopper.lowering.operands import EXPANDED, OperandAccess
from gemmhub_hopper.variants import config
from gemmhub_hopper.variants.config import F16X3

LAUNCH = 1e-6
"""Seconds of an empty kernel in a row of such kernels, whose launches overlap."""
_SHARPNESS = 6
"""Exponent of the norm that adds up a stage's resources: the larger, the less the smaller ones count."""
_UP_TO, _AT_ONCE = np.array([8, 16, 32]), np.array([8, 4, 2, 1])
"""Accumulators of a thread up to which it loads so many splits at once; above the last, it loads one."""
EPILOGUE = 4e-7
"""Seconds of any epilogue but the plain one."""
ELEMENT, SMOOTH_ELEMENT = 1.5e-13, 7e-13
"""Seconds for an element of the result, bias included, with relu or no activation, and with a smooth activation. Fitted
by hand to 17 products of benchmarks/run/map.py, whose smooth activation is gelu_tanh.
"""
_EXPANDING = 1.8
"""Factor on the time of a copy that expands complex elements to four numbers: set by hand to the complex products of
map.json in benchmarks/results/h100/ and h200/, whose estimates were 0.6 to 0.9 of their times.
"""
ADDEND = 5e-13
"""Seconds for an element of c, besides the traffic of memory. By arithmetic, not measured: a warpgroup waits for L2
before it stores a block of 64 x 64 elements, for about 500 cycles.
"""
OTHER_ADDEND = 4e-12
"""The same of elements of another size than the result's, which threads load one by one; twice that where the result is
transposed. Fitted by hand to products in which all elements of c were loaded so.
"""


@dataclass(frozen=True)
class Card:
    """The facts of a device that the models use."""

    sms: int
    """SMs of the device."""
    clock: float
    """The highest clock of the SMs, in Hz."""
    bandwidth: float
    """Bandwidth of the memory, in bytes a second."""
    clusters: tuple[int, ...] = ()
    """Clusters that run at once, by their size; estimated for sizes beyond the end."""
    name: str = ""
    """The name that the driver reports. Corrections depend on it, the model does not."""

    def max_active_clusters(self, size: int) -> int:
        """Return how many clusters of ``size`` CTAs run at once, one CTA on each SM."""
        return self.clusters[size] if size < len(self.clusters) else estimated(self.sms, size)


class Work(NamedTuple):
    """The work of a candidate, before any constant. Bytes and cycles are those of one SM."""

    k_blocks: Numbers
    """Stages along K of a work tile."""
    wgmma_cycles: Numbers
    """Cycles of the tensor cores for one wgmma: 64 rows and 32 bytes along K."""
    wgmma_bytes: Numbers
    """Bytes that one wgmma reads from shared memory."""
    wgmmas: Numbers
    """wgmmas of a stage for each 64-row fragment."""
    fragments: Numbers
    """64-row fragments of a tile."""
    partial_boxes: Numbers
    """Whether b is contiguous along N and n is no multiple of the 64 columns of a TMA box."""
    registers_a: Numbers
    """Whether a goes through registers."""
    split_columns: Numbers
    """Columns of b that are split in shared memory, in units of 64."""
    promoted: Numbers
    """Whether the sums of a stage are promoted: of planes, and of 8-bit floats."""
    one_consumer: Numbers
    """Whether there is one consumer warpgroup."""
    pingpong: Numbers
    """Whether the shape is ping-pong."""
    stages: Numbers
    """Stages of the ring."""
    multicast_doublings: Numbers
    """log2 of the CTAs that multicast operands."""
    cluster_k: Numbers
    """CTAs that share K."""
    aligned_128: Numbers
    """Bytes of a stage whose rows are aligned to 128 bytes in L2."""
    aligned_64: Numbers
    """The same of rows that are aligned to 64 bytes only."""
    aligned_32: Numbers
    """The same of 32 bytes."""
    aligned_16: Numbers
    """The same of 16 bytes."""
    full_waves: Numbers
    """Waves in which every SM has a work tile."""
    last_wave: Numbers
    """The share of SMs that have a work tile in the last, partial wave."""
    stored_bytes: Numbers
    """Bytes of a tile's results as they are stored, overlaps of store blocks counted twice."""
    store_blocks: Numbers
    """Store blocks that a warpgroup stores one after the other."""
    splits: Numbers
    """Splits of split-K."""
    reduces_by_slices: Numbers
    """Whether each split reduces a slice of the tile."""
    partial_bytes: Numbers
    """Bytes of a CTA's partial sums, of split-K or of a cluster that shares K."""
    splits_at_once: Numbers
    """Splits whose partial sums a thread loads at once."""
    k_passes: Numbers
    """K passes."""
    launches: Numbers
    """Launches of kernels, pre-passes included."""
    read_bytes: Numbers
    """Bytes that all SMs read from memory."""
    written_bytes: Numbers
    """Bytes that all SMs write to memory."""
    copied_bytes: Numbers
    """Bytes that pre-passes read and write."""

    @property
    def loaded(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Bytes of a stage by the alignment of their rows."""
        return self.aligned_128, self.aligned_64, self.aligned_32, self.aligned_16

    def some(self, which: Any) -> Work:
        """Return the work of the candidates at these indices."""
        return Work(*np.array(self)[:, which])

    def one_by_one(self, which: Any) -> list[Work]:
        """Return the work of the candidates at these indices, in plain numbers."""
        return [Work(*row) for row in np.array(self)[:, which].T.tolist()]


def work(choice: Choice, passes: KPasses, card: Card) -> Work:
    """Return the work of one choice, in plain numbers."""
    blocks, count = np.array([passes.k_blocks]), np.array([passes.count])
    return works(Choices.of(choice), blocks, count, card).one_by_one([0])[0]


def works(choices: Choices, blocks: Numbers, k_passes: Numbers, card: Card) -> Work:
    """Return the work of many choices with ``k_passes`` of ``blocks`` blocks of K each."""
    lowering, shape, form, splits = choices.lowering, choices.shape, choices.lowering.form, choices.splits
    count, columns, stored_columns = len(splits), shape.out_n, shape.out_n // form.arity
    at_once = clusters(shape, card)
    full, remainder = np.divmod(choices.work_tiles, at_once)
    loaded, every = np.zeros((4, count)), np.arange(count)
    aligned_a, aligned_b = _misalignments(lowering, blocks)
    loaded[aligned_a, every] += choices.a_bytes / shape.cluster_n
    loaded[aligned_b, every] += choices.b_bytes / shape.cluster_m
    width = _widths(form.output_bytes, form.addend is not None)[stored_columns]
    store_blocks = -(-stored_columns // width)
    stores = 2 if form.symmetric or form.stores_before else 1  # of a tile: with its transpose, or the pre-activation
    accumulators = shape.m // shape.warpgroups_per_tile * columns // 128
    results = lowering.of(lambda x: float(x.results))  # their bytes may exceed 64-bit integers
    registers_a = lowering.of(lambda x: x.form.registers_a)
    sums = (k_passes - 1) * results * 4  # read and written again by each further pass
    partials = choices.partial_bytes * k_passes
    stored = results * form.stored_bytes
    values = Work(
        k_blocks=form.plane_products * -(-blocks // (splits * shape.cluster_k)),
        wgmma_cycles=shape.n / 2,
        wgmma_bytes=(64 * ~registers_a + shape.n) * 32,
        wgmmas=form.wgmmas_per_stage,
        fragments=shape.m / 64,
        partial_boxes=lowering.of(lambda x: x.form.mn_major_b and not x.form.split_planes_b) & (shape.n % 64 > 0),
        registers_a=registers_a,
        split_columns=shape.n / 64 * lowering.of(lambda x: x.form.split_planes_b),
        promoted=form.num_planes > 1 or form.float8,
        one_consumer=shape.consumers == 1,
        pingpong=shape.pingpong,
        stages=shape.stages,
        multicast_doublings=np.frexp(shape.num_multicast)[1] - 1,
        cluster_k=shape.cluster_k,
        aligned_128=loaded[0], aligned_64=loaded[1], aligned_32=loaded[2], aligned_16=loaded[3],
        full_waves=full,
        last_wave=remainder / at_once,
        stored_bytes=(2 if form.symmetric else 1) * shape.m * store_blocks * width * form.stored_bytes,
        store_blocks=stores * shape.m / 64 * store_blocks / shape.warpgroups_per_tile,
        splits=splits,
        reduces_by_slices=choices.reduces_by_slices(at_once),
        partial_bytes=shape.m * columns * 4 // shape.warpgroups_per_tile,
        splits_at_once=_AT_ONCE[np.searchsorted(_UP_TO, accumulators)],
        k_passes=k_passes,
        launches=k_passes * lowering.of(_launches),
        read_bytes=lowering.of(lambda x: float(x.nbytes)) - stored + partials + sums,
        written_bytes=stored + partials + sums,
        copied_bytes=lowering.of(_copied_bytes),
    )  # fmt: skip
    table = np.empty((len(values), count))
    for row, column in zip(table, values):
        row[:] = column
    return Work(*table)


@lru_cache(maxsize=16)
def _widths(nbytes: int, added: bool) -> Numbers:
    """Return the columns of a store block by those of a tile."""
    return np.array([config.store_block_n(columns, nbytes, added) for columns in range(257)])


def clusters(shapes: Any, card: Card) -> Numbers:
    """Return how many clusters of each of :class:`gemmhub_hopper.variants.shapes.Shapes` run at once."""
    sizes = range(1, 1 + shapes.cluster_size.max(initial=0))
    return np.array([0, *(card.max_active_clusters(size) for size in sizes)])[shapes.cluster_size]


def _launches(lowering: Lowering) -> int:
    """Return the launches of a K pass."""
    return 4 if lowering.form.input == F16X3 else 2 if lowering.copied else 1


def _copied_bytes(lowering: Lowering) -> float:
    """Return the bytes that pre-passes read and write."""
    element = lowering.form.stored_planes * lowering.form.input_bytes
    return float(sum(
        x.elements * (x.size + (x.size if x.unsplit else element)) * (_EXPANDING if x.source_format == EXPANDED else 1)
        for x in lowering.copied
    ))  # fmt: skip


def _misalignments(columns: Columns, blocks: Numbers) -> tuple[Numbers, Numbers]:
    """Return the indices in :attr:`Work.loaded` for the rows of a, and of b, that TMA reads: 0 for 128 bytes to 3 for
    16 bytes.
    """
    pairs, inverse = np.unique(columns.which * 2**32 + blocks, return_inverse=True)
    unique = [(columns.lowerings[pair >> 32], pair % 2**32) for pair in pairs.tolist()]
    a, b = np.array([[_misalignment(side, x, some) for side in (x.a, x.b)] for x, some in unique]).T
    return a[inverse], b[inverse]


def _misalignment(access: OperandAccess, lowering: Lowering, blocks: int) -> int:
    ld = access.stored(lowering.form, blocks * lowering.form.block_k).ld
    return (ld % 128 > 0) + (ld % 64 > 0) + (ld % 32 > 0)


def seconds_of(w: Work, card: Card, c: Constants) -> Numbers:
    """Return the seconds of a call, of all its K passes."""
    wgmma = np.maximum(np.maximum(w.wgmma_cycles * c.tensor, w.wgmma_bytes / c.shared_bytes), c.min_wgmma)
    multiply = w.wgmmas * w.fragments * wgmma
    multiply = multiply * np.where(w.one_consumer, c.one_consumer, 1) * (1 + c.partial_boxes * w.partial_boxes)
    loading = w.fragments * c.loading + w.split_columns * c.splitting
    unhidden = np.where(w.one_consumer, c.unhidden_one_consumer, c.unhidden)
    loading_and_multiply = np.maximum(multiply, loading) + unhidden * np.minimum(multiply, loading)
    added = c.promotion * np.logical_and(w.promoted, w.one_consumer)  # no other warpgroup multiplies meanwhile
    multiply = np.where(w.registers_a, loading_and_multiply, multiply + added) + c.stage
    latency = (c.latency + c.multicast_latency * w.multicast_doublings) / w.stages
    loaded = w.aligned_128 + c.aligned_64 * w.aligned_64 + c.aligned_32 * w.aligned_32 + c.aligned_16 * w.aligned_16
    share_k = np.greater(w.cluster_k, 1)
    loaded = loaded * np.where(np.logical_and(share_k, np.equal(w.multicast_doublings, 0)), c.cluster_k_loads, 1)

    def main_loop(busy: Numbers) -> Numbers:
        resources = multiply, loaded / np.minimum(c.l2_bytes_alone, c.l2_bytes / busy), latency, c.min_stage
        stage = sum(x**_SHARPNESS for x in resources) ** (1 / _SHARPNESS)
        return w.k_blocks * stage * (1 + c.multicast_wait * w.multicast_doublings)

    epilogue = w.stored_bytes / c.store_bytes + c.epilogue * (1 + c.pingpong_epilogue * w.pingpong)
    epilogue = epilogue + w.store_blocks * c.store_block
    epilogue = epilogue + share_k * (c.cluster_reduction + w.cluster_k * w.partial_bytes / c.cluster_reduction_bytes)
    adding = np.where(w.reduces_by_slices, c.slice * (1 + w.splits / 16), w.splits * c.split / w.splits_at_once)
    read = w.splits / np.minimum(w.splits, MAX_SLICES)  # partial tiles that the CTA of a slice reads
    adding = adding + np.where(w.reduces_by_slices, 1 + read, w.splits) * w.partial_bytes / c.partial_bytes
    epilogue = epilogue + np.greater(w.splits, 1) * (c.last_split + adding)
    partial = np.greater(w.last_wave, 0)
    each, last = main_loop(1.0), main_loop(np.where(partial, w.last_wave, 1.0))
    # Ping-pong hides the epilogue of a work tile under the main loop of the next, except that of the last one.
    pingpong = w.full_waves * np.maximum(each, epilogue) + partial * np.maximum(last, epilogue)
    pingpong = pingpong + np.minimum(np.where(partial, last, each), epilogue)
    one_by_one = w.full_waves * (each + epilogue) + partial * (last + epilogue)
    computing = w.k_passes * (c.start + np.where(w.pingpong, pingpong, one_by_one)) / card.clock
    moved = w.read_bytes / c.reading + w.written_bytes / c.writing
    moving = w.k_passes * c.start / card.clock + moved / card.bandwidth
    # Computing and memory traffic do not overlap perfectly.
    kernel = np.maximum(computing, moving) + c.overlap * np.minimum(computing, moving)
    return kernel + c.launch * w.k_passes + copying(w, card, c)


def epilogue(lowering: Lowering) -> float:
    """Return the seconds that bias, activation and addend add to a plain product; corrections do not include them."""
    form = lowering.form
    if not (form.bias or form.activation or form.addend):
        return 0.0
    each = SMOOTH_ELEMENT if form.smooth_activation else ELEMENT
    if form.addend:
        other = OTHER_ADDEND * (1 + form.transposed_d)
        each += ADDEND if form.addend_bytes == form.output_bytes else other
    return EPILOGUE + each * lowering.results


def copying(w: Work, card: Card, c: Constants) -> Numbers:
    """Return the seconds of the pre-passes."""
    return w.copied_bytes / (c.copying * card.bandwidth) + c.launch * (w.launches - w.k_passes)


def seconds(choice: Choice, passes: KPasses, card: Card) -> float:
    """Return the seconds of ``choice`` with these K passes."""
    return float(seconds_of(work(choice, passes, card), card, CONSTANTS[choice.lowering.form.scheme]))
