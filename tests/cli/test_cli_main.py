"""The entry point, its imports, its output, and the commands of docs/command-line.md."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest

import gemmhub
from gemmhub._base import units
from gemmhub.cli import screen
from gemmhub.cli.main import COMMANDS, main

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def test_every_command_is_listed_and_has_help(run):
    told = run("--help").stdout
    for name, (_, summary) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", told, re.MULTILINE)
        assert "Usage: gemmhub " + name in run(name, "--help").stdout
        assert run(name, "-h").stdout == run(name, "--help").stdout
    assert run("--version").stdout == f"gemmhub {gemmhub.__version__}\n"
    assert "No such command" in run.error("nope")


def test_every_option_has_help():
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command.name == name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (name, parameter.name)


def python(*arguments, cwd, **options):
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False, **options)


def test_help_imports_no_command(tmp_path):
    """The imports of a command happen when it is called."""
    script = (
        "import sys\nfrom gemmhub.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'matplotlib', 'pluggy', 'importlib.metadata', 'gemmhub.cli.measurements',"
        " 'gemmhub.cli.screen'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = python("-c", script, cwd=tmp_path)
    assert done.stdout.endswith("loaded: []\n"), done.stdout + done.stderr


def test_as_a_process(tmp_path, rng):
    a = rng.standard_normal((6, 4))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", a.T)
    done = python("-m", "gemmhub", "matmul", "a.npy", "b.npy", "--out", "c.npy", "--explain", "--check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert gemmhub.spot_check(a, a.T, np.load(tmp_path / "c.npy"))
    done = python("-m", "gemmhub", "matmul", "a.npy", "a.npy", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: a, b: shapes")
    np.save(tmp_path / "c.npy", a @ a.T + 1)
    assert python("-m", "gemmhub", "spot-check", "a.npy", "b.npy", "c.npy", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize("no_color", [False, True])
def test_colours_on_a_terminal(tmp_path, no_color):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60"}
    environment.pop("NO_COLOR", None)
    environment |= {"NO_COLOR": "1"} if no_color else {}
    done = subprocess.run(
        [sys.executable, "-m", "gemmhub", "explain", "3", "4", "5"], cwd=tmp_path, env=environment, stdout=theirs
    )
    os.close(theirs)
    told = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 0
    assert ("\x1b[1;32mchosen" in told) is not no_color
    plain = re.sub(r"\x1b\[[\d;]*m", "", told)
    assert max(len(line.rstrip()) for line in plain.splitlines()) <= 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (2.0, "2.00 s"), (0.99996, "1.00 s"), (0.0123, "12.3 ms"), (9.9996e-4, "1.00 ms"),
        (5.678e-6, "5.68 us"), (4.2e-8, "42.0 ns"), (1234.5, "1230 s"), (0.0, "0 ns"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert units.duration(seconds) == text


def test_numbers():
    assert [units.number(x) for x in (0.0, 999.6, 0.012345, 99.96, float("inf"))] == [
        "0",
        "1000",
        "0.0123",
        "100",
        "inf",
    ]
    assert [units.multiple(x) for x in (None, 0.97, 12.34, 312.4, 0.0123)] == [
        "-",
        "0.97x",
        "12.3x",
        "312x",
        "0.0123x",
    ]


def test_json_has_no_nonstandard_constants():
    data = {"a": (float("nan"), float("-inf"), 1.5), "b": 1 + 2j, "c": Path("x"), 3: None}
    assert screen.plain(data) == {"a": ["nan", "-inf", 1.5], "b": [1.0, 2.0], "c": "x", "3": None}


# ---------------------------------------------------------------- the page


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within matplotlib
def test_the_page_is_true(run):
    """Runs every command of the page, in order, in one directory, and looks for the lines it shows.

    Numbers and alignment may differ, ``...`` stands for any lines or the rest of one, and ``# exit code 1`` is checked.
    """
    seen = set()
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            words = shlex.split(command, comments=True)
            code = int(found[1]) if (found := re.search(r"# exit code (\d)", command)) else 0
            if words[0] == "python":
                done = python(*words[1:], cwd=run.folder)
                assert done.returncode == code, done.stderr
                continue
            assert words[0] == "gemmhub", command
            result = run(*words[1:], code=code)
            seen.add(next((word for word in words[1:] if word in COMMANDS), None))
            printed = iter([*map(_words, result.stdout.splitlines()), *map(_words, result.stderr.splitlines())])
            for line in shown.splitlines():
                if line.strip() and line != "...":
                    start = _words(line).removesuffix(" ...")
                    whole = start == _words(line)
                    found = any(other == start if whole else other.startswith(start) for other in printed)
                    assert found, f"{command}: not printed: {line}"
    assert seen >= set(COMMANDS)


def test_the_page_lists_every_option():
    page = PAGE.read_text(encoding="utf-8")
    context = click.Context(main)
    for name in COMMANDS:
        section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
        shared = page.split("\n## Options of a product\n")[1].split("\n## ")[0]
        for parameter in main.get_command(context, name).params:
            if isinstance(parameter, click.Option):
                for option in parameter.opts:
                    assert f"`{option}" in section or f"`{option}" in shared, (name, option)


def _words(line):
    """``line`` without numbers (and their units) and alignment."""
    line = re.sub(r"(?<![A-Za-z_\d.])-?\d[\d.]*(e[+-]?\d+)?x?(?: (us|ms|s|ns)\b)?", "#", line)
    return " ".join(line.split())
