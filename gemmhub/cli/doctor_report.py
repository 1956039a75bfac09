"""``gemmhub doctor NAME``: reports of plugins about their subject.

A distribution names a function in the entry-point group ``gemmhub.doctor``::

    [project.entry-points."gemmhub.doctor"]
    musa = "gemmhub_musa.doctor:findings"

It yields :class:`Finding` objects in reading order; several distributions may use one name. An exception becomes a
finding after those that it has yielded. It takes no arguments; one that has a parameter ``trial`` gets True there for
``--report``, and then also runs what takes minutes.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gemmhub._base.guard import guarded
from gemmhub._base.tables import Part, Table
from gemmhub._base.wording import instance
from gemmhub.cli.errors import Failure

GROUP = "gemmhub.doctor"


@dataclass(frozen=True)
class Finding:
    """One line of a report."""

    section: str
    """Section, such as "libraries" or "self-tests". Findings of one section are adjacent."""
    item: str
    text: str
    """The finding; one line."""
    ok: bool | None = None
    """False for a failure, True for a passed test, None for a fact."""
    detail: str = ""
    """Details: a compiler's output, a traceback."""


def gather(name: str, trial: bool = False, each: Callable[[list[Finding]], object] = len) -> list[Finding]:
    """The findings of every plugin that reports about ``name``. Failure, listing existing reports, where none does.

    ``each`` is called with all findings so far, after each of them.
    """
    points = importlib.metadata.entry_points(group=GROUP)
    chosen = sorted((point for point in points if point.name == name), key=lambda point: point.value)
    if not chosen:
        names = ", ".join(sorted({point.name for point in points})) or "none, as no installed plugin has a report"
        raise Failure(f"there is no report about {name!r}; allowed: {names}")
    findings: list[Finding] = []
    for point in chosen:
        for finding in _of(point.value, point.load, trial):
            findings.append(finding)
            each(findings)
    return findings


def _of(origin: str, load: Callable[[], Callable[..., Iterable[Finding]]], trial: bool) -> Iterator[Finding]:
    found: list[Finding] = []
    source: Iterator[Finding] | None = None

    def step() -> None:
        nonlocal source
        if source is None:
            report = load()
            takes_trial = trial and "trial" in inspect.signature(report).parameters
            source = iter(report(trial=True) if takes_trial else report())
        found[:] = []
        for finding in source:
            if not isinstance(finding, Finding):
                raise TypeError(f"{origin} yielded {instance(type(finding))}, not a Finding")
            found.append(finding)
            return

    while True:
        failure = guarded(step, "it", "")  # a plugin's code, on a machine that may be broken
        if failure is not None:
            yield Finding("report", origin, failure.reason, False, failure.traceback or "")
            return
        if not found:
            return
        yield found[0]


def fine(findings: Iterable[Finding]) -> bool:
    """Whether there is no failure."""
    return all(finding.ok is not False for finding in findings)


def parts(findings: Iterable[dict[str, Any]]) -> Iterator[Part]:
    """Findings, as :func:`gemmhub.cli.screen.plain` returns them, for :func:`gemmhub.cli.screen.show`."""
    for section, members in groupby(findings, key=lambda finding: finding["section"]):
        rows = list(members)
        cells = [(row["item"], "" if row["ok"] is None else outcome(row["ok"]), row["text"]) for row in rows]
        yield Table((section, "", " "), cells, marked=("",))
        yield from (f"{row['item']}:\n{row['detail'].rstrip()}" for row in rows if row["detail"])


def outcome(ok: bool) -> str:
    """The verdict."""
    return "passed" if ok else "failed"
