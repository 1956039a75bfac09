"""The decision which backend runs a problem, and why: data and their printed form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table, bars, folded
from gemmhub._base.wording import unlisted
from gemmhub.capability import Copy
from gemmhub.problem import GemmProblem


@dataclass(frozen=True, repr=False)
class Verdict(Report):
    """One backend's answer to a problem.

    ``status``: "chosen", "eligible", "refused" (cannot do this problem), "absent" (cannot run here), "failed" (its
    code raised), "not installed", "not asked" (the call names another backend, which can).
    """

    _cut = False
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
    record: str = ""
    """The file of the tuning record that the time is from; empty for an estimate, and where records are off."""
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

    @property
    def remarks(self) -> str:
        """Remark, reason, remedy and copies, as one text."""
        parts = [self.remark, self.reason, self.remedy, *(f"copies {copy}" for copy in self.copies)]
        return "; ".join(part for part in parts if part)

    def _parts(self) -> Iterator[Part]:
        rows = [("backend", self.backend), ("verdict", self.status), ("time", self.duration)]
        rows += [("candidate", self.candidate)] if self.candidate else []
        rows += [("order", self.order)] if self.order else []
        rows += [("record", f"in {self.record}")] if self.record else []
        yield Facts([*rows, ("remarks", self.remarks)], marked=("verdict",))


class Partition:
    """How a product is cut into local ones, on the workers of Dask or the devices of a mesh."""

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and texts, ready to print."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Decision(Report, Mapping[str, Verdict]):
    """The backend that runs a problem, and every backend's verdict: a mapping from the names of backends to them.

    Prints as a table; :meth:`to_dict` for programs. Of arrays on several workers or devices it is the decision for the
    local product here, and ``partition`` has the whole.
    """

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

    partition: Any = None
    """A :class:`Partition`: how the product is cut into local ones like ``problem``; None where it runs as a whole."""

    def __getitem__(self, backend: str) -> Verdict:
        for verdict in self.verdicts:
            if verdict.backend == backend:
                return verdict
        raise KeyError(unlisted(backend, self))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(verdict.backend for verdict in self.verdicts))

    def __len__(self) -> int:
        return len({verdict.backend for verdict in self.verdicts})

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
            "partition": None if self.partition is None else self.partition.to_dict(),
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Return (backend, verdict, time, remarks), ready to print; equal refusals of several backends are one row."""
        return folded((v.backend, v.status, v.duration, v.remarks) for v in self.verdicts)

    def _parts(self) -> Iterator[Part]:
        head = [] if self.partition is None else self.partition.facts()
        chosen = f"{self.chosen or 'none'} ({self.why})"
        yield Facts([*head, ("problem", str(self.problem)), ("chosen", chosen)])
        yield self._table()
        foot = [("setting", f"{key} from {where}") for key, where in self.settings.items()]
        record = "" if self.chosen is None else self[self.chosen].record
        foot += [("record", f"in {record}")] if record else []
        foot += [("copy", str(copy)) for copy in self.copies]
        foot += [("packed", self.packing)] if self.packing else []
        foot += [("ranked", f"at {self.ranked_at}, the end of the bucket")] if self.ranked_at else []
        foot += [("race", self.race)] if self.race else []
        yield Facts(foot)

    def _table(self) -> Table:
        """The verdicts, with bars beside the times where there are several to compare."""
        rows, seconds = self.rows(), {v.backend: v.seconds for v in self.verdicts}
        drawn = bars([seconds.get(row[0]) for row in rows])
        if not any(drawn):
            return Table(("backend", "verdict", "time", "remarks"), rows, marked=("verdict",))
        with_bars = [(*row[:3], bar, row[3]) for row, bar in zip(rows, drawn)]
        return Table(("backend", "verdict", "time", "", "remarks"), with_bars, marked=("verdict",))
