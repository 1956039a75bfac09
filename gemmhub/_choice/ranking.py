"""The ranking of the backends that can run a problem."""

from __future__ import annotations

import math
from dataclasses import replace

from gemmhub._choice import registry, switches
from gemmhub._choice.answers import Eligible
from gemmhub.config import Settings

MARGIN = 3.0
"""Factor within which estimates are trusted: a race has the backends whose estimates are within it of the smallest one,
and a backend that was never measured comes before a measured one only where its estimate is smaller by more than it."""


def ranked(eligible: list[Eligible], settings: Settings, forced: str | None) -> tuple[list[Eligible], str]:
    """The eligible backends, best first, and the reason in words."""
    if forced is not None:
        reason = settings.origin.get("backend", "the call") if settings.forced else "b, which it packed"
        unable = (
            f"backend={forced!r} cannot run it" if settings.forced else f"{forced!r}, which packed b, cannot run it"
        )
        return eligible, f"asked for by {reason}" if eligible else unable
    if not eligible:
        return [], "no backend can run this problem"

    order = sorted(eligible, key=speed)
    for name in reversed(settings.backend):
        order.sort(key=lambda x, name=name: x.entry.name != name)  # type: ignore[misc]
    first = order[0]
    where = settings.origin.get("backend", "")
    if first.entry.name in settings.backend:
        return order, f"preferred by {where}"
    unable = "".join(f"; {_unable(name, where)}" for name in settings.backend)
    if len(order) == 1:
        return order, "the only one that can" + unable
    if first.source == "measured":
        return order, "fastest measured" + unable
    newcomer = any(x.source == "measured" for x in order)
    return order, "smallest estimate" + (", far below the fastest measured: tune again" if newcomer else "") + unable


def _unable(name: str, where: str) -> str:
    """Why a backend that the settings of ``where`` prefer is not among the eligible ones."""
    names = registry.names()
    if name not in names:
        return f"{where}: {switches.unknown((name,), 'backend', names)}"
    return f"{name}, preferred by {where}, {'cannot' if registry.registry().find(name) else 'is not installed'}"


def speed(x: Eligible) -> tuple[float, bool]:
    """A key that sorts backends: the seconds that rank them, and measured ones first."""
    estimated = x.source != "measured"
    if x.seconds is None:
        return math.inf, estimated
    return x.seconds * (MARGIN if estimated else 1.0), estimated


def newcomers(eligible: list[Eligible]) -> list[Eligible]:
    """Backends of ``eligible`` that were never measured and whose estimates are far below the fastest measured time;
    none where nothing was measured.
    """
    best = min((x.seconds for x in eligible if x.source == "measured" and x.seconds is not None), default=0.0)
    return [x for x in eligible if x.source != "measured" and speed(x)[0] < best]


def hinted(ranked: list[Eligible]) -> list[Eligible]:
    """``ranked``, where the remarks on backends that were never measured, but may be the fastest, say what to do."""
    best = min((x.seconds for x in ranked if x.source == "measured" and x.seconds is not None), default=0.0)
    return [
        replace(x, remark="; ".join(filter(None, (x.remark, "not measured: tune again"))))
        if x.source == "estimated" and x.seconds is not None and x.seconds < best
        else x
        for x in ranked
    ]
