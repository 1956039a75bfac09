"""The ranking of candidates by modelled seconds, corrected where the card was measured."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from gemmhub_nvidia.scratch import COUNTERS

from gemmhub._base.evicting import keep
from gemmhub.kit.corrections import UNMEASURED
from gemmhub_hopper.candidates import columns, gemv
from gemmhub_hopper.candidates.candidate import MAX_SLICES, MAX_WORK_TILES, Choice
from gemmhub_hopper.candidates.columns import Choices, Columns, Numbers, Table
from gemmhub_hopper.candidates.gemv import GemvChoice
from gemmhub_hopper.cost import corrections, gemv_model, model
from gemmhub_hopper.cost.fitted import CONSTANTS
from gemmhub_hopper.cost.model import Card, Work
from gemmhub_hopper.lowering import k_passes, lower
from gemmhub_hopper.lowering.k_passes import KPasses
from gemmhub_hopper.lowering.lower import Lowering
from gemmhub_hopper.variants.config import BF16X3, BY_ROWS, Shape
from gemmhub_hopper.variants.gemv_kernel import VECTORS
from gemmhub_hopper.variants.shapes import shapes

Timed = tuple[float, Choice | GemvChoice]
"""An estimate in seconds, and the candidate."""


@dataclass(frozen=True)
class Ranked:
    """A choice with its estimate in seconds."""

    seconds: float
    choice: Choice
    works: Work = field(compare=False, repr=False)
    """The work of all choices, as arrays."""
    at: int = field(compare=False)
    """The index of this one there."""

    @property
    def work(self) -> Work:
        """The work that the model derived."""
        return self.works.one_by_one([self.at])[0]


def ranked(
    lowerings: tuple[Lowering, ...], card: Card, workspace: int, limit: int | None = None, parts: int | None = None
) -> list[Ranked]:
    """Return the choices by the model alone, the fastest first, at most ``limit`` unless that is None.

    They cover every lowering and every shape, with the numbers of splits that may be faster than none. ``parts``: the
    parts of K of a pinned problem, whose choices have this number, and one K pass; None where any is allowed.
    """
    divided = [(x, k_passes.fewest(x, 0, workspace)) for x in lowerings]
    unsplit = [(x, passes) for x, passes in divided if not isinstance(passes, str)]
    if not unsplit:
        return []
    some, passes = tuple(x for x, _ in unsplit), [passes for _, passes in unsplit]
    rows = columns.table(some)
    numbers, splits = _splits(some, rows, passes, card) if parts is None else _pinned(rows, parts)
    every = Choices.some(some, rows, numbers, splits)
    blocks, count = _passes_of(every, passes, workspace)
    work = model.works(every, blocks, count, card)
    seconds = model.seconds_of(work, card, CONSTANTS[lowerings[0].form.scheme])
    order = np.argsort(seconds, kind="stable")
    runs = _runnable(every, rows, numbers, blocks, count, workspace) & ((count == 1) | (parts is None))
    order = order[runs[order]][:limit]
    listed = [(lowering, shape) for lowering in some for shape in shapes(lowering.form)]
    fastest = zip(seconds[order].tolist(), numbers[order].tolist(), splits[order].tolist(), order.tolist())
    return [
        Ranked(t, Choice(listed[number][0], listed[number][1], split), work, i) for t, number, split, i in fastest
    ]  # fmt: skip


def _runnable(
    choices: Choices, rows: Table, numbers: Numbers, blocks: Numbers, count: Numbers, workspace: int
) -> Numbers:
    """Return which choices :func:`candidate.runnable` does not refuse.

    ``numbers`` are their rows in the table; ``blocks`` and ``count`` are the blocks of K in a pass and the number of
    passes, 0 where there are none.
    """
    lowering, splits, shared = choices.lowering, choices.splits, choices.shape.cluster_k
    split, partials = splits > 1, choices.partial_bytes
    last = lowering.of(lambda x: x.k_blocks) - (count - 1) * blocks
    runs = (count > 0) & (shared <= last) & (splits <= k_passes.MAX_SPLITS)
    runs &= ~split | ((splits * shared <= blocks) & (choices.counters <= k_passes.counters(lowering.form)))
    runs &= choices.work_tiles < MAX_WORK_TILES
    # Beside copies, partial sums were fitted into the workspace when these were divided into passes.
    runs &= (partials == 0) | lowering.of(lambda x: bool(x.copied)) | (COUNTERS + partials <= workspace)
    for number in set(count[runs].tolist()):
        compiles = (rows.runnable(which, min(number, 3))[numbers] for which in (False, True))
        runs &= (count != number) | np.where(split, *reversed(list(compiles)))
    return runs


def _splits(
    lowerings: tuple[Lowering, ...], rows: Table, passes: Sequence[KPasses], card: Card
) -> tuple[Numbers, Numbers]:
    """Return rows, each with a number of splits that may be fastest: 1, what fills one or two waves, or a wave's part.

    Where a chain of float32 sums would be long, the fewest splits with shorter ones are returned besides.

    Shapes whose CTAs share K are returned where all clusters run at once: they are for products of few tiles.
    """
    shared: Numbers = rows.shape.cluster_k
    unsplit = np.ones(len(shared), int)
    every = Choices(Columns(lowerings, rows.which), rows.shape, unsplit, rows.a_bytes, rows.b_bytes)
    work_tiles, k_blocks = every.work_tiles, np.array([x.k_blocks for x in passes])[rows.which]
    at_once = model.clusters(rows.shape, card)
    allowed = (shared == 1) | (work_tiles <= at_once)
    divided = allowed & ((shared == 1) | every.lowering.of(lambda x: x.form.split_planes_b))
    one, two = (
        np.minimum(np.minimum(waves * at_once // work_tiles, k_blocks // (2 * shared)), k_passes.MAX_SPLITS)
        for waves in (1, 2)
    )
    first = lowerings[0]
    short = -(-first.k // _LONGEST.get(first.form.input, first.k))
    fewest = np.minimum(min(short, k_passes.MAX_SPLITS), np.maximum(1, k_blocks // 2))
    kept = [
        allowed, divided & (one > 1), divided & (two > np.maximum(one, 1)),
        divided & (fewest > 1) & (fewest != one) & (fewest != two),
    ]  # fmt: skip
    counts = [unsplit, one, two, fewest]
    # Beside many splits, a number whose reduction is short.
    kept.append(divided & (one > MAX_SLICES) & (fewest != MAX_SLICES))
    counts.append(np.full_like(unsplit, MAX_SLICES))
    if first.form.scheme == BY_ROWS:
        full = _in_full_waves(work_tiles, at_once, passes[0].k_blocks)
        counts.append(full)
        kept.append(divided & (full > 1) & (full != one) & (full != two))
    numbers = np.concatenate([np.flatnonzero(which) for which in kept])
    splits = np.concatenate([count[which] for count, which in zip(counts, kept)])
    order = np.argsort(rows.which[numbers], kind="stable")  # of equal estimates the first lowering's is taken
    return numbers[order], splits[order]


def _pinned(rows: Table, parts: int) -> tuple[Numbers, Numbers]:
    """Return all rows that cut K into ``parts``, by split-K or by CTAs that share K, and the numbers of splits."""
    shared: Numbers = rows.shape.cluster_k
    numbers = np.flatnonzero((shared == 1) | (shared == parts))
    return numbers, parts // shared[numbers]


_MAX_WAVES = 8
"""Splits that :func:`_in_full_waves` tries."""


def _in_full_waves(work_tiles: Numbers, at_once: Numbers, k_blocks: int) -> Numbers:
    """Return the fewest splits that fill the waves best, where few tiles would fill little of the last one."""
    splits = np.arange(1, 1 + max(1, min(_MAX_WAVES, k_blocks // 8)))[:, None]
    waves = -(-work_tiles * splits // at_once) / splits
    return np.asarray(splits[:, 0][np.argmin(waves, axis=0)])


def _passes_of(choices: Choices, unsplit: Sequence[KPasses], workspace: int) -> tuple[Numbers, Numbers]:
    """Return the blocks of K in a pass, and the number of passes, 0 where the workspace has no room for any.

    ``unsplit`` are the passes of each lowering without split-K.
    """
    columns: Columns = choices.lowering
    partials: Numbers = choices.partial_bytes
    blocks, count, nbytes = np.array([(x.k_blocks, x.count, x.nbytes) for x in unsplit]).T[:, columns.which]
    # Partial sums take workspace from the copies.
    crowded = columns.of(lambda x: bool(x.copied)) & ((count > 1) | (nbytes + partials > workspace))
    for i in np.flatnonzero((partials > 0) & crowded).tolist():
        passes = k_passes.fewest(columns.lowerings[columns.which[i]], int(partials[i]), workspace)
        blocks[i], count[i] = (1, 0) if isinstance(passes, str) else (passes.k_blocks, passes.count)
    return blocks, count


def corrected(
    lowerings: tuple[Lowering, ...], card: Card, workspace: int, parts: int | None = None
) -> list[Ranked]:  # fmt: skip
    """Return the first of :func:`ranked`, sorted by corrected seconds where there is a correction for the card."""
    ranking = ranked(lowerings, card, workspace, corrections.CORRECTED, parts)
    correction = corrections.find(corrections.network_of(ranking[0].choice), card) if ranking else None
    if correction is None:
        return ranking
    chosen, works = [x.choice for x in ranking], ranking[0].works
    work = works.some([x.at for x in ranking])
    seconds, apart = np.array([x.seconds for x in ranking]), np.zeros(1)
    if chosen[0].lowering.form.input == BF16X3:  # the network is that of 16-bit products, without the pre-pass
        apart = model.copying(work, card, CONSTANTS[BF16X3])
    rows = corrections.rows(chosen, work, seconds - apart, card)
    factors = correction.factors(rows, corrections.HANDLED)
    times = (seconds - apart) * factors + apart
    order = np.argsort(times, kind="stable")
    return [Ranked(t, chosen[i], works, ranking[i].at) for t, i in zip(times[order].tolist(), order.tolist())]


def choices(lowerings: tuple[Lowering, ...], card: Card, workspace: int) -> list[Timed]:
    """Return the estimates and the :func:`distinct` choices of one product by one scheme, the fastest first."""
    return distinct(_by_matrices(lowerings, card, workspace))


def _by_matrices(
    lowerings: tuple[Lowering, ...], card: Card, workspace: int, parts: int | None = None
) -> list[tuple[float, Choice]]:
    """Return the estimates and choices of one product by one scheme, the fastest first."""
    if _small_by_rows(lowerings[0]):
        return []
    bounds = {id(lowering): (_min_seconds(lowering, card), model.epilogue(lowering)) for lowering in lowerings}
    timed = []
    for x in corrected(lowerings, card, workspace, parts):
        min_seconds, added = bounds[id(x.choice.lowering)]
        timed.append((max(x.seconds, min_seconds) + added, x.choice))
    short = [x for x in timed if parts is not None or not _long(x[1])]
    timed = short or ([] if lowerings[0].form.input == BF16X3 else timed)  # another scheme takes such products
    return sorted(timed, key=lambda pair: pair[0])


def timed(lowerings: tuple[Lowering, ...], card: Card, workspace: int, parts: int | None = None) -> list[Timed]:
    """Return the estimates and choices of one product that run in ``workspace`` bytes, the fastest first.

    ``parts``: those of :func:`ranked`. Kernels for vectors add in other orders.
    """
    every: list[Sequence[Timed]] = [_by_matrices(some, card, workspace, parts) for some in by_scheme(lowerings)]
    if parts is None:
        every.append(vectors(lowerings, card))
    estimates: list[Timed] = []
    for some in every:  # all choices of a list have one network
        factor = UNMEASURED if some and not measured(some[0][1], card) else 1.0
        estimates += [(seconds * factor, choice) for seconds, choice in some]
    return sorted(estimates, key=lambda x: x[0])


def by_scheme(lowerings: tuple[Lowering, ...]) -> list[tuple[Lowering, ...]]:
    """Return the lowerings in groups of one scheme, whose candidates are ranked together."""
    schemes = dict.fromkeys(lowering.form.scheme for lowering in lowerings)
    return [tuple(x for x in lowerings if x.form.scheme == scheme) for scheme in schemes]


def measured(choice: Choice | GemvChoice, card: Card) -> bool:
    """Return whether a correction for such candidates was fitted on this card. That of vectors has none of 8 bits."""
    if isinstance(choice, GemvChoice) and choice.lowering.b.size == 1:
        return False
    return corrections.find(corrections.network_of(choice), card) is not None


def distinct(timed: Iterable[Timed]) -> list[Timed]:
    """Return the fastest of the candidates that share a shape and split their operands in the same memory.

    They differ in their orientation and split-K.
    """
    best: dict[object, Timed] = {}
    for seconds, choice in timed:
        key: object = choice.kernel if isinstance(choice, GemvChoice) else (choice.lowering.form.letters, choice.shape)
        best.setdefault(key, (seconds, choice))
    return list(best.values())


_READ = 0.84
"""Share of the memory's bandwidth at which tiles read a large matrix for few float32 rows: 2.7 to 2.9 TB/s of an H100's
3.35, where corrected estimates were up to 17 % lower.
"""


def _min_seconds(lowering: Lowering, card: Card) -> float:
    """Return the minimum seconds of a product of few float32 rows, or columns; 0 of other products."""
    if lowering.form.input != "split" or min(lowering.m, lowering.n) > VECTORS[-1]:
        return 0.0
    return (lowering.a.elements + lowering.b.elements) * lowering.b.size / (_READ * card.bandwidth)


_SMALL_OF_BATCH = 1e9
"""Operations below which the matrices of a batch are not split by rows into float16 planes: estimates were fitted to
single products, and for 616 of 208 x 104 x 104 they were 2.4 times too low on an H100.
"""


def _small_by_rows(lowering: Lowering) -> bool:
    """Return whether the lowering is of a batch of small matrices by a scheme that was fitted to single products."""
    few = 2.0 * lowering.m * lowering.n * lowering.k < _SMALL_OF_BATCH
    return few and lowering.batch > 1 and lowering.form.scheme == BY_ROWS


_LONGEST = {"split": 2**14, BF16X3: 2**13}
"""Elements along K that one chain of float32 sums may have where other candidates have shorter chains, by the input;
with two planes always, as candidates for "ieee" are accurate.

