"""The estimates of the candidates for a product, and their ranking.

wave_model.py and batch_model.py have the cost models of the kernels. :mod:`gemmhub_cuda.cost.corrections` corrects the
estimates on cards where it was fitted.
"""

from __future__ import annotations

from gemmhub_cuda.candidate import Choice, proposed
from gemmhub_cuda.cost import batch_model, wave_model
from gemmhub_cuda.cost.fitted import Fitted
from gemmhub_cuda.lower import Lowering
from gemmhub_cuda.variants import batch
from gemmhub_cuda.variants.card import Card


def seconds(choice: Choice, card: Card, fitted: Fitted | None = None) -> float:
    """Return the seconds of a call, host time included.

    ``fitted``: other constants than those of fitted.py; the kernel for batches has its own, in batch_model.py.
    """
    if isinstance(choice.shape, batch.Shape):
        return batch_model.seconds(choice, choice.shape, card)
    return wave_model.seconds(choice, card, fitted)


def measured(choice: Choice, card: Card) -> bool:
    """Return whether the model's constants alone were compared with times of the kernel on such a card."""
    shape = choice.shape
    return isinstance(shape, batch.Shape) and not shape.promoted and card.name in batch_model.MEASURED


def choices(
    lowering: Lowering, card: Card, workspace: int, order: str | None = None
) -> list[tuple[float, Choice]]:  # fmt: skip
    """Return the estimates and choices, each shape with its best split-K, the fastest first; ``order``: of proposed."""
    estimates: dict[str, tuple[float, Choice]] = {}
    for timed in all_choices(lowering, card, workspace, order):
        estimates.setdefault(timed[1].shape.name, timed)
    return list(estimates.values())


def all_choices(
    lowering: Lowering, card: Card, workspace: int, order: str | None = None
) -> list[tuple[float, Choice]]:  # fmt: skip
    """Return the estimates and choices of every shape and split-K that may be fastest, the fastest first."""
    estimates = [(seconds(choice, card), choice) for choice in proposed(lowering, card, workspace, order)]
    return sorted(estimates, key=lambda pair: pair[0])
