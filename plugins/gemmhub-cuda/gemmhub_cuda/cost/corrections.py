"""The learned corrections of the cost model, where one was fitted on the card."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log, log2, prod
from pathlib import Path

from gemmhub.backend import WORKSPACE
from gemmhub.capability import Refusal
from gemmhub.kit import corrections
from gemmhub.kit.corrections import Correction, Described
from gemmhub.problem import GemmProblem
from gemmhub_cuda.candidate import Choice, named
from gemmhub_cuda.cost import model
from gemmhub_cuda.lower import Lowering, lowered
from gemmhub_cuda.variants.card import Card

KINDS = ("half", "float32")
"""Kinds of products, each with a correction of its own: float16 and bfloat16 on tensor cores, and float32."""
DATA = Path(__file__).parents[1] / "data"
"""Folder with one folder of networks for each card."""
_ALIGNED = 16
"""Bytes to which aligned rows are aligned."""


def describe(problem: GemmProblem, card: Card, names: Sequence[str]) -> Described | None:
    """Describe those of ``names`` that run; None for products without a kernel or without elements."""
    if problem.empty or problem.k == 0:
        return None
    lowering = lowered(problem, card.capability)
    if isinstance(lowering, Refusal) or lowering.form.input == "int8":
        return None
    named_choices = [named(lowering, name) for name in names]
    choices = [x for x in named_choices if x is not None and x.refusal(card, WORKSPACE) is None]
    modelled = [model.seconds(choice, card) for choice in choices]
    rows = [features(choice, card, seconds) for choice, seconds in zip(choices, modelled)]
    return Described(network_of(lowering), [choice.name for choice in choices], modelled, rows)


def network_of(lowering: Lowering) -> str:
    """Return the network of a product, one of :data:`KINDS`."""
    return "float32" if lowering.form.input == "float32" else "half"


def find(lowering: Lowering, card: Card) -> Correction | None:
    """Return the correction for such products on ``card``; None where none was fitted.

    The network of 16-bit products is fitted to misaligned rows; for aligned ones it would extrapolate.
    """
    network = network_of(lowering)
    if lowering.form.input == "int8":
        return None
    if network == "half" and lowering.form.alignment >= _ALIGNED:
        return None
    return corrections.find(DATA, network, card.name, card.sms, card.bandwidth)


def ranked(
    lowering: Lowering, card: Card, workspace: int, correction: Correction | None, order: str | None = None
) -> list[tuple[float, Choice]]:
    """Return the choices, each shape with its best split-K by the model, with corrected seconds, the fastest first.

    ``order``: that of a pinned problem, as of :func:`gemmhub_cuda.candidate.proposed`.
    """
    timed = model.choices(lowering, card, workspace, order)
    if correction is None or lowering.k == 0:
        return timed
    known = [pair for pair in timed if pair[1].shape.corrected]
    factors = correction.factors([features(choice, card, seconds) for seconds, choice in known])
    estimates = [(seconds * float(factor), choice) for (seconds, choice), factor in zip(known, factors)]
    return sorted(estimates + [pair for pair in timed if not pair[1].shape.corrected], key=lambda pair: pair[0])


def features(choice: Choice, card: Card, modelled: float) -> list[float]:
    """Return the features of ``choice``, counts and rates; ``modelled`` is the model's estimate of it."""
    lowering, shape, form = choice.lowering, choice.shape, choice.lowering.form
    launches = prod(dim.count for dim in lowering.outer)
    count = lowering.batch.count * launches
    work_tiles = choice.counters * choice.splits
    waves = work_tiles / (card.sms * choice.ctas_per_sm(card))
    operations, nbytes = 2 * lowering.m * lowering.n * lowering.k * count, choice.moved_bytes * launches
    return [
        log(lowering.m), log(lowering.n), log(lowering.k), log(count), float(form.a_m_major), float(form.b_n_major),
        log2(form.a_alignment), log2(form.b_alignment), float(form.output_bytes),
        float(form.bias is not None or form.activation is not None), float(form.addend),
        log2(shape.m), log2(shape.n), log2(shape.k), log2(shape.threads),
        float(shape.stages), log(choice.splits), log(waves),
        waves / ceil(waves), lowering.m * lowering.n / (choice.tiles[0] * choice.tiles[1] * shape.m * shape.n),
        log(modelled), log(modelled / operations * card.sms * card.clock), log(modelled * card.bandwidth / nbytes),
    ]  # fmt: skip
