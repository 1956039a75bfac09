"""Tuning records: measured times of candidates, kept on disk as JSON lines.

A record (:mod:`gemmhub._choice.record`) is used only where device, versions and threads are those that it states. Files
are plain text, one record a line, so they can be read, mailed and merged.

Writers take a file lock, merge with the existing records (the newest of equal records wins) and replace the
file atomically, so concurrent processes lose nothing and readers never see half a file.

A call reads a bounded part of the file once, and parses only the lines of the problems that it meets. Files that
:class:`gemmhub.use` names are read when it is called, are never written, and decide before the file in force.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from gemmhub import config
from gemmhub._base import files
from gemmhub._choice.record import FORMAT as FORMAT
from gemmhub._choice.record import Record as Record
from gemmhub._choice.record import RecordFile as RecordFile
from gemmhub._choice.record import parse_line as parse_line
from gemmhub._choice.record import record as record
from gemmhub._choice.record import threads_of
from gemmhub.capability import Ready
from gemmhub.errors import RecordError
from gemmhub.kit import locks
from gemmhub.kit.install import CORE
from gemmhub.problem import GemmProblem

_log = logging.getLogger("gemmhub")

_PATIENCE = 30.0
"""Seconds to wait for other writers, each of which needs milliseconds."""

_MAX_BYTES = 32 * 2**20
"""Maximum number of bytes of a record file that calls read: about 80 000 records."""


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

    def __init__(self, content: bytes, file: str = "") -> None:
        self.file = file
        """Its path; empty where records are switched off, and those of this process alone are kept."""
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
            index = _loaded = _Index(_in_force(), str(path() or ""))
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
    return _used(where, content)


def _used(where: Path, content: bytes) -> bytes:
    """The part of a file's content that calls use; a warning names a longer file."""
    if len(content) > _MAX_BYTES:
        _log.warning(
            "%s: only the first %d MiB of these tuning records are used; name another file, or remove the lines that "
            "are not needed", where, _MAX_BYTES >> 20,
        )  # fmt: skip
        content = content[: content.rfind(b"\n", 0, _MAX_BYTES) + 1]
    return content


_opened: WeakValueDictionary[tuple[object, ...], _Index] = WeakValueDictionary()
"""The files that settings name now, by path, time of writing and size."""


def opened(paths: Iterable[str]) -> tuple[_Index, ...]:
    """Read record files, for :attr:`gemmhub.config.Settings.record_files`. A file that was read and has not changed is
    the same object.

    Raises RecordError for a file that is missing, cannot be read, or has no record of :data:`FORMAT` and
    the installed versions of gemmhub and its plugins.
    """
    return tuple(map(_open, map(os.path.realpath, paths)))


def _open(file: str) -> _Index:
    where = Path(file)
    try:
        facts = os.stat(file)
    except OSError as error:
        raise RecordError(f"{file}: cannot be read: {error.strerror}; name a file of tuning records") from None
    key = file, facts.st_mtime_ns, facts.st_size, facts.st_ino
    with _loaded_lock:
        index = _opened.get(key)
        if index is None:
            content = _used(where, _content(where, _MAX_BYTES + 1))
            _check_records(file, content)
            index = _opened[key] = _Index(content, file)
    return index


def _check_records(file: str, content: bytes) -> None:
    """Raise RecordError where no line of a file is a record that this gemmhub, with its plugins, may use."""
    reasons: dict[str, None] = {}
    for line in content.split(b"\n"):
        if line.strip():
            parsed = parse_line(line)
            reason = parsed if isinstance(parsed, str) else _other_version(parsed)
            if not reason:
                return
            reasons[reason] = None
    first = next(iter(reasons), "")
    if not first:
        raise RecordError(
            f"{file}: has no tuning records; gemmhub.tune(...).save({os.path.basename(file)!r}) writes some"
        )
    foreign = first.startswith("not ") or first.startswith("format None")
    remedy = "name a file of tuning records" if foreign else "tune again, with this gemmhub"
    raise RecordError(f"{file}: no line of it is a tuning record that can be used: {first}; {remedy}")


