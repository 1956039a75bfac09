"""``gemmhub doctor NAME``: reports that plugins make about what they are for.

A distribution names a function in the entry-point group ``gemmhub.doctor``::

    [project.entry-points."gemmhub.doctor"]
    musa = "gemmhub_musa.doctor:findings"

It takes nothing and yields :class:`Finding` objects, in the order in which they are to be read; several distributions
may use one name. What it raises becomes a finding, and what it had found before is kept.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gemmhub._base.guard import guarded
from gemmhub.cli import screen
from gemmhub.cli.errors import Failure

GROUP = "gemmhub.doctor"


@dataclass(frozen=True)
class Finding:
    """One line of a report."""

    section: str
    """What it belongs to: "libraries", "self-tests". Findings of one section follow each other."""
    item: str
    text: str
    """What was found; one line."""
    ok: bool | None = None
    """False for what is wrong, True for what was tested and is right, None for what is merely so."""
    detail: str = ""
    """What a person may want to see besides: a compiler's output, a traceback."""


def gather(name: str) -> list[Finding]:
    """The findings of every plugin that reports about ``name``. Failure, naming those there are, where none does."""
    points = importlib.metadata.entry_points(group=GROUP)
    chosen = sorted((point for point in points if point.name == name), key=lambda point: point.value)
    if not chosen:
        known = ", ".join(sorted({point.name for point in points})) or "none, as no installed plugin brings a report"
        raise Failure(f"nothing reports about {name!r}; reports there are: {known}")
    return [finding for point in chosen for finding in _of(point.value, point.load)]


def _of(origin: str, load: Callable[[], Callable[[], Iterable[Finding]]]) -> list[Finding]:
    found: list[Finding] = []

    def gather() -> None:
        for finding in load()():
            if not isinstance(finding, Finding):
                raise TypeError(f"{origin} yielded a {type(finding).__name__}, not a Finding")
            found.append(finding)

    failure = guarded(gather, "it", "")  # a plugin's code, on a machine that may be broken
    if failure is not None:
        found.append(Finding("report", origin, failure.reason, False, failure.traceback or ""))
    return found


def fine(findings: Iterable[Finding]) -> bool:
    """Whether nothing is wrong."""
    return all(finding.ok is not False for finding in findings)


def parts(findings: Iterable[dict[str, Any]]) -> Iterator[Any]:
    """Findings, as :func:`gemmhub.cli.screen.plain` makes them, for :func:`gemmhub.cli.screen.show`."""
    for section, members in groupby(findings, key=lambda finding: finding["section"]):
        rows = list(members)
        yield screen.table((section, "", ""), ((row["item"], _verdict(row["ok"]), row["text"]) for row in rows))
        yield from (f"{row['item']}:\n{row['detail'].rstrip()}" for row in rows if row["detail"])


def _verdict(ok: bool | None) -> Any:
    return "" if ok is None else screen.styled("ok" if ok else "failed")
