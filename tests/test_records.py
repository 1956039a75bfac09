"""Tuning records on disk: kept and skipped lines, with reasons, and concurrent writers without losses."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import filelock
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gemmhub
from gemmhub._base import processors
from gemmhub._choice import records
from gemmhub._choice.records import Record
from gemmhub.errors import RecordError

ROOT = Path(gemmhub.__file__).parent.parent
ONE = np.ones((2, 2), np.float32)
SOME = Record(
    "2x2x2 batch=1", "cpu", "fast", "tile8", 1.5e-3, {"lib": "1.2"}, "2024-05-06T07:08:09.000+00:00",
    threads=processors.threads(),
)  # fmt: skip


def line(**changes):
    return json.dumps({**json.loads(SOME.line()), **changes})


# ---------------------------------------------------------------- lines

texts = st.text(max_size=12)
some_records = st.builds(
    Record,
    problem=texts,
    device=texts,
    backend=texts,
    candidate=texts,
    seconds=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    versions=st.dictionaries(texts, texts, max_size=3),
    recorded=texts,
    threads=texts,
    load=st.none() | st.floats(min_value=0, max_value=2**52),
)
some_failures = st.builds(replace, some_records, seconds=st.just(float("inf")), failure=st.text(min_size=1))


@given(some_records | some_failures)
def test_a_record_survives_its_line(record):
    text = record.line()
    assert "\n" not in text
    assert records.parse_line(text) == record


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_no_text_makes_parsing_raise(text):
    assert isinstance(records.parse_line(text), (Record, str))


@given(field=st.sampled_from(list(json.loads(SOME.line()))), value=json_values)
def test_no_value_makes_parsing_raise(field, value):
    parsed = records.parse_line(line(**{field: value}))
    if isinstance(parsed, Record):
        assert records.parse_line(parsed.line()) == parsed
        assert 0 < parsed.seconds < float("inf") or parsed.failure
    else:
        assert parsed


BROKEN = {
    "": None,
    "   \t": None,
    "{": "not JSON",
    '{"format": 1': "not JSON",
    "seconds=3": "not JSON",
    "one\x0cline\u2028only": "not JSON",
    "[" * 100_000: "not JSON",
    "\ufeff" + SOME.line(): "not JSON",
    "[1, 2]": "not a JSON object",
    "null": "not a JSON object",
    "{}": "format None, this gemmhub reads 1",
    line(format=2): "format 2, this gemmhub reads 1",
    line(format="1"): "format '1', this gemmhub reads 1",
    line(problem=None): "problem is missing or not a string",
    line(device=0): "device is missing or not a string",
    line(backend=["x"]): "backend is missing or not a string",
    line(candidate=8): "candidate is missing or not a string",
    line(recorded=1.7e9): "recorded is missing or not a string",
    line(versions=None): "versions is missing or not a table of strings",
    line(versions=["1.2"]): "versions is missing or not a table of strings",
    line(versions={"lib": 1.2}): "versions is missing or not a table of strings",
    line(seconds=None): "seconds is missing or not a number",
    line(seconds="0.1"): "seconds is missing or not a number",
    line(seconds=True): "seconds is missing or not a number",
    line(seconds=float("nan")): "seconds is nan",
    line(seconds=float("inf")): "seconds is inf",
    line(seconds=-1e-3): "seconds is -0.001",
    line(seconds=0): "seconds is 0",
    line(seconds=10**400): "seconds is 1000",
    line(threads=2): "threads is not a string",
    line(failure=["wrong"]): "failure is not a string",
    line(failure="wrong"): "it has both seconds and a failure",
    line(load="high"): "load is 'high', not a number",
    line(load=float("nan")): "load is nan, not a number",
    line(load=True): "load is True, not a number",
}


def test_every_broken_line_is_skipped_with_its_reason(tmp_path):
    path = tmp_path / "records.jsonl"
    good = [replace(SOME, candidate=f"tile{i}") for i in range(len(BROKEN) + 1)]
    lines = [good[0].line()]
    for bad, record in zip(BROKEN, good[1:]):
        lines += [bad, record.line()]
    path.write_bytes("\n".join(lines).encode() + b'\n{"format": \xff\xfe}\r\n')
    found = records.read(path)
    assert list(found.records.values()) == good
    expected = [f"{path}:{2 + 2 * i}: {reason}" for i, reason in enumerate(BROKEN.values()) if reason]
    expected.append(f"{path}:{len(lines) + 1}: not JSON")
    assert len(found.skipped) == len(expected)
    for said, wanted in zip(found.skipped, expected):
        assert said.startswith(wanted)
        assert len(said) < len(str(path)) + 100


def test_a_broken_file_does_not_stop_a_product(monkeypatch, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\xff\xfe\x00garbage\n{}\n" + os.urandom(500))
    monkeypatch.setenv("GEMMHUB_RECORDS", str(path))
    gemmhub.reload()
    assert np.array_equal(gemmhub.matmul(ONE, ONE), ONE @ ONE)


# ---------------------------------------------------------------- files


def table(*some):
    return {record.identity: record for record in some}


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "new" / "folder" / "records.jsonl"
    assert records.read(path).records == {}
    some = [replace(SOME, candidate=c) for c in ("c", "a", "b")]
    assert records.write(path, some).records == table(*some)
    assert records.read(path).records == table(*some)
    assert set(os.listdir(path.parent)) <= {"records.jsonl", "records.jsonl.lock"}
    assert records.write(path, []).records == table(*some)


def test_the_newest_of_equal_records_wins(tmp_path):
    path = tmp_path / "records.jsonl"
    old, new = SOME, replace(SOME, seconds=9.0, recorded="2025-01-01T00:00:00.000+00:00")
    other = replace(SOME, versions={"lib": "1.3"})
    for first, second in ((old, new), (new, old)):
        path.unlink(missing_ok=True)
        records.write(path, [first])
        records.write(path, [second, other])
        assert records.read(path).records == table(new, other)


def test_a_failure_and_a_time_replace_each_other(tmp_path):
    path = tmp_path / "records.jsonl"
    failed = replace(SOME, seconds=float("inf"), failure="wrong: 3 times its bound", recorded="2025-01-01T00:00:00")
    again = replace(SOME, recorded="2026-01-01T00:00:00")
    records.write(path, [SOME, failed])
    found = records.read(path)
    assert (found.records, found.failures) == ({}, table(failed))
    assert '"seconds": null' in path.read_text(encoding="utf-8")  # a number that is none would not be JSON
    records.write(path, [again, SOME])
    found = records.read(path)
    assert (found.records, found.failures) == (table(again), {})


def test_a_record_of_an_older_gemmhub_is_read(tmp_path):
    """It states no threads: it is kept, and used on devices only."""
    old = {k: v for k, v in json.loads(SOME.line()).items() if k not in ("threads", "load", "failure")}
    assert records.parse_line(json.dumps(old)) == replace(SOME, threads="")


def test_writing_keeps_the_lines_it_cannot_read(tmp_path):
    """They may belong to a newer gemmhub that shares the file."""
    path = tmp_path / "records.jsonl"
    foreign = [line(format=2, more=[1]).encode(), b"\xff not ours", b"{"]
    path.write_bytes(b"\n".join(foreign) + b"\n")
    for _ in range(2):
        records.write(path, [SOME])
        found = records.read(path)
        assert found.records == table(SOME)
        assert [said.partition(": ")[2] for said in found.skipped] == [
            "format 2, this gemmhub reads 1",
            "not JSON",
            "not JSON",
        ]
        assert path.read_bytes().split(b"\n")[1:4] == foreign


def test_writing_keeps_the_permissions(tmp_path):
    path = tmp_path / "records.jsonl"
    records.write(path, [SOME])
    (tmp_path / "ordinary").touch()
    assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    path.chmod(0o640)
    records.write(path, [replace(SOME, candidate="other")])
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    records.write(path, [SOME])
    before = path.read_bytes()

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RecordError, match=r"records\.jsonl: cannot be written: .*No space left"):
        records.write(path, [replace(SOME, candidate="other")])
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))


def test_paths_that_cannot_be_read_or_written(tmp_path, monkeypatch):
    for action, message in (
        (records.read, "cannot be read"), (lambda path: records.write(path, [SOME]), "not a regular file")
    ):  # fmt: skip
        with pytest.raises(RecordError, match=message) as caught:
            action(tmp_path)
        assert str(tmp_path) in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot be written"):
        records.write(tmp_path / "file" / "records.jsonl", [SOME])
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path))
    gemmhub.reload()
    with pytest.raises(RecordError, match="cannot be read"):
        gemmhub.matmul(ONE, ONE)


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_is_no_file_stays_what_it_is(tmp_path, monkeypatch, kind):
    path = tmp_path / "records.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # as /dev/null
        except OSError:
            pytest.skip("only root makes device nodes")
    before = path.stat()
    with pytest.raises(RecordError, match=r"not a regular file; name another, or 'off' for none"):
        records.write(path, [SOME])
    after = path.stat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_a_link(tmp_path, exists):
    target, link = tmp_path / "real" / "records.jsonl", tmp_path / "records.jsonl"
    if exists:
        records.write(target, [SOME])
    link.symlink_to(target)
    records.write(link, [replace(SOME, backend="other")])
    assert link.is_symlink()
    assert len(records.read(target).records) == 1 + exists
    assert not list(tmp_path.glob("*.lock")), "both names must lock the same"


@pytest.mark.parametrize("kind", ["link", "pipe", "dangling"])
@pytest.mark.parametrize("suffix", [".tmp", ".lock"])
def test_a_link_at_the_draft_or_the_lock_is_not_written_to(tmp_path, kind, suffix):
    path, other = tmp_path / "records.jsonl", tmp_path / "precious"
    records.write(path, [SOME])
    before = path.read_bytes()
    planted = Path(f"{path}{suffix}")
    planted.unlink(missing_ok=True)
    if kind == "link":
        other.write_text("precious")
    if kind == "pipe":
        os.mkfifo(planted)
    else:
        planted.symlink_to(other)
    new = replace(SOME, candidate="other")
    if suffix == ".tmp":
        records.write(path, [new])
        assert records.read(path).records == table(SOME, new)
        assert not planted.exists(follow_symlinks=False) if sys.version_info >= (3, 12) else not planted.is_symlink()
    else:
        with pytest.raises(RecordError, match=r"cannot be written: .*\.lock is not a regular file; remove it"):
            records.write(path, [new])
        assert path.read_bytes() == before
    assert other.exists() == (kind == "link")
    if kind == "link":
        assert other.read_text() == "precious"


def test_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    os.mkfifo(path)
    monkeypatch.setenv("GEMMHUB_RECORDS", str(path))
    gemmhub.reload()
    with pytest.raises(RecordError, match=r"cannot be read: it is not a regular file; name another file, or 'off'"):
        gemmhub.matmul(ONE, ONE)
    monkeypatch.setenv("GEMMHUB_RECORDS", os.devnull)
    gemmhub.reload()
    assert np.array_equal(gemmhub.matmul(ONE, ONE), ONE @ ONE)


def test_a_date_in_the_future_does_not_win_for_ever(tmp_path):
    path = tmp_path / "records.jsonl"
    future = replace(SOME, seconds=1e-9, recorded="2099-01-01T00:00:00.000+00:00")
    later = replace(future, recorded="2999-01-01T00:00:00.000+00:00")
    problem = gemmhub.explain(ONE, ONE).problem
    now = records.record(problem, SOME.backend, SOME.candidate, 2.0, gemmhub.Ready((), SOME.versions))
    now = replace(now, problem=SOME.problem, device=SOME.device)
    for first, second, kept in ((future, now, now), (now, future, now), (SOME, future, SOME), (later, future, later)):
        path.unlink(missing_ok=True)
        records.write(path, [first])
        records.write(path, [second])
        assert records.read(path).records == table(kept)


@pytest.mark.parametrize(
    "content",
    [b"notes\n", b"\x93NUMPY\x01\0v\0{'descr'", b'{"a": 1}\n', b"[tool.gemmhub]\nformat = 1\n", b'{"format": "x"}'],
)
def test_a_file_without_records_is_not_rewritten(tmp_path, content):
    path, other = tmp_path / "a.npy", tmp_path / "other.jsonl"
    path.write_bytes(content)
    records.write(other, [SOME])
    for action in (
        lambda: records.write(path, [SOME]),
        lambda: records.merge([path], path),
        lambda: records.merge([other], path),
    ):
        with pytest.raises(RecordError, match=r"a\.npy: cannot be written: no line of it is a tuning record"):
            action()
    assert path.read_bytes() == content
    assert sorted(os.listdir(tmp_path)) in (["a.npy", "other.jsonl"], ["a.npy", "other.jsonl", "other.jsonl.lock"])
    path.write_bytes(b"\n \n")
    assert records.write(path, [SOME]).records == table(SOME)
    path.write_bytes(line(format=2).encode() + b"\n" + content)  # those of a newer gemmhub
    assert records.write(path, [SOME]).records == table(SOME)


def test_a_file_of_a_million_lines(tmp_path, monkeypatch, caplog):
    """A call reads a bounded part, parses what it needs, and the log names the file and what to do."""
    path = tmp_path / "records.jsonl"
    monkeypatch.setenv("GEMMHUB_RECORDS", str(path))
    problem = gemmhub.explain(ONE, ONE).problem
    versions = gemmhub.backends()["numpy"].versions
    mine = replace(SOME, problem=problem.key, backend="numpy", candidate="default", versions=versions, seconds=0.125)
    block = "".join(line(problem=f"{i}x4096x4096 batch=1") + "\n" for i in range(1000))
    with path.open("w", encoding="utf-8") as stream:
        stream.write(mine.line() + "\n")
        stream.writelines(block for _ in range(1000))
    parsed = []
    parse_line = records.parse_line
    monkeypatch.setattr(records, "parse_line", lambda text: parsed.append(text) or parse_line(text))
    gemmhub.reload()
    start = time.perf_counter()
    assert gemmhub.explain(ONE, ONE)["numpy"].seconds == 0.125
    assert time.perf_counter() - start < 10  # 0.4 s where nothing else runs
    assert len(parsed) == 1
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith(f"{path}: only the first 32 MiB of these tuning records are used; name another file")


def test_a_line_that_the_limit_cuts_is_left_out(tmp_path, monkeypatch, caplog):
    path = tmp_path / "records.jsonl"
    monkeypatch.setenv("GEMMHUB_RECORDS", str(path))
    lines = [replace(SOME, candidate=f"tile{i}").line() for i in range(3)]
    path.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    for limit, count in ((len(lines[0]) + 1, 1), (2 * len(lines[0]) + 1, 1), (2 * len(lines[0]) + 2, 2), (10**6, 3)):
        monkeypatch.setattr(records, "_MAX_BYTES", limit)
        gemmhub.reload()
        caplog.clear()
        assert len(records._index().of(SOME.problem)) == count
        assert bool(caplog.records) == (count < 3)


@given(st.lists(some_records, max_size=8), st.booleans())
def test_the_index_finds_what_reading_all_finds(some, compact):
    lines = [record.line() for record in some]
    if compact:
        lines = [json.dumps(json.loads(text), separators=(",", ":")) for text in lines]
    index = records._Index("\n".join(["", "{", *lines]).encode())
    every = records.RecordFile()
    for record in some:
        every.add(record)
    for record in some:
        assert index.of(record.problem) == [r for r in every.records.values() if r.problem == record.problem]
    assert index.of("no such problem") == []


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    order = []
    fsync, put = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: order.append(stat.S_IFMT(os.fstat(handle).st_mode)) or fsync(handle)
    )
    monkeypatch.setattr(os, "replace", lambda *names: order.append("replace") or put(*names))
    records.write(path, [SOME])
    assert order == [stat.S_IFREG, "replace", stat.S_IFDIR]


def test_a_lock_that_is_not_let_go_of(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_PATIENCE", 0.1)
    path = tmp_path / "records.jsonl"
    monkeypatch.setenv("GEMMHUB_RECORDS", str(path))
    gemmhub.reload()
    with filelock.FileLock(f"{path}.lock"):
        for call in (lambda: records.write(path, [SOME]), lambda: gemmhub.tune(ONE, ONE)):
            with pytest.raises(RecordError, match=rf"another process has held {path}\.lock for 0\.1 s"):
                call()
    records.write(path, [SOME])


def test_a_default_file_that_cannot_be_read_is_only_warned_of(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("GEMMHUB_RECORDS")
    (tmp_path / "tuning.jsonl").mkdir()
    monkeypatch.setattr("platformdirs.user_data_dir", lambda *given, **named: str(tmp_path))
    gemmhub.reload()
    assert np.array_equal(gemmhub.matmul(ONE, ONE), ONE @ ONE)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith(f"no tuning records: {tmp_path / 'tuning.jsonl'}: cannot be read")
    with pytest.raises(RecordError):
        gemmhub.tune(ONE, ONE)


def test_no_suite_writes_to_the_file_of_the_user(monkeypatch):
    """Nor one whose tests have no fixture that names another."""
    monkeypatch.undo()  # of what such fixtures set
    gemmhub.reload()
    assert records.path() != records.default_path()


def test_where_records_are(tmp_path, monkeypatch):
    for value, expected in (
        ("off", None),
        (str(tmp_path / "x"), tmp_path / "x"),
        ("default", tmp_path / "data" / "tuning.jsonl"),
    ):
        monkeypatch.setattr("platformdirs.user_data_dir", lambda *given, **named: str(tmp_path / "data"))
        monkeypatch.setenv("GEMMHUB_RECORDS", value)
        gemmhub.reload()
        assert records.path() == expected


def test_records_switched_off_are_not_looked_at(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMMHUB_RECORDS", "off")
    gemmhub.reload()
    (tmp_path / "off").mkdir()  # reading it would raise
    assert np.array_equal(gemmhub.matmul(ONE, ONE), ONE @ ONE)


def test_merging(tmp_path):
    one, two, target = (tmp_path / name for name in ("one.jsonl", "two.jsonl", "all.jsonl"))
    new = replace(SOME, seconds=2.0, recorded="2025-01-01")
    a, b, c = (replace(SOME, candidate=name) for name in "abc")
    records.write(one, [SOME, a])
    one.write_text(one.read_text(encoding="utf-8") + "broken\n", encoding="utf-8")
    records.write(two, [new, b])
    records.write(target, [c])
    merged = records.merge([one, two], target)
    assert merged.records == records.read(target).records == table(new, a, b, c)
    assert merged.skipped == [f"{one}:3: not JSON"]
    again = records.merge([target, one, target], target)
    assert again.records == merged.records
    with pytest.raises(RecordError, match=r"none\.jsonl: no such file"):
        records.merge([one, tmp_path / "none.jsonl"], target)
    assert records.read(target).records == merged.records


def test_merged_records_are_used_at_once(monkeypatch, tmp_path):
    target = tmp_path / "all.jsonl"
    monkeypatch.setenv("GEMMHUB_RECORDS", str(target))
    gemmhub.reload()
    problem = gemmhub.explain(ONE, ONE).problem
    versions = gemmhub.backends()["numpy"].versions
    tuned = replace(SOME, problem=problem.key, backend="numpy", candidate="default", versions=versions, seconds=0.125)
    records.write(tmp_path / "other.jsonl", [tuned])
    records.merge([tmp_path / "other.jsonl"], target)
    assert gemmhub.explain(ONE, ONE)["numpy"].seconds == 0.125


def test_the_fastest_record_of_a_candidate_that_still_exists(monkeypatch, tmp_path):
    path = tmp_path / "records.jsonl"
    monkeypatch.setenv("GEMMHUB_RECORDS", str(path))
    gemmhub.reload()
    problem = gemmhub.explain(ONE, ONE).problem
    mine = replace(SOME, problem=problem.key)
    others = [
        replace(mine, candidate="gone", seconds=1e-9),
        replace(mine, candidate="tile4", seconds=1.0),
        replace(mine, device="cuda:0", seconds=1e-9),
        replace(mine, backend="other", seconds=1e-9),
        replace(mine, problem=mine.problem + " packed", seconds=1e-9),
        replace(mine, versions={"lib": "1.1"}, seconds=1e-9),
    ]
    records.write(path, [*others, mine])
    records.forget()
    ready = gemmhub.Ready((), {"lib": "1.2"})
    assert records.lookup("fast", problem, ready, ("tile4", "tile8")) == (mine, str(path))
    assert records.lookup("fast", problem, ready, ("tile16",)) is None
    assert records.lookup("slow", problem, ready, ("tile4", "tile8")) is None


# ---------------------------------------------------------------- concurrent writers

WRITER = """
import sys
from pathlib import Path
from gemmhub._choice.records import Record, write
path, who, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    write(path, [Record("p", "cpu", who, str(i), 1.0 + i, {}, "2024"), Record("p", "cpu", "shared", "", 1.0, {}, who)])
"""


def test_concurrent_processes_lose_nothing(tmp_path):
    path = tmp_path / "records.jsonl"
    writers, count = 4, 12
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    commands = [[sys.executable, "-c", WRITER, str(path), f"writer{i}", str(count)] for i in range(writers)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=environment, **pipes) for command in commands]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    seen = 0
    while any(process.poll() is None for process in processes):
        found = records.read(path)
        assert not found.skipped  # never half a file
        assert len(found.records) >= seen
        seen = len(found.records)
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    found = records.read(path)
    assert not found.skipped
    kept = {(r.backend, r.candidate) for r in found.records.values()}
    assert kept == {(f"writer{i}", str(j)) for i in range(writers) for j in range(count)} | {("shared", "")}
    (shared,) = [r for r in found.records.values() if r.backend == "shared"]
    assert shared.recorded == f"writer{writers - 1}"


KILLED = """
import sys
from pathlib import Path
from gemmhub._choice.records import Record, write
path, who, i = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
import filelock
print("ready", flush=True)
while True:
    write(path, [Record("p", "cpu", who, str(i), 1.0 + i, {}, "2024")])
    print(i, flush=True)
    i += 1