def _other_version(entry: Record) -> str:
    """The versions of gemmhub and its plugins of a record, if others are installed; empty where none is other.

    Libraries, drivers and devices are those of the machine: a file may have records of several machines.
    """
    for name, version in entry.versions.items():
        if name == CORE or name.startswith(f"{CORE}-"):
            with suppress(metadata.PackageNotFoundError):  # a plugin of another machine
                installed = metadata.version(name)
                if installed != version:
                    return f"measured with {name} {version}, installed is {installed}"
    return ""


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


class _Sizes(Set[tuple[int, ...]]):
    """m, n and k of all records: those of the file in force, and of every file that settings name now."""

    def _sets(self) -> list[set[tuple[int, ...]]]:
        files = [ref() for ref in _opened.valuerefs()]
        return [index.sizes for index in (_index(), *files) if index is not None]

    def __contains__(self, sizes: object) -> bool:
        return any(sizes in x for x in self._sets())

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(set().union(*self._sets()))

    def __len__(self) -> int:
        return len(set().union(*self._sets()))


def sizes() -> Set[tuple[int, ...]]:
    """Return m, n and k of all records. A caller that keeps it sees those that are added later."""
    return _Sizes()


def _sources() -> tuple[_Index, ...]:
    """The records that decide here, in order of precedence."""
    files: tuple[_Index, ...] = config.current().record_files
    return (*files, _index())


def measured(problem: GemmProblem) -> bool:
    """Whether there is a record of exactly this problem, by any backend and version."""
    sizes = problem.m, problem.n, problem.k
    return any(sizes in index.sizes and bool(index.of(problem.key)) for index in _sources())


class Found(NamedTuple):
    """A record, and the file that it is in."""

    record: Record
    file: str
    """Empty where it was measured in this process, and records are switched off."""


def lookup(backend: str, problem: GemmProblem, ready: Ready, candidates: Sequence[str]) -> Found | None:
    """Return the fastest record of ``candidates`` for this problem, backend, device and exactly these versions and
    thread limits, in the first file that has a time.

    A candidate that failed in one file is not taken from later ones. Where all that have a record failed, the first
    failure is returned.
    """
    return _fastest(_sources(), backend, problem, ready, candidates) if measured(problem) else None


def decided_before(
    files: Sequence[_Index], backend: str, problem: GemmProblem, ready: Ready, candidates: Sequence[str]
) -> str:
    """Return which of ``files``, those of :attr:`gemmhub.config.Settings.record_files`, decides before the records in
    force which candidate of a backend runs; empty where none does.
    """
    found = _fastest(files, backend, problem, ready, candidates)
    return "" if found is None or found.record.failure else found.file


def _fastest(
    files: Sequence[_Index], backend: str, problem: GemmProblem, ready: Ready, candidates: Sequence[str]
) -> Found | None:
    """The record that :func:`lookup` returns, of these files alone."""
    here = str(problem.device), threads_of(problem, ready), ready.versions
    failed: dict[str, Found] = {}
    for index in files:
        usable = [
            entry
            for entry in index.of(problem.key)
            if entry.backend == backend
            and entry.candidate in candidates
            and entry.candidate not in failed
            and (entry.device, entry.threads, entry.versions) == here
        ]
        timed = [entry for entry in usable if not entry.failure]
        if timed:
            return Found(min(timed, key=lambda entry: entry.seconds), index.file)
        failed |= {entry.candidate: Found(entry, index.file) for entry in usable}
    return next(iter(failed.values()), None)


def unused(backend: str, problem: GemmProblem, ready: Ready) -> str:
    """Return a clause on why :func:`lookup` does not use an existing record; empty where there is none."""
    if not measured(problem):
        return ""
    for index in _sources():
        matching = [entry for entry in index.of(problem.key) if entry.backend == backend]
        if matching:
            return _differing(max(matching, key=lambda entry: entry.recorded), problem, ready)
    return ""


def _differing(entry: Record, problem: GemmProblem, ready: Ready) -> str:
    """The clause for one record."""
    then, now = {**entry.versions, "threads": entry.threads}, {**ready.versions, "threads": threads_of(problem, ready)}
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
