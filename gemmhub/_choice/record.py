"""One tuning record, a line of a record file, and the valid records of a file.

A record states the seconds of one problem, run by one backend's candidate on one device with its plugin, library and
driver versions and, on the CPU, its thread limits. A candidate that failed is recorded too, with the reason, so that it
is not chosen by its estimate. Lines that are no records are skipped with a reason.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from gemmhub._base.guard import guarded
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table
from gemmhub._base.units import duration
from gemmhub.capability import Ready
from gemmhub.problem import GemmProblem

FORMAT = 1
"""Version of the record format; entries of another are skipped."""

_MAX_FAILURE = 500
"""Maximum number of characters of a failure that a record keeps: a compiler's output may be longer."""


@dataclass(frozen=True, repr=False)
class Record(Report):
    """One measurement."""

    problem: str
    """:attr:`GemmProblem.key`."""
    device: str
    """Device, such as "cpu" or "cuda:0"; ``versions`` has its model."""
    backend: str
    candidate: str
    seconds: float
    """Measured time of a call; infinite where the candidate failed."""
    versions: Mapping[str, str]
    """Versions of the plugin, and those that its probe reported: libraries, drivers, the device's name."""
    recorded: str = ""
    """Time of the measurement, ISO 8601, UTC."""
    format: int = FORMAT
    threads: str = ""
    """Thread limits of the measured call (:attr:`gemmhub.Ready.threads`); empty on devices."""
    load: float | None = None
    """Load average for each processor of the process before the measurement, where it is known."""
    failure: str = ""
    """Reason why the candidate has no time: a wrong result, or an error; empty where it ran."""

    @property
    def identity(self) -> tuple[object, ...]:
        """The key of a record: a newer record of the same identity replaces an older one."""
        versions = tuple(sorted(self.versions.items()))
        return (self.problem, self.device, self.backend, self.candidate, versions, self.threads)

    @property
    def caveat(self) -> str:
        """A clause for decision tables on a time that is no good one; empty where it is."""
        if self.failure:
            why = self.failure.partition("\n")[0]
            return f"{self.candidate} failed when it was measured: {why}; tune again once that is mended"
        if self.load is not None and self.load > 1:
            return f"measured under a load of {self.load:.3g} for each processor: tune again"
        return ""

    def _parts(self) -> Iterator[Part]:
        rows = [("problem", self.problem), ("backend", f"{self.backend} {self.candidate} on {self.device}")]
        rows += [("failed", self.failure)] if self.failure else [("time", duration(self.seconds))]
        rows += [("recorded", self.recorded)] if self.recorded else []
        rows += [("versions", ", ".join(f"{name} {version}" for name, version in self.versions.items()))]
        rows += [("threads", self.threads)] if self.threads else []
        yield Facts([*rows, *([("load", f"{self.load:.3g}")] if self.load is not None else [])])

    def line(self) -> str:
        """The record as a line of JSON, which has no infinite numbers."""
        return json.dumps({**vars(self), "seconds": None if self.failure else self.seconds}, sort_keys=True)


def _shown_order(record: Record) -> tuple[str, float]:
    return record.problem, record.seconds


def _tomorrow() -> str:
    return (datetime.now(timezone.utc) + timedelta(days=1)).isoformat(timespec="milliseconds")


@dataclass(repr=False)
class RecordFile(Report):
    """The valid records of a file, and why the other lines were skipped."""

    records: dict[tuple[object, ...], Record] = field(default_factory=dict)
    failures: dict[tuple[object, ...], Record] = field(default_factory=dict)
    """Records of candidates that failed."""
    skipped: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """The skipped lines: a newer gemmhub may read them, so writing keeps them."""
    _horizon: str = field(default_factory=_tomorrow, repr=False, compare=False)

    def add(self, record: Record) -> None:
        """Keep ``record`` unless there is a newer one of the same identity."""
        identity = record.identity
        known = self.records.get(identity) or self.failures.get(identity)
        if known is None or self._age(known) <= self._age(record):
            kept, replaced = (self.failures, self.records) if record.failure else (self.records, self.failures)
            replaced.pop(identity, None)
            kept[identity] = record

    @property
    def all(self) -> list[Record]:
        """The records, and those of failures."""
        return [*self.records.values(), *self.failures.values()]

    @property
    def ordered(self) -> tuple[list[Record], list[Record]]:
        """The records and those of failures, by problem and time."""
        measured, failures = (list(x.values()) for x in (self.records, self.failures))
        return sorted(measured, key=_shown_order), sorted(failures, key=_shown_order)

    def _parts(self) -> Iterator[Part]:
        measured, failures = self.ordered
        head = [("records", str(len(measured))), *(("skipped", reason) for reason in self.skipped)]
        yield Facts([*head, *(("failed", f"{r.backend} {r.candidate}, {r.problem}: {r.failure}") for r in failures)])
        header = ("time", "backend", "candidate", "device", "recorded", "problem")
        rows = [(duration(r.seconds), r.backend, r.candidate, r.device, r.recorded[:10], r.problem) for r in measured]
        if rows:
            yield Table(header, rows, right=("time",))

    def _age(self, record: Record) -> tuple[bool, str]:
        """A key that orders records by age. A record dated later than tomorrow counts as older than all valid dates."""
        return record.recorded <= self._horizon, record.recorded


def record(
    problem: GemmProblem, backend: str, candidate: str, seconds: float, ready: Ready, load: float | None = None,
    failure: str = "",
) -> Record:  # fmt: skip
    """A new record of a measurement by this thread. One with a ``failure`` counts as infinitely slow."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    load = None if load is None else round(load, 2)
    return Record(
        problem.key, str(problem.device), backend, candidate, math.inf if failure else seconds, dict(ready.versions),
        now, threads=threads_of(problem, ready), load=load, failure=failure[:_MAX_FAILURE],
    )  # fmt: skip


def threads_of(problem: GemmProblem, ready: Ready) -> str:
    """The thread limits under which a record of ``problem`` is written, and used."""
    if problem.device.type != "cpu":
        return ""
    threads = guarded(ready.threads, "threads()", "")
    return threads if isinstance(threads, str) else "unknown"


def parse_line(line: str | bytes) -> Record | str:
    """Parse a line to a record, or to the reason why it is none."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(data, dict):
        return "not a JSON object"
    if data.get("format") != FORMAT:
        return f"format {data.get('format')!r}, this gemmhub reads {FORMAT}"
    texts = ("problem", "device", "backend", "candidate", "recorded")
    for name in texts:
        if not isinstance(data.get(name), str):
            return f"{name} is missing or not a string"
    versions = data.get("versions")
    if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
        return "versions is missing or not a table of strings"
    optional = {"threads": data.get("threads", ""), "failure": data.get("failure", "")}
    for name, text in optional.items():
        if not isinstance(text, str):
            return f"{name} is not a string"
    load = data.get("load")
    if load is not None and (isinstance(load, bool) or not isinstance(load, (int, float)) or not 0 <= load < 2**53):
        return f"load is {load!r:.60}, not a number"
    seconds = data.get("seconds")
    if optional["failure"] and seconds is None:
        seconds = math.inf
    elif optional["failure"]:
        return "it has both seconds and a failure"
    elif isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return "seconds is missing or not a number"
    elif not 0 < seconds <= sys.float_info.max:  # NaN and infinity too
        return f"seconds is {seconds!r:.60}"
    return Record(
        **{name: data[name] for name in texts}, **optional, versions=versions, seconds=float(seconds), load=load
    )
