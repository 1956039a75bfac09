"""The ranking of candidates by modelled seconds, corrected where the card was measured."""

from __future__ import annotations

from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from gemmhub_hopper import corrections, gemv, gemv_model, k_passes, model
from gemmhub_hopper.candidate import Choice, Choices, runnable
from gemmhub_hopper.config import Shape
from gemmhub_hopper.fitted import CONSTANTS
from gemmhub_hopper.gemv import GemvChoice
from gemmhub_hopper.k_passes import Slabs
from gemmhub_hopper.lower import Lowered
from gemmhub_hopper.model import Card, Numbers, Work
from gemmhub_hopper.shapes import shapes


class Ranked(NamedTuple):
    """A choice with the seconds that it should take."""

    seconds: float
    choice: Choice
    work: Work


def ranked(ways: tuple[Lowered, ...], card: Card, workspace: int, most: int | None = None) -> list[Ranked]:
    """The fastest by the model alone, at most so many, and all where ``most`` is None; the fastest first. They are of
    every shape, with the kernel's a through registers and not, either way around, with the numbers of parts of k that
    may pay.
    """
    works: list[Work] = []
    places: list[tuple[Lowered, int, int]] = []
    for way in ways:
        cut = k_passes.cut(way, 0, workspace)
        if not isinstance(cut, str):
            numbers, splits = _parts(way, cut, card)
            every = Choices(way, shapes(way.form).arrays.some(numbers), splits)
            works.append(model.works(every, *_cuts(every, cut, workspace), card))
            places += zip(repeat(way), numbers.tolist(), splits.tolist())
    if not works:
        return []
    work = model.together(works)
    seconds = model.seconds_of(work, card, CONSTANTS[ways[0].form.input])
    kept: list[int] = []
    found: list[Choice] = []
    for i in np.argsort(seconds, kind="stable").tolist():
        if len(found) == most:
            break
        way, number, parts = places[i]
        choice = Choice(way, shapes(way.form)[number], parts)
        if not isinstance(runnable(choice, workspace), str):
            kept.append(i)
            found.append(choice)
    rows = zip(seconds[kept].tolist(), found, work.one_by_one(kept))
    return [Ranked(*row) for row in rows]


def _parts(way: Lowered, cut: Slabs, card: Card) -> tuple[Numbers, Numbers]:
    """Numbers of shapes, and of the parts of k that may pay with each: all of them together make at most two waves.
    Blocks that share k may where all of them run at once: they are for products of few tiles.
    """
    every: Any = shapes(way.form).arrays
    shared: Numbers = every.cluster_k
    whole = np.ones(len(shared), int)
    pieces = Choices(way, every, whole).pieces
    at_once = model.clusters(every, card)
    allowed = (shared == 1) | (pieces <= at_once)
    divided = allowed & ((shared == 1) | way.form.b_split)
    one, two = (
        np.minimum(np.minimum(waves * at_once // pieces, cut.blocks // (2 * shared)), k_passes.MOST_PARTS)
        for waves in (1, 2)
    )
    kept = (allowed, divided & (one > 1), divided & (two > np.maximum(one, 1)))
    splits = [parts[which] for parts, which in zip((whole, one, two), kept)]
    return np.concatenate([np.flatnonzero(which) for which in kept]), np.concatenate(splits)


def _cuts(choices: Choices, whole: Slabs, workspace: int) -> tuple[Numbers, Numbers]:
    """Blocks of k in a slab, and slabs; ``whole`` is how k is cut where it has no other parts."""
    way, parts = choices.way, np.asarray(choices.part_bytes)
    blocks, count = np.full(len(parts), whole.blocks), np.full(len(parts), whole.count)
    if way.copied:  # beside the copies there may be no room for parts of k, or for so many
        for i in np.flatnonzero((parts > 0) & ((whole.count > 1) | (whole.nbytes + parts > workspace))).tolist():
            cut = k_passes.cut(way, int(parts[i]), workspace)
            if not isinstance(cut, str):
                blocks[i], count[i] = cut.blocks, cut.count
    return blocks, count


def corrected(ways: tuple[Lowered, ...], card: Card, workspace: int) -> list[Ranked]:
    """The first of :func:`ranked` by their corrected seconds, where there is a correction for the card."""
    ranking = ranked(ways, card, workspace, corrections.CORRECTED)
    correction = corrections.find(corrections.kind_of(ranking[0].choice), card) if ranking else None
    if correction is None:
        return ranking
    factors = correction.factors([corrections.features(x.choice, x.work, x.seconds, card) for x in ranking])
    return sorted((x._replace(seconds=x.seconds * f) for x, f in zip(ranking, factors.tolist())), key=lambda x: x[0])


def choices(ways: tuple[Lowered, ...], card: Card, workspace: int) -> list[tuple[float, Choice]]:
    """The shapes of the fastest, once with the kernel's a through registers and once without, once with its b split in
    shared memory: each with its better orientation and split-K, with the seconds to expect. The fastest first.
    """
    best: dict[tuple[Shape, bool, bool], tuple[float, Choice]] = {}
    timed = [(x.seconds + model.epilogue(x.choice.way), x.choice) for x in corrected(ways, card, workspace)]
    timed = [x for x in timed if not _long(x[1])] or timed
    for seconds, choice in sorted(timed, key=lambda pair: pair[0]):
        form = choice.way.form
        best.setdefault((choice.shape, form.a_registers, form.b_split), (seconds, choice))
    return list(best.values())


_LONGEST = 2**14
"""Elements of k that one chain of float32 sums may have where other candidates have shorter ones: with the 32768 of a
product of 1 x 4096 x 65536 the error of positive data was 7.6 times that of cuBLAS, which sums many short chains.
"""


def _long(choice: Choice) -> bool:
    """Whether float32's accuracy is worse than it need be, though within its bound: sums grow along a long chain."""
    return choice.way.form.input == "split" and choice.way.k > _LONGEST * choice.splits * choice.shape.cluster_k


def vectors(ways: tuple[Lowered, ...], card: Card) -> list[tuple[float, GemvChoice]]:
    """The kernels for vectors that run a product, with the seconds to expect; the fastest first. None for more vectors
    than those take.
    """
    found = gemv.choices(ways)
    seconds = [gemv_model.seconds(choice, card) for choice in found]
    correction = corrections.find("vectors", card) if found else None
    if correction is not None:
        rows = [corrections.vector_features(choice, t, card) for choice, t in zip(found, seconds)]
        seconds = (np.array(seconds) * correction.factors(rows)).tolist()
    return sorted(zip(seconds, found), key=lambda x: x[0])
