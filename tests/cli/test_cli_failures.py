"""How commands end: exit codes, one message, no traceback, whole files, and no text that a terminal interprets."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub import Kernel, Refusal
from gemmhub._base import files
from gemmhub._base.tables import Facts, Table
from gemmhub._choice import records
from gemmhub.cli import errors, screen
from gemmhub.cli.main import main
from plugins import add

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\u202etxt[red]bold[/red]"
ACTING = set("\x1b\x07\x9b\u202e")
GEMMHUB = [sys.executable, "-m", "gemmhub"]


@pytest.fixture
def failing():
    """A backend whose kernels raise."""

    def run(*given):
        raise RuntimeError(f"an illegal access {EVIL}")

    add(Scripted("failing", prepare=Kernel(run, "failing")))


@pytest.fixture
def evil():
    """A backend whose every text has escape sequences."""
    add(Scripted("evil", refusal=Refusal(f"reason{EVIL}", f"remedy{EVIL}")))


# ---------------------------------------------------------------- exit codes


def test_what_fails_is_no_wrong_product(run, pair, failing):
    told = run("compare", 30, 20, 10, code=3).stdout
    assert "failed" in told
    run("matmul", "a.npy", "b.npy", code=3)
    run("doctor", code=3)
    run("bench", "--shape", 8, "--rounds", 1, "--backend", "failing", code=3)


def test_a_wrong_product_goes_before_a_failure(run, failing, wrong):
    run("compare", 30, 20, 10, code=1)
    run("doctor", code=1)


@pytest.mark.parametrize("command", ["bench", "tune"])
@pytest.mark.parametrize("size", [2**40, 10**8, 10**20])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_operands_that_no_memory_holds(run, command, size, dtype):
    told = run.error(command, "--shape", size, "--dtype", dtype, code=3)
    assert told.startswith(f"error: no memory for an operand of {size} x {size} {dtype}: ")
    assert told.endswith("; use smaller sizes\n")


def test_operands_of_compare_that_no_memory_holds(run):
    assert "no memory for an operand of" in run.error("compare", 2**40, 4, 2**40, code=3)


def test_records_that_do_not_fit(run, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in run.error("tune", 8, 8, 8, code=3)
    monkeypatch.undo()
    assert "is not a regular file" in run.error("tune", "--show", ".")


def test_an_unexpected_error_is_one_message(run, monkeypatch):
    def broken(*given, **named):
        raise ZeroDivisionError(f"oh {EVIL}")

    monkeypatch.setattr(gemmhub, "backends", broken)
    told = run.error("backends", code=3)
    assert told.startswith("error: ZeroDivisionError: oh \\x1b[2J")
    assert "python -X dev -m gemmhub" in told
    assert not ACTING & set(told)
    monkeypatch.setattr(gemmhub, "backends", lambda: (_ for _ in ()).throw(MemoryError))
    assert run.error("backends", code=3) == "error: out of memory\n"


def process(*arguments, cwd, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([*GEMMHUB, *arguments], cwd=cwd, **options)


@pytest.mark.parametrize(
    "arguments", [["backends"], ["--help"], ["matmul", "--help"], ["backends", "--json"]], ids=" ".join
)
def test_a_reader_that_has_closed_the_pipe(tmp_path, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    with process(*arguments, cwd=tmp_path, stdout=writing) as done:
        os.close(writing)
        assert done.communicate()[1] == ""
    assert done.returncode == errors.CLOSED


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["backends"], ["--version"]], ids=" ".join)
def test_a_full_disk_behind_stdout(tmp_path, arguments):
    with open("/dev/full", "w") as full, process(*arguments, cwd=tmp_path, stdout=full) as done:
        assert done.communicate()[1] == "error: standard output cannot be written: No space left on device\n"
    assert done.returncode == errors.FAILED


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_behind_stderr(tmp_path):
    for arguments in (["nope"], ["matmul", "missing.npy", "missing.npy"]):
        with open("/dev/full", "w") as full, process(*arguments, cwd=tmp_path, stderr=full) as done:
            assert done.communicate()[0] == ""
        assert done.returncode == errors.UNUSABLE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_what_a_plugin_prints_onto_a_full_disk(tmp_path):
    """It is still buffered at the end of the command: Python's exit would fail with another code."""
    script = "import sys\nfrom gemmhub.cli import errors\nsys.exit(errors.run(lambda: print('hello')))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (
        errors.FAILED, "error: standard output cannot be written: No space left on device\n",
    )  # fmt: skip


