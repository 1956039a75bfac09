"""Estimates of the kernels: the analytic model times a learned correction, where one was fitted on this card."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log, log2, prod
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.kit import corrections
from gemmhub.kit.corrections import Correction, Described
from gemmhub.problem import GemmProblem
from gemmhub_cuda import mma, model
from gemmhub_cuda.lower import Lowered, lowered
from gemmhub_cuda.model import Card, Choice

KINDS = ("half", "float32")
"""Kinds of products, each with a correction of its own: float16 and bfloat16 on tensor cores, and float32."""
DATA = Path(__file__).parent / "data"
_ALIGNED = 16
"""Bytes: rows at multiples of it are aligned."""
_WORKSPACE = 64 * 2**20
"""Bytes of workspace that described candidates may need: what the backend proposes candidates for."""


def describe(problem: GemmProblem, card: Card, names: Sequence[str]) -> Described | None:
    """Those of ``names`` that run; None for products that there is no kernel for, or without elements."""
    if problem.empty or problem.k == 0:
        return None
    way = lowered(problem, card.capability)
    if isinstance(way, Refusal):
        return None
    choices = []
    for name in names:
        try:
            choice = model.named(way, name)
        except ValueError:
            continue
        if model.refusal(choice, card, _WORKSPACE) is None:
            choices.append(choice)
    modelled = [model.seconds(choice, card) for choice in choices]
    rows = [features(choice, card, seconds) for choice, seconds in zip(choices, modelled)]
    return Described(kind_of(way), [choice.name for choice in choices], modelled, rows)


def kind_of(way: Lowered) -> str:
    """One of :data:`KINDS`."""
    return "float32" if way.form.input == "float32" else "half"


def find(way: Lowered, card: Card) -> Correction | None:
    """The correction for such products on ``card``; None where none was fitted.

    Of 16-bit products those with misaligned rows were timed: for others the network would extrapolate.
    """
    kind = kind_of(way)
    if kind == "half" and way.form.aligned >= _ALIGNED:
        return None
    return corrections.find(DATA, kind, card.name, card.sms, card.bandwidth)


def ranked(way: Lowered, card: Card, workspace: int, correction: Correction | None) -> list[tuple[float, Choice]]:
    """Every shape with its best split of k by the model, and the corrected seconds: the fastest first."""
    timed = model.choices(way, card, workspace)
    if correction is None or way.k == 0:
        return timed
    factors = correction.factors([features(choice, card, seconds) for seconds, choice in timed])
    corrected = [(seconds * float(factor), choice) for (seconds, choice), factor in zip(timed, factors)]
    return sorted(corrected, key=lambda pair: pair[0])


def features(choice: Choice, card: Card, modelled: float) -> list[float]:
    """Counts and rates of a candidate, in the kernel's own m and n; ``modelled`` is the model's estimate of it."""
    way, shape, form = choice.way, choice.shape, choice.way.form
    launches = prod(dim.count for dim in way.outer)
    count = way.batch.count * launches
    pieces = choice.counters * choice.splits
    waves = pieces / (card.sms * model.room(choice.variant, card))
    operations, nbytes = 2 * way.m * way.n * way.k * count, model.moved(choice) * launches
    return [
        log(way.m), log(way.n), log(way.k), log(count), float(form.a_m_major), float(form.b_n_major),
        log2(form.a_aligned), log2(form.b_aligned), float(form.output_bytes),
        float(form.bias is not None or form.activation is not None), float(form.addend),
        log2(shape.m), log2(shape.n), log2(shape.k), log2(shape.threads),
        float(shape.stages if isinstance(shape, mma.Shape) else 2), log(choice.splits), log(waves),
        waves / ceil(waves), way.m * way.n / (choice.tiles[0] * choice.tiles[1] * shape.m * shape.n),
        log(modelled), log(modelled / operations * card.sms * card.clock), log(modelled * card.bandwidth / nbytes),
    ]  # fmt: skip
