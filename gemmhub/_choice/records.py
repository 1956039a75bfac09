"""Tuning records: measured times of candidates, kept on disk as JSON lines.

A record states the seconds of one problem, run by one backend's candidate on one device with its plugin, library and
driver versions and, on the CPU, its thread limits. It is used only where all of these are the same; other lines are
skipped with a reason. A candidate that failed is recorded too, with the reason, so that it is not chosen by its
estimate. Files are plain text, one record a line, so they can be read, mailed and merged.

Writers take a file lock, merge with the existing records (the newest of equal records wins) and replace the
file atomically, so concurrent processes lose nothing and readers never see half a file.

A call reads a bounded part of the file once, and parses only the lines of the problems that it meets.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from gemmhub import config
from gemmhub._base import files
from gemmhub._base.guard import guarded
from gemmhub._base.report import Report
from gemmhub._base.tables import Facts, Part, Table
from gemmhub._base.units import duration
from gemmhub.capability import Ready
from gemmhub.errors import RecordError
from gemmhub.kit import locks
from gemmhub.problem import GemmProblem

_log = logging.getLogger("gemmhub")

FORMAT = 1
"""Version of the record format; entries of another are skipped."""

_PATIENCE = 30.0
"""Seconds to wait for other writers, each of which needs milliseconds."""

_MAX_BYTES = 32 * 2**20
"""Maximum number of bytes of a record file that calls read: about 80 000 records."""

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
        now, threads=_threads(problem, ready), load=load, failure=failure[:_MAX_FAILURE],
    )  # fmt: skip


def _threads(problem: GemmProblem, ready: Ready) -> str:
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


def read(path: Path) -> RecordFile:
    """Read every valid record of ``path``; a missing file has none. RecordError where unreadable."""
    content = RecordFile()
    for number, line in enumerate(_content(path).decode("utf-8", "surrogateescape").split("\n"), 1):
        if not line.strip():
            continue
        parsed = parse_line(line)
        if isinstance(parsed, Record):
            content.add(parsed)
        else:
            content.skipped.append(f"{path}:{number}: {parsed}")
            content.unread.append(line)
    return content


def _content(path: Path, limit: int = -1) -> bytes:
    """The content of the file, or its first ``limit`` bytes; empty where missing. RecordError where unreadable."""
    try:
        return files.read(path, limit)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error}; name another file, or 'off' for none") from None


def write(path: Path, records: Iterable[Record]) -> RecordFile:
    """Merge ``records`` into ``path``, atomically and safe against other writers. Returns the new content.

    Raises RecordError where it cannot be written, is not a regular file, has no line that is a record, or another
    process does not release its lock.
    """
    from filelock import FileLock, Timeout

    path = Path(os.path.realpath(path))  # both names of a file must lock the same
    lock = Path(f"{path}.lock")
    try:
        if path.exists() and not path.is_file():  # only a regular file can be replaced
            raise RecordError(f"{path}: cannot be written: it is not a regular file; name another, or 'off' for none")
        if lock.is_symlink() or (lock.exists() and not lock.is_file()):  # opening it would empty what it points to
            raise RecordError(f"{path}: cannot be written: {lock} is not a regular file; remove it, or name another")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_ours(path):
            raise RecordError(
                f"{path}: cannot be written: no line of it is a tuning record, so it may have another purpose; "
                "name another file, or remove this one"
            )
        with FileLock(lock, timeout=_PATIENCE):
            content = read(path)
            for new in records:
                content.add(new)
            ordered = sorted(content.all, key=lambda r: (r.problem, r.backend, r.candidate, r.recorded))
            lines = [entry.line() for entry in ordered] + content.unread
            if not lines and not path.exists():  # the lock file beside it proves that it can be written
                return content
            with files.replacing(path, draft=Path(f"{path}.tmp")) as stream:  # the holder of the lock owns that name
                stream.writelines(f"{line}\n".encode("utf-8", "surrogateescape") for line in lines)
    except Timeout:
        raise RecordError(
            f"{path}: cannot be written: another process has held {path}.lock for {_PATIENCE:g} s; end it, or try again"
        ) from None
    except (OSError, NotImplementedError) as error:  # the latter from file systems without locks
        raise RecordError(f"{path}: cannot be written: {error}") from None
    return content


def _is_ours(path: Path) -> bool:
    """Whether a line is a record of any format, or there is no line, or no file."""
    empty = True
    for line in _content(path).split(b"\n"):
        if line.strip():
            empty = False
            try:
                data = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(data, dict) and isinstance(data.get("format"), int):
                return True
    return empty


def merge(sources: Iterable[Path], target: Path) -> RecordFile:
    """Merge record files into ``target``; its ``skipped`` lists the lines of the sources that are no records."""
    gathered = RecordFile()
    for source in sources:
        if not source.is_file():
            raise RecordError(f"{source}: no such file")
        content = read(source)
        gathered.skipped += content.skipped
        for entry in content.all:
            gathered.add(entry)
    written = write(target, gathered.all)
    written.skipped = gathered.skipped
    forget()
    return written


def default_path() -> Path:
    """Return the record file that serves unless the setting ``records`` names another."""
    from platformdirs import user_data_dir

    return Path(user_data_dir("gemmhub", appauthor=False)) / "tuning.jsonl"


def path() -> Path | None:
    """Return the record file in force; None where records are switched off."""
    chosen = config.root().records
    return None if chosen == "off" else default_path() if chosen == "default" else Path(chosen)


class _Index:
    """The lines of a record file by problem. They are parsed at the first look-up of that problem."""

    _MARK = b'"problem": "'

    def __init__(self, content: bytes) -> None:
        self._lines: dict[bytes, list[bytes]] = {}
        self._parsed: dict[bytes, list[Record]] = {}
        """Parsed records by problem, at most as many as the file has lines."""
        self.sizes: set[tuple[int, ...]] = set()
        """m, n and k of all records."""
        for line in content.split(b"\n"):
            problem = line.partition(self._MARK)[2].partition(b'"')[0]
            if line and (not problem or b"\\" in problem):  # not a line that gemmhub wrote
                parsed = parse_line(line)
                if isinstance(parsed, str):
                    continue
                problem = self._key(parsed.problem)
            self._lines.setdefault(problem, []).append(line)
        for problem in self._lines:
            self._add_sizes(problem)

    def of(self, problem: str) -> list[Record]:
        """The records of one problem."""
        key = self._key(problem)
        known = self._parsed.get(key)
        if known is None:
            lines = self._lines.get(key)
            if lines is None:
                return []
            content = RecordFile()
            for line in lines:
                parsed = parse_line(line)
                if isinstance(parsed, Record) and parsed.problem == problem:
                    content.add(parsed)
            known = self._parsed[key] = content.all
        return known

    def add(self, records: Iterable[Record]) -> None:
        """Add records of this process, which replace those of the same identity."""
        for entry in records:
            kept = [x for x in self.of(entry.problem) if x.identity != entry.identity]
            key = self._key(entry.problem)
            self._parsed[key] = [*kept, entry]
            self._add_sizes(key)

    def _add_sizes(self, problem: bytes) -> None:
        with suppress(ValueError):  # no key of a problem
            self.sizes.add(tuple(map(int, problem.partition(b" ")[0].split(b"x"))))

    @staticmethod
    def _key(problem: str) -> bytes:
        return problem.encode("utf-8", "surrogatepass")


_loaded: _Index | None = None
_loaded_lock = locks.lock()


def _index() -> _Index:
    global _loaded
    index = _loaded
    if index is None:
        with _loaded_lock:
            index = _loaded = _Index(_in_force())
    return index


def _in_force() -> bytes:
    """The part of :func:`path` that calls use. A file that the user named must be readable, the default need not be."""
    where = path()
    if where is None:
        return b""
    try:
        content = _content(where, _MAX_BYTES + 1)
    except RecordError as error:
        if config.root().records != "default":
            raise
        _log.warning("no tuning records: %s", error)
        return b""
    if len(content) > _MAX_BYTES:
        _log.warning(
            "%s: only the first %d MiB of these tuning records are used; name another file, or remove the lines that "
            "are not needed", where, _MAX_BYTES >> 20,
        )  # fmt: skip
        content = content[: content.rfind(b"\n", 0, _MAX_BYTES) + 1]
    return content


def put(records: Iterable[Record]) -> None:
    """Use ``records`` in this process, and write them to the file in force where possible.

    Unlike :func:`write` it never raises for a file that cannot be written: it logs a warning.
    """
    records = list(records)
    where = path()
    if where is not None:
        try:
            write(where, records)
        except RecordError as error:
            _log.warning("measured, but not recorded: %s", error)
    with _loaded_lock:
        _index().add(records)


def sizes() -> Set[tuple[int, ...]]:
    """Return m, n and k of all records."""
    return _index().sizes


def measured(problem: GemmProblem) -> bool:
    """Whether there is a record of exactly this problem, by any backend and version."""
    index = _index()
    return (problem.m, problem.n, problem.k) in index.sizes and bool(index.of(problem.key))


def lookup(backend: str, problem: GemmProblem, ready: Ready, candidates: Sequence[str]) -> Record | None:
    """Return the fastest record of ``candidates`` for this problem, backend, device and exactly these versions and
    thread limits. One that failed is returned where there is no other.
    """
    if not measured(problem):
        return None
    matching = [
        entry for entry in _index().of(problem.key) if entry.backend == backend and entry.candidate in candidates
    ]
    if not matching:
        return None
    here = str(problem.device), _threads(problem, ready), ready.versions
    usable = [entry for entry in matching if (entry.device, entry.threads, entry.versions) == here]
    return min(usable, key=lambda entry: entry.seconds, default=None)


def unused(backend: str, problem: GemmProblem, ready: Ready) -> str:
    """Return a clause on why :func:`lookup` does not use an existing record; empty where there is none."""
    if not measured(problem):
        return ""
    matching = [entry for entry in _index().of(problem.key) if entry.backend == backend]
    if not matching:
        return ""
    entry = max(matching, key=lambda entry: entry.recorded)
    then, now = {**entry.versions, "threads": entry.threads}, {**ready.versions, "threads": _threads(problem, ready)}
    differing = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    parts = [f"{name} {then.get(name) or 'unknown'}" for name in differing]
    where = "" if entry.device == str(problem.device) else f" on {entry.device}"
    of = f" with {', '.join(parts)}" if parts else ""
    if not (where or of):
        return f"a record is not used: there is no candidate {entry.candidate}"
    return f"a record is not used: measured{where}{of}"


def forget() -> None:
    """Drop the records; the next look-up reads the file again."""
    global _loaded
    with _loaded_lock:
        _loaded = None