With 32768, in a product of 1 x 4096 x 65536 by three planes, the error of positive data was 7.6 times that of cuBLAS,
which sums many short chains. With two planes tensor cores add throughout, and truncate: a wgmma, of 16 elements, loses
up to 2**-23 of a sum of positive terms, and half of it on average.
"""


def _long(choice: Choice) -> bool:
    """Return whether one chain of float32 sums is long: its error is within the bound, but larger than it need be."""
    longest = _LONGEST.get(choice.lowering.form.input)
    return longest is not None and choice.lowering.k > longest * choice.splits * choice.shape.cluster_k


def by_bfloat16_planes(choice: Choice, passes: KPasses, card: Card) -> Choice:
    """Return the fastest choice, by the model, for operands whose float16 split by ``choice`` is rejected."""
    lowering = lower.by_bfloat16_planes(choice.lowering)
    # Sizes are rounded up to powers of 16, so that one shape, which is compiled once, serves many of them.
    m, n = (16 ** -(-(x - 1).bit_length() // 4) for x in (lowering.m, lowering.n))
    read = tuple((x.count, x.size, x.direct and x.direct.ld) for x in (lowering.a, lowering.b))
    key = lowering.form, m, n, lowering.k, lowering.batch, read, passes.k_blocks, passes.count, card
    shape = _for_rejected.get(key)
    if shape is None:
        a, b = replace(lowering.a, rows=m), replace(lowering.b, rows=n)
        shape = _fastest(replace(lowering, m=m, n=n, a=a, b=b), passes, card)
        keep(_for_rejected, key, shape, _KEPT)
    return Choice(lowering, shape, 1)


_for_rejected: OrderedDict[tuple[Any, ...], Shape] = OrderedDict()
"""Shapes by what :func:`by_bfloat16_planes` depends on."""
_KEPT = 256


def _fastest(lowering: Lowering, passes: KPasses, card: Card) -> Shape:
    """Return the fastest shape, by the model, without split-K in these K passes."""
    rows = columns.table([lowering])
    numbers = np.flatnonzero(rows.runnable(False, min(passes.count, 3)))
    many = np.ones(len(numbers), int)
    every = Choices.some([lowering], rows, numbers, many)
    work = model.works(every, many * passes.k_blocks, many * passes.count, card)
    fastest = int(np.argmin(model.seconds_of(work, card, CONSTANTS[lowering.form.scheme])))
    return shapes(lowering.form)[int(numbers[fastest])]


_LARGE = 2**26
"""Bytes from which staged kernels are proposed for a matrix contiguous along K: below, others were faster."""


def vectors(lowerings: tuple[Lowering, ...], card: Card) -> list[tuple[float, GemvChoice]]:
    """Return the estimates and kernels for vectors of one product, the fastest first; empty for too many vectors."""
    choices = [x for x in gemv.choices(lowerings) if x.kernel.n_major or not x.kernel.staged or x.moved_bytes >= _LARGE]
    seconds = [gemv_model.seconds(choice, card) for choice in choices]
    correction = corrections.find("vectors", card) if choices else None
    if correction is not None:
        rows = [corrections.vector_features(choice, t, card) for choice, t in zip(choices, seconds)]
        # The corrections were trained before there were staged kernels, and those of 8 bits: the model alone estimates
        # them. Its constants were fitted to at most eight vectors.
        modelled = [choice.kernel.staged or choice.lowering.b.size == 1 for choice in choices]
        alone = [UNMEASURED if choice.kernel.vectors > VECTORS[-1] else 1.0 for choice in choices]
        seconds = (np.array(seconds) * np.where(modelled, alone, correction.factors(rows))).tolist()
    return sorted(zip(seconds, choices), key=lambda x: x[0])