def test_closed_streams(tmp_path):
    for redirection, code in ((">&-", 0), ("2>&-", 0)):
        command = f'"$@" {redirection}'
        done = subprocess.run(["sh", "-c", command, "sh", *GEMMHUB, "--version"], cwd=tmp_path, capture_output=True)
        assert (done.returncode, done.stderr) == (code, b"")


def test_ctrl_c(tmp_path):
    script = (
        "import gemmhub, signal, time\nfrom gemmhub.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where a shell started the tests with &
        "def wait():\n    print('waiting', flush=True)\n    time.sleep(60)\n"
        "gemmhub.backends = wait\nmain(['backends'])"
    )
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, **options) as done:
        assert done.stdout.readline() == "waiting\n"
        done.send_signal(signal.SIGINT)
        told = done.communicate(timeout=30)[1]
    assert done.returncode == errors.INTERRUPTED
    assert told.strip() == "error: interrupted"


def test_a_name_that_the_encoding_lacks(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "GEMMHUB_RECORDS": "/tmp/中"}
    with process("doctor", cwd=tmp_path, env=environment) as done:
        told, complaint = done.communicate()
    assert (done.returncode, complaint) == (0, "")
    assert "/tmp/\\u4e2d" in told


# ---------------------------------------------------------------- files


def test_a_failed_write_leaves_the_old_file(run, pair, monkeypatch):
    run("matmul", "a.npy", "b.npy", "--out", "c.npy")
    before = (run.folder / "c.npy").read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    for arguments in (
        ["matmul", "a.npy", "b.npy", "--out", "c.npy"],
        ["bench", "--shape", 8, "--rounds", 1, "--json", "c.npy"],
    ):
        told = run(*arguments, code=3).stderr
        assert told == "error: c.npy: cannot be written: No space left on device\n"
        assert (run.folder / "c.npy").read_bytes() == before
    assert sorted(path.name for path in run.folder.iterdir()) == ["a.npy", "b.npy", "c.npy"]


def test_a_killed_writer_leaves_the_old_file(tmp_path):
    (tmp_path / "c.npy").write_bytes(b"old")
    code = (
        "import os, pathlib, signal, numpy\nfrom gemmhub.cli import operands\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        "operands.store(pathlib.Path('c.npy'), numpy.ones(10**6))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "c.npy").read_bytes() == b"old"


def test_a_link_is_written_through(run, pair):
    (run.folder / "real").mkdir()
    (run.folder / "c.npy").symlink_to("real/c.npy")
    for _ in range(2):
        run("matmul", "a.npy", "b.npy", "--out", "c.npy")
        assert (run.folder / "c.npy").is_symlink()
        assert np.load(run.folder / "real" / "c.npy").shape == (23, 17)
    assert os.listdir(run.folder / "real") == ["c.npy"]


def test_permissions_are_kept(run, pair):
    run("matmul", "a.npy", "b.npy", "--out", "c.npy")
    (run.folder / "ordinary").touch()
    assert (run.folder / "c.npy").stat().st_mode == (run.folder / "ordinary").stat().st_mode
    (run.folder / "c.npy").chmod(0o640)
    run("matmul", "a.npy", "b.npy", "--out", "c.npy")
    assert (run.folder / "c.npy").stat().st_mode & 0o777 == 0o640


