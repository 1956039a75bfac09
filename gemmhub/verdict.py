"""The answer to "which backend runs this problem, and why": data, and how it is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gemmhub._base import printing
from gemmhub.capability import Copy
from gemmhub.problem import GemmProblem


@dataclass(frozen=True)
class Verdict:
    """What one backend says to a problem.

    ``status``: "chosen", "able", "refused" (cannot do this problem), "absent" (cannot run here), "failed" (its
    code raised), "not installed", "not asked" (a call names another one, which can).
    """

    backend: str
    distribution: str
    status: str
    reason: str = ""
    remedy: str = ""
    seconds: float | None = None
    """Time of a call: measured by tuning, or estimated; ``source`` says which."""
    source: str = ""
    candidate: str = ""
    """The alternative of the backend that would run."""
    copies: tuple[Copy, ...] = ()
    remark: str = ""
    """How the backend would run this, in its own words, and why a tuning record of it is not used."""
    traceback: str | None = field(default=None, repr=False)
    any_layout: bool = field(default=False, repr=False)
    """Whether the refusal holds for operands of any strides and alignment."""
    passing: str = field(default="", repr=False)
    """What a no was due to that passes ("memory", "stack", "loading"); the next call asks again."""


@dataclass(frozen=True)
class Decision:
    """Who runs a problem, who does not, and why. Printable as a table; :meth:`to_dict` for programs."""

    problem: GemmProblem
    chosen: str | None
    why: str
    verdicts: tuple[Verdict, ...]
    settings: Mapping[str, str]
    """Settings that are not defaults, with where each came from; a backend's own workspace limit is one."""
    copies: tuple[Copy, ...] = ()
    """Copies the call makes before any backend: an ``out`` that overlaps an operand."""
    race: str = ""
    """What the first call raced, or will race, or why nothing is raced; empty where the setting ``tune`` is "off"."""
    layout_free: bool = field(default=False, repr=False)
    """No backend that was asked looks at strides: the decision holds for any."""
    chosen_layout_free: bool = field(default=False, repr=False)
    """The chosen backend does not look at strides: its kernel, and so a plan, holds for any."""
    lasting: bool = field(default=True, repr=False)
    """Later calls may count on it: every plugin was asked, and none said no for a reason that passes."""

    def __getitem__(self, backend: str) -> Verdict:
        for verdict in self.verdicts:
            if verdict.backend == backend:
                return verdict
        raise KeyError(backend)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "problem": str(self.problem),
            "chosen": self.chosen,
            "why": self.why,
            "settings": dict(self.settings),
            "race": self.race,
            "copies": [asdict(copy) for copy in self.copies],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(backend, verdict, time, remarks) for each backend, ready to print."""
        return [(v.backend, v.status, _time(v), _remarks(v)) for v in self.verdicts]

    def __str__(self) -> str:
        table = [("backend", "verdict", "time", "remarks"), *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(3)]
        lines = [f"problem: {self.problem}", f"chosen:  {self.chosen or 'none'} ({self.why})"]
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)) + f"  {row[3]}" for row in table]
        lines += [f"setting: {key} from {where}" for key, where in self.settings.items()]
        lines += [f"copy:    {copy}" for copy in self.copies]
        lines += [f"race:    {self.race}"] if self.race else []
        return "\n".join(printing.line(line.rstrip()) for line in lines)

    def _repr_html_(self) -> str:
        """What notebooks show."""
        from gemmhub._base import markup

        head = [("problem", str(self.problem)), ("chosen", f"{self.chosen or 'none'} ({self.why})")]
        foot = [("setting", f"{key} from {where}") for key, where in self.settings.items()]
        foot += [("copy", str(copy)) for copy in self.copies]
        foot += [("race", self.race)] if self.race else []
        verdicts = markup.table(("backend", "verdict", "time", "remarks"), self.rows(), marked=("verdict",))
        return markup.facts(head) + verdicts + markup.facts(foot)


def _time(verdict: Verdict) -> str:
    if verdict.seconds is None:
        return "-"
    value = verdict.seconds
    scale, unit = next(
        ((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if value >= s),
        (1e-6, "us"),
    )
    return f"{value / scale:.3g} {unit} {verdict.source}"


def _remarks(verdict: Verdict) -> str:
    parts = [verdict.remark, verdict.reason, verdict.remedy]
    parts += [f"copies {copy}" for copy in verdict.copies]
    return "; ".join(part for part in parts if part)
