"""First runs: the outcome of a program that passes, dies or hangs, whether it is kept, and what it depends on."""

from __future__ import annotations

import os
import signal

import pytest

from gemmhub import Refusal
from gemmhub.kit.native import cache, first_run

COUNTING = 'echo run >> "$(dirname "$0")/log"; '


@pytest.fixture
def program(tmp_path):
    """An executable that runs shell code."""

    def make(code: str, name: str = "check"):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{COUNTING}{code}\n")
        path.chmod(0o700)
        return path

    return make


@pytest.fixture
def runs(tmp_path):
    return lambda: len((tmp_path / "log").read_text().splitlines()) if (tmp_path / "log").exists() else 0


def test_a_success_is_kept_with_its_output(program, runs) -> None:
    check = program('echo "$1 right"')
    for _ in range(2):
        found = first_run(check, ("3",))
        assert (found.output, found.failure) == ("3 right\n", "")
        assert str(cache.folder().path) in found.kept
    assert runs() == 1


@pytest.mark.parametrize("name", ["SEGV", "BUS", "ILL", "FPE", "ABRT", "SYS"])
def test_a_fault_is_kept_with_the_name_of_its_signal(name, program, runs) -> None:
    check = program(f"ulimit -c 0; echo 1 right; kill -{name} $$")
    for _ in range(2):
        found = first_run(check)
        assert found.signal == getattr(signal, f"SIG{name}")
        assert f"(SIG{name})" in found.failure
        assert found.output == "1 right\n"
        assert found.kept in found.remedy
    assert runs() == 1


def test_a_hang_ends_in_time_and_is_kept(program, runs) -> None:
    check = program("sleep 600")
    for _ in range(2):
        found = first_run(check, patience=0.3)
        assert found.hung
        assert "did not end within 0.3 s" in found.failure
    assert runs() == 1


@pytest.mark.parametrize(("code", "failure"), [("exit 2", "exit code 2"), ("kill -KILL $$", "SIGKILL")])
def test_what_something_else_ended_is_tried_again(code, failure, program, runs) -> None:
    """A lack of memory, for example."""
    check = program(code)
    for _ in range(2):
        found = first_run(check)
        assert failure in found.failure
        assert not found.kept
    assert runs() == 2


def test_the_outcome_depends_on_contents_arguments_and_facts(program, runs, tmp_path) -> None:
    check, library = program("echo right"), tmp_path / "library"
    library.write_text("one")
    first_run(check, (library, "1"), facts=("avx2",))
    others = [
        lambda: first_run(check, (library, "2"), facts=("avx2",)),
        lambda: first_run(check, (library, "1"), facts=("avx512",)),
        lambda: first_run(check, (library, "1", "avx2")),
        lambda: (library.write_text("two"), first_run(check, (library, "1"), facts=("avx2",))),
        lambda: first_run(program("echo right; true"), (library, "1"), facts=("avx2",)),
    ]
    for count, other in enumerate(others, 2):
        other()
        assert runs() == count
        other()
        assert runs() == count
    moved = tmp_path / "moved"
    library.rename(moved)
    first_run(program("echo right; true"), (moved, "1"), facts=("avx2",))
    assert runs() == len(others) + 1  # by content, not by path


def test_nothing_runs_where_nothing_can_be_started(program, runs, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    check = program("echo right")
    monkeypatch.setattr("subprocess.Popen", refuse)
    found = first_run(check)
    assert isinstance(found, Refusal)
    assert "cannot be started" in found.reason
    assert "allow child processes" in found.remedy
    assert runs() == 0


def test_a_program_that_an_installer_made_unexecutable_is_copied(program) -> None:
    check = program("echo right")
    check.chmod(0o600)
    found = first_run(check)
    assert found.output == "right\n"
    assert not os.access(check, os.X_OK)


def test_a_missing_program_is_refused(tmp_path) -> None:
    found = first_run(tmp_path / "none")
    assert isinstance(found, Refusal)
    assert "cannot be read" in found.reason


def test_a_damaged_outcome_is_not_used(program, runs) -> None:
    check = program("echo right")
    first_run(check)
    for path in cache.folder().path.glob("first-run-*"):
        path.write_bytes(path.read_bytes()[:-3])
    assert first_run(check).output == "right\n"
    assert runs() == 2
