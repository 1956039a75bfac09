"""The lines that a suite prints while it runs, and its exit code."""

from __future__ import annotations

import sys

import pytest
import run_suite


def run(monkeypatch, capsys, program):
    monkeypatch.setattr(sys, "argv", ["run_suite.py", "suite", sys.executable, "-c", program])
    return run_suite.main(), capsys.readouterr().out.splitlines()


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.setattr(run_suite, "FOLDER", tmp_path / "logs")


def test_a_suite_that_passes_prints_when_it_starts_and_how_it_ends(monkeypatch, capsys, tmp_path):
    code, (first, end, closing) = run(monkeypatch, capsys, "print('dots'); print('=== 3 passed in 1s ===')")
    assert code == 0
    assert first == "suite: started"
    assert end.startswith("suite: passed after ")
    assert closing == "=== 3 passed in 1s ==="
    assert (tmp_path / "logs" / "suite.log").read_text().startswith("dots")


def test_the_output_of_a_suite_that_fails_is_printed(monkeypatch, capsys):
    program = "import sys; print('the reason'); print('=== 1 failed ==='); sys.exit(3)"
    code, lines = run(monkeypatch, capsys, program)
    assert code == 3
    assert "the reason" in lines
    assert lines[-2].startswith("suite: failed after ")
    assert lines[-1] == "=== 1 failed ==="


def test_a_line_a_minute_names_the_progress(monkeypatch, capsys):
    monkeypatch.setattr(run_suite, "MINUTE", 0.2)
    _, lines = run(monkeypatch, capsys, "import time; print('.. [  7%]\\n.. [ 35%]', flush=True); time.sleep(1.5)")
    assert any(line.startswith("suite: 35% after ") for line in lines)
