"""The public types in a user's program: tests/typing/program.py under mypy --strict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "typing" / "program.py"


def checked(path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", "", str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=PROGRAM.parents[2])


def test_a_users_program():
    """Correct lines pass, and wrong ones are reported: an unused ignore is an error itself."""
    done = checked(PROGRAM)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_wrong_is_reported(tmp_path):
    lines = PROGRAM.read_text(encoding="utf-8").split("\n")
    wrong = [line.partition("  # type: ignore")[0] for line in lines if "# type: ignore" in line]
    right = [line for line in lines if "# type: ignore" not in line]
    (tmp_path / "wrong.py").write_text("\n".join([*right, *wrong]))
    done = checked(tmp_path / "wrong.py")
    reported = {int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line}
    assert reported == set(range(len(right) + 1, len(right) + 1 + len(wrong)))
