"""The decision which backend runs a problem, and why: data and their printed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gemmhub._base import printing
from gemmhub.capability import Copy
from gemmhub.problem import GemmProblem


@dataclass(frozen=True)
class Verdict:
    """One backend's answer to a problem.

    ``status``: "chosen", "eligible", "refused" (cannot do this problem), "absent" (cannot run here), "failed" (its
    code raised), "not installed", "not asked" (the call names another backend, which can).
    """

    backend: str
    distribution: str
    status: str
    reason: str = ""
    remedy: str = ""
    seconds: float | None = None
    """Time of a call in seconds: measured by tuning, or estimated, as ``source`` states."""
    source: str = ""
    candidate: str = ""
    """The backend's candidate that would run."""
    order: str | None = None
    """The order in which that candidate adds the products of an element (:attr:`gemmhub.backend.Candidate.order`)."""
    copies: tuple[Copy, ...] = ()
    remark: str = ""
    """The backend's own description of how it runs this, and why a tuning record of it is not used."""
    traceback: str | None = field(default=None, repr=False)
    any_layout: bool = field(default=False, repr=False)
    """Whether the refusal holds for operands of any strides and alignment."""
    any_size: bool = field(default=False, repr=False)
    """Whether the refusal holds for operands of any sizes."""
    transient: str = field(default="", repr=False)
    """Cause of a temporary refusal ("memory", "stack", "loading"), after which the next call asks again."""

    @property
    def duration(self) -> str:
        """The time of a call and its source, as text; "-" where it is unknown."""
        if self.seconds is None:
            return "-"
        scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if self.seconds >= s), (1e-6, "us"))
        return f"{self.seconds / scale:.3g} {unit} {self.source}"


@dataclass(frozen=True)
class Decision:
    """The backend that runs a problem, and every backend's verdict. Prints as a table; :meth:`to_dict` for programs."""

    problem: GemmProblem
    chosen: str | None
    why: str
    verdicts: tuple[Verdict, ...]
    settings: Mapping[str, str]
    """Settings that are not defaults, with the source of each; a backend's own workspace limit is one."""
    copies: tuple[Copy, ...] = ()
    """Copies that the call makes before any backend runs: of an ``out`` that overlaps an operand."""
    packing: str = ""
    """Time of the product of a packed b, beside that of b itself; empty where b is not packed."""
    ranked_at: str = ""
    """Sizes that the candidates were ranked at, where these are the end of a bucket and not the problem's."""
    race: str = ""
    """Candidates of the race at the first call, or why there is none; empty where the setting ``tune`` is "off"."""
    layout_free: bool = field(default=False, repr=False)
    """Whether no answer depends on strides: then the decision holds for any."""
    bucketed: bool = field(default=False, repr=False)
    """Whether it holds for all sizes of the bucket."""
    size_free: bool = field(default=False, repr=False)
    """Whether no answer depends on sizes: the chosen backend is the only one that can run any."""
    chosen_layout_free: bool = field(default=False, repr=False)
    """Whether the chosen backend ignores strides: then its kernel, and so a plan, serves any."""
    cacheable: bool = field(default=True, repr=False)
    """Whether later calls may reuse the decision: every plugin has answered, and no refusal is transient."""

    def __getitem__(self, backend: str) -> Verdict:
        for verdict in self.verdicts:
            if verdict.backend == backend:
                return verdict
        raise KeyError(backend)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "problem": str(self.problem),
            "chosen": self.chosen,
            "why": self.why,
            "settings": dict(self.settings),
            "packing": self.packing,
            "ranked_at": self.ranked_at,
            "race": self.race,
            "copies": [asdict(copy) for copy in self.copies],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
        }

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return (backend, verdict, time, remarks) for each backend, ready to print."""
        return [(v.backend, v.status, v.duration, _remarks(v)) for v in self.verdicts]

    def __str__(self) -> str:
        table = [("backend", "verdict", "time", "remarks"), *self.rows()]
        widths = [max(len(row[i]) for row in table) for i in range(3)]
        lines = [f"problem: {self.problem}", f"chosen:  {self.chosen or 'none'} ({self.why})"]
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)) + f"  {row[3]}" for row in table]
        lines += [f"setting: {key} from {where}" for key, where in self.settings.items()]
        lines += [f"copy:    {copy}" for copy in self.copies]
        lines += [f"packed:  {self.packing}"] if self.packing else []
        lines += [f"ranked:  at {self.ranked_at}, the end of the bucket"] if self.ranked_at else []
        lines += [f"race:    {self.race}"] if self.race else []
        return "\n".join(printing.line(line.rstrip()) for line in lines)

    def _repr_html_(self) -> str:
        """The HTML that notebooks display."""
        from gemmhub._base import markup

        head = [("problem", str(self.problem)), ("chosen", f"{self.chosen or 'none'} ({self.why})")]
        foot = [("setting", f"{key} from {where}") for key, where in self.settings.items()]
        foot += [("copy", str(copy)) for copy in self.copies]
        foot += [("packed", self.packing)] if self.packing else []
        foot += [("ranked", f"at {self.ranked_at}, the end of the bucket")] if self.ranked_at else []
        foot += [("race", self.race)] if self.race else []
        verdicts = markup.table(("backend", "verdict", "time", "remarks"), self.rows(), marked=("verdict",))
        return markup.facts(head) + verdicts + markup.facts(foot)


def _remarks(verdict: Verdict) -> str:
    parts = [verdict.remark, verdict.reason, verdict.remedy]
    parts += [f"copies {copy}" for copy in verdict.copies]
    return "; ".join(part for part in parts if part)
