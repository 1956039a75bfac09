"""Tuning records: what was measured, kept on disk as JSON lines.

A record says: this problem, on this device with these library and driver versions, run by this backend's
candidate, took so many seconds. It is used only where all of that is the same; anything else is skipped
with a reason. Files are plain text, one record a line, so they can be read, mailed and merged.

Writers take a file lock, merge with what is there (the newest of equal records wins) and replace the
file in one step, so concurrent processes lose nothing and readers never see half a file.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from gemmhub import config, locks
from gemmhub.capability import Ready
from gemmhub.errors import RecordError
from gemmhub.problem import GemmProblem

_log = logging.getLogger("gemmhub")

FORMAT = 1
"""Version of the record format; entries of another are skipped."""

_PATIENCE = 30.0
"""Seconds to wait for other writers, each of which takes milliseconds."""


@dataclass(frozen=True)
class Record:
    """One measurement."""

    problem: str
    """:attr:`GemmProblem.key`."""
    device: str
    """ "cpu", "cuda:0"; which model it is stands in ``versions``."""
    backend: str
    candidate: str
    seconds: float
    versions: Mapping[str, str]
    """What the backend's probe reported: libraries, drivers, the device's name."""
    recorded: str = ""
    """ISO 8601, UTC."""
    format: int = FORMAT

    @property
    def identity(self) -> tuple[object, ...]:
        """Two records of the same identity measure the same thing."""
        return (self.problem, self.device, self.backend, self.candidate, tuple(sorted(self.versions.items())))

    def line(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass
class RecordFile:
    """The valid records of a file, and why the other lines were skipped."""

    records: dict[tuple[object, ...], Record] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """The skipped lines themselves: a newer gemmhub may read them, so writing keeps them."""

    def add(self, record: Record) -> None:
        """Keep ``record`` unless a newer one of the same identity is known."""
        known = self.records.get(record.identity)
        if known is None or known.recorded <= record.recorded:
            self.records[record.identity] = record


def record(problem: GemmProblem, backend: str, candidate: str, seconds: float, ready: Ready) -> Record:
    """A record of a measurement made now."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return Record(problem.key, str(problem.device), backend, candidate, seconds, dict(ready.versions), now)


def parse_line(line: str) -> Record | str:
    """A record, or the reason why ``line`` is none."""
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
    seconds = data.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return "seconds is missing or not a number"
    if not 0 < seconds <= sys.float_info.max:  # NaN and infinity too
        return f"seconds is {seconds!r:.60}"
    return Record(**{name: data[name] for name in texts}, versions=versions, seconds=float(seconds))


def read(path: Path) -> RecordFile:
    """Every valid record of ``path``; a file that does not exist has none. RecordError if unreadable."""
    found = RecordFile()
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    except FileNotFoundError:
        return found
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        parsed = parse_line(line)
        if isinstance(parsed, Record):
            found.add(parsed)
        else:
            found.skipped.append(f"{path}:{number}: {parsed}")
            found.unread.append(line)
    return found


def write(path: Path, records: Iterable[Record]) -> RecordFile:
    """Merge ``records`` into ``path``, atomically and safe against other writers. Returns the new content.

    RecordError where it cannot be written, is no regular file, or another process does not let go of its lock.
    """
    from filelock import FileLock, Timeout

    path = Path(os.path.realpath(path))  # os.replace would put a file in place of a link
    try:
        if path.exists() and not path.is_file():  # and in place of a device
            raise RecordError(f"{path}: cannot be written: it is no regular file; give another, or 'off' for none")
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_PATIENCE):
            content = read(path)
            for new in records:
                content.add(new)
            ordered = sorted(content.records.values(), key=lambda r: (r.problem, r.backend, r.candidate, r.recorded))
            lines = [entry.line() for entry in ordered] + content.unread
            if not lines and not path.exists():  # the lock file beside it has shown that it can be written
                return content
            # The lock makes this name ours. Unlike a mkstemp file it gets the permissions of an ordinary one.
            temporary = Path(f"{path}.tmp")
            try:
                text = "".join(f"{line}\n" for line in lines)
                temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
                if path.exists():
                    shutil.copymode(path, temporary)
                os.replace(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except Timeout:
        raise RecordError(
            f"{path}: cannot be written: another process has held {path}.lock for {_PATIENCE:g} s; end it, or try again"
        ) from None
    except (OSError, NotImplementedError) as error:  # the latter from file systems without locks
        raise RecordError(f"{path}: cannot be written: {error}") from None
    return content


def merge(sources: Iterable[Path], target: Path) -> RecordFile:
    """Merge record files into ``target``; its ``skipped`` lists what the sources had that is no record."""
    gathered = RecordFile()
    for source in sources:
        if not source.is_file():
            raise RecordError(f"{source}: no such file")
        content = read(source)
        gathered.skipped += content.skipped
        for entry in content.records.values():
            gathered.add(entry)
    written = write(target, gathered.records.values())
    written.skipped = gathered.skipped
    forget()
    return written


def default_path() -> Path:
    """Where records are kept unless the setting ``records`` names another file."""
    from platformdirs import user_data_dir

    return Path(user_data_dir("gemmhub", appauthor=False)) / "tuning.jsonl"


def path() -> Path | None:
    """The record file in force; None when records are switched off."""
    chosen = config.root().records
    return None if chosen == "off" else default_path() if chosen == "default" else Path(chosen)


_loaded: dict[tuple[str, str, str], list[Record]] | None = None
_loaded_lock = locks.lock()


def _table() -> dict[tuple[str, str, str], list[Record]]:
    global _loaded
    table = _loaded
    if table is None:
        with _loaded_lock:
            table = {}
            for entry in _in_force().records.values():
                table.setdefault((entry.backend, entry.problem, entry.device), []).append(entry)
            _loaded = table
    return table


def _in_force() -> RecordFile:
    """What :func:`path` holds. A file that the user named must be readable; the default one need not be."""
    where = path()
    if where is None:
        return RecordFile()
    try:
        return read(where)
    except RecordError as error:
        if config.root().records != "default":
            raise
        _log.warning("no tuning records: %s", error)
        return RecordFile()


def lookup(backend: str, problem: GemmProblem, ready: Ready, candidates: Sequence[str]) -> Record | None:
    """The fastest record for this problem, backend, device and exactly these versions, of a known candidate."""
    known = _table().get((backend, problem.key, str(problem.device)))
    usable = [entry for entry in known or () if entry.versions == ready.versions and entry.candidate in candidates]
    return min(usable, key=lambda entry: entry.seconds, default=None)


def forget() -> None:
    """Read the record file again at the next need."""
    global _loaded
    with _loaded_lock:
        _loaded = None