"""


def test_killed_writers_lose_nothing_that_they_acknowledged(tmp_path):
    """Each of three writers is killed at a random moment, several times; all records it reported as written exist."""
    path = tmp_path / "records.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    rng = np.random.default_rng()
    acknowledged = set()
    kills = int(os.environ.get("TEST_KILLS", 4))

    def kill(who):
        for turn in range(kills):
            command = [sys.executable, "-c", KILLED, str(path), who, str(1000 * turn)]
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            assert process.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0, 0.2))
            process.kill()
            for text in process.communicate()[0].split("\n")[:-1]:
                acknowledged.add((who, text))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(kill, ("one", "two", "three")))
    found = records.read(path)
    assert not found.skipped
    assert acknowledged <= {(r.backend, r.candidate) for r in found.records.values()}
    print(len(acknowledged), "acknowledged of", 3 * kills, "killed writers")
    records.write(path, [SOME])
    assert {entry.name for entry in tmp_path.iterdir()} == {"records.jsonl", "records.jsonl.lock"}


def test_concurrent_threads_lose_nothing(tmp_path):
    path = tmp_path / "records.jsonl"
    gate = threading.Barrier(6)

    def work(who):
        gate.wait()
        for i in range(5):
            records.write(path, [replace(SOME, backend=str(who), candidate=str(i))])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(records.read(path).records) == 30
