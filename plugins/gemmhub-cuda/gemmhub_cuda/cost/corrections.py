"""The learned corrections of the cost model, where one was fitted on the card."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log, log2
from pathlib import Path

from gemmhub.backend import WORKSPACE
from gemmhub.capability import Refusal
from gemmhub.kit import corrections
from gemmhub.kit.corrections import UNMEASURED, Correction, Described
from gemmhub.problem import GemmProblem
from gemmhub_cuda.candidate import Choice, named
from gemmhub_cuda.cost import model
from gemmhub_cuda.lower import Lowering, lowered
from gemmhub_cuda.variants import batch
from gemmhub_cuda.variants.card import Card

KINDS = ("half", "aligned", "float32", "batches", "bytes")
"""Names of the networks, by kernels and products: 16-bit products on tensor cores with rows that are not aligned to 16
bytes, and with aligned ones, float32, and by the kernel for batches of small matrices 16-bit products and int8.
"""
DATA = Path(__file__).parents[1] / "data"
"""Folder with one folder of networks for each card."""
HANDLED = (8, 9, 10)
"""Features that may differ from the one value that a network was fitted to: the element size of the result, the
epilogue and c, whose bytes the model counts.
"""
_ALIGNED = 16
"""Bytes to which aligned rows are aligned."""


def describe(problem: GemmProblem, card: Card, names: Sequence[str]) -> list[Described]:
    """Describe those of ``names`` that run, one entry for each network; empty for products without a kernel or without
    elements.
    """
    if problem.empty or problem.k == 0:
        return []
    lowering = lowered(problem, card.capability)
    if isinstance(lowering, Refusal):
        return []
    by_network: dict[str, Described] = {}
    for choice in (named(lowering, name) for name in names):
        if choice is None or choice.refusal(card, WORKSPACE) is not None:
            continue
        network, seconds = network_of(choice), model.seconds(choice, card)
        if network not in KINDS:
            continue
        described = by_network.setdefault(network, Described(network, [], [], [], HANDLED))
        described.names.append(choice.name)
        described.modelled.append(seconds)
        described.rows.append(features(choice, card, seconds))
    return list(by_network.values())


def network_of(choice: Choice) -> str:
    """Return the network of a candidate: one of :data:`KINDS`, or "float8", which has none yet."""
    form = choice.lowering.form
    if form.input_bytes == 1:
        return "bytes" if form.input == "int8" else "float8"
    if isinstance(choice.shape, batch.Shape):
        return "batches"
    if form.input == "float32":
        return "float32"
    return "aligned" if form.alignment >= _ALIGNED else "half"


def find(choice: Choice, card: Card) -> Correction | None:
    """Return the correction for such candidates on ``card``; None where none was fitted."""
    return corrections.find(DATA, network_of(choice), card.name, card.sms, card.bandwidth)


def measured(choice: Choice, card: Card) -> bool:
    """Return whether estimates of such candidates were compared with times on ``card``."""
    return model.measured(choice, card) or find(choice, card) is not None


def ranked(lowering: Lowering, card: Card, workspace: int, order: str | None = None) -> list[tuple[float, Choice]]:
    """Return the choices, each shape with its best split-K by the model, with corrected seconds, the fastest first.

    Estimates that were never compared with times on such a card have a margin. ``order``: that of a pinned problem, as
    of :func:`gemmhub_cuda.candidate.proposed`.
    """
    by_network: dict[str, list[tuple[float, Choice]]] = {}
    for pair in model.choices(lowering, card, workspace, order):
        by_network.setdefault(network_of(pair[1]), []).append(pair)
    estimates: list[tuple[float, Choice]] = []
    for some in by_network.values():
        correction = find(some[0][1], card) if lowering.k else None
        if correction is not None:
            rows = [features(choice, card, seconds) for seconds, choice in some]
            factors = correction.factors(rows, HANDLED).tolist()
        else:
            factors = [1.0 if measured(choice, card) else UNMEASURED for _, choice in some]
        estimates += [(seconds * factor, choice) for (seconds, choice), factor in zip(some, factors)]
    return sorted(estimates, key=lambda pair: pair[0])


def features(choice: Choice, card: Card, modelled: float) -> list[float]:
    """Return the features of ``choice``, counts and rates; ``modelled`` is the model's estimate of it."""
    lowering, shape, form = choice.lowering, choice.shape, choice.lowering.form
    count = lowering.batch.count * choice.batches
    work_tiles = choice.counters * choice.splits
    waves = work_tiles / (card.sms * choice.ctas_per_sm(card))
    operations, nbytes = 2 * lowering.m * lowering.n * lowering.k * count, choice.moved_bytes * choice.batches
    return [
        log(lowering.m), log(lowering.n), log(lowering.k), log(count), float(form.a_m_major), float(form.b_n_major),
        log2(form.a_alignment), log2(form.b_alignment), float(form.output_bytes),
        float(form.bias is not None or form.activation is not None), float(form.addend),
        log2(shape.m), log2(shape.n), log2(shape.k), log2(shape.threads),
        float(shape.stages), log(choice.splits), log(waves),
        waves / ceil(waves), lowering.m * lowering.n / (choice.tiles[0] * choice.tiles[1] * shape.m * shape.n),
        log(modelled), log(modelled / operations * card.sms * card.clock), log(modelled * card.bandwidth / nbytes),
    ]  # fmt: skip
