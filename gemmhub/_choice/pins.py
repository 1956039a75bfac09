"""Pins: the one backend and the order of sums that rows of every size keep to, where their bits are promised."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from gemmhub._base.evicting import keep
from gemmhub._choice import registry
from gemmhub._choice.answers import Eligible, answers, expected
from gemmhub._choice.ranking import ranked
from gemmhub.backend import untaken
from gemmhub.config import Settings
from gemmhub.problem import GemmProblem
from gemmhub.verdict import Verdict


@dataclass(frozen=True)
class Pin:
    """The one backend, and the order of its sums, that a pinned problem of some dtypes keeps to at every size."""

    backend: str
    order: str


Features = tuple[tuple[tuple[str, str], ...], "str | None"]
_pins: OrderedDict[tuple[GemmProblem, Features, Settings], Pin] = OrderedDict()


def pin(problem: GemmProblem, settings: Settings) -> Pin | None:
    """Return what the bits of a pinned problem are pinned to; None where no backend keeps its promise, or one
    cannot be asked now.

    One product, :attr:`GemmProblem.canonical`, decides for all sizes, layouts, batches and groups, among the backends
    that take the operands and the activation: each group has the bits of its own product. Tuning records have no part
    in it, as tuning must not change bits.
    """
    canonical, single = problem.canonical, replace(problem, groups=None)
    key = canonical, _features(problem), settings
    known = _pins.get(key)
    if known is not None:
        return known
    forced = settings.backend[0] if settings.forced else None
    found = answers(canonical, failures=False)
    if not registry.registry().complete or any(isinstance(x, Verdict) and x.transient for x in found):
        return None  # a backend that is short of memory now would be the choice later
    eligible = [
        replace(x, seconds=expected(x), source="", candidate=x.offer.first.name, record="")
        for x in found
        if isinstance(x, Eligible) and forced in (None, x.entry.name) and untaken(x.backend, single) is None
    ]
    order, _ = ranked(eligible, settings, forced)
    if not order or order[0].order is None:
        return None
    chosen = Pin(order[0].entry.name, order[0].order)
    keep(_pins, key, chosen, 256)
    return chosen


def _features(problem: GemmProblem) -> Features:
    """The operands beside a and b by their forms, and the activation: what a backend may not have been written for."""
    return tuple((name, x.form) for name, x in problem.operands.items()), problem.activation


def forget() -> None:
    """Drop the pins: other backends may be there."""
    _pins.clear()