def test_a_pipe_gets_the_product(run, pair):
    os.mkfifo(run.folder / "pipe")
    reader = subprocess.Popen(["cat", "pipe"], cwd=run.folder, stdout=subprocess.PIPE)
    run("matmul", "a.npy", "b.npy", "--out", "pipe")
    (run.folder / "c.npy").write_bytes(reader.communicate()[0])
    assert np.load(run.folder / "c.npy").shape == (23, 17)
    run("matmul", "a.npy", "b.npy", "--out", os.devnull)


@pytest.mark.parametrize(
    "array", [np.float32(3), np.ones((0, 3)), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.ones((3, 4))[:, ::2]]
)
def test_what_is_stored_is_what_numpy_saves(tmp_path, array):
    from gemmhub.cli import operands

    operands.store(tmp_path / "ours.npy", np.asarray(array))
    np.save(tmp_path / "theirs.npy", array)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


# ---------------------------------------------------------------- terminals


def everything(run):
    """The output of each command with text of a plugin and of a file."""
    line = json.dumps({**json.loads(records.Record("p", "cpu", EVIL, EVIL, 1.0, {}, EVIL).line()), "problem": EVIL})
    (run.folder / "x.jsonl").write_text(line + "\n\x1b[2J not a record\n")
    yield run("explain", 30, 20, 10)
    yield run("backends", "--verbose")
    yield run("compare", 30, 20, 10)
    yield run("tune", 8, 8, 8)
    yield run("tune", "--show", "x.jsonl")
    yield run("bench", "--shape", 8, "--rounds", 1)
    yield run("doctor")
    yield run("matmul", "a.npy", "b.npy", "--backend", "evil", code=3)


def test_no_command_prints_what_a_terminal_acts_on(run, pair, evil):
    shown = 0
    for result in everything(run):
        for text in (result.stdout, result.stderr):
            assert not ACTING & set(text), text
            shown += "\\x1b[2J" in text
    assert shown >= 3  # explain, tune --show, and the error


def test_a_kernel_that_fails_with_what_a_terminal_acts_on(run, pair, failing):
    for arguments in (["compare", 30, 20, 10], ["doctor"], ["matmul", "a.npy", "b.npy"]):
        result = run(*arguments, code=3)
        assert not ACTING & set(result.stdout + result.stderr)
        assert "\\x1b[2J" in result.stdout + result.stderr


def test_a_terminal_is_not_acted_on(tmp_path):
    """Where stdout is a terminal, the only escapes are those of gemmhub's own colours."""
    (tmp_path / "x.jsonl").write_text(records.Record(EVIL, "cpu", EVIL, EVIL, 1.0, {}, EVIL).line() + "\n")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "400"}
    environment.pop("NO_COLOR", None)
    subprocess.run([*GEMMHUB, "tune", "--show", "x.jsonl"], cwd=tmp_path, env=environment, stdout=theirs, check=True)
    time.sleep(0.05)
    told = os.read(ours, 100_000).decode()
    for handle in (ours, theirs):
        os.close(handle)
    assert "[red]bold[/red]" in told
    assert "\\x1b[2J" in told
    assert "\x1b[2J" not in told
    assert not {"\x07", "\x9b", "\u202e"} & set(told)


def test_headers_and_coloured_cells_are_safe(capsys):
    screen.show(
        Table((f"header{EVIL}", "b"), [(f"failed {EVIL}", "x\ny")], marked=(f"header{EVIL}",)),
        Facts([(f"label{EVIL}", f"passed {EVIL}")], marked=(f"label{EVIL}",)),
        f"text{EVIL}",
    )
    told = capsys.readouterr().out
    assert not ACTING & set(told)
    assert told.count("\\x1b[2J") == 5


def test_the_page_lists_the_exit_codes():
    page = (os.path.dirname(os.path.dirname(os.path.dirname(__file__)))) + "/docs/command-line.md"
    with open(page, encoding="utf-8") as stream:
        text = stream.read()
    for code in (0, errors.WRONG, errors.UNUSABLE, errors.FAILED, errors.INTERRUPTED, errors.CLOSED):
        assert f"\n| {code} | " in text
        assert str(code) in main.help
