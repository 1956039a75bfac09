"""Printed results: aligned text, one screen at the prompt, colours in terminals alone."""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub import Absent
from gemmhub._base import tables
from gemmhub._base.report import Report
from gemmhub._base.tables import Bar, Facts, Table
from gemmhub._choice.status import Statuses
from gemmhub.cli import screen
from plugins import add

ONE = np.ones((3, 2), np.float32), np.ones((2, 4), np.float32)
ESCAPE = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True, repr=False)
class Long(Report):
    rows: int

    def _parts(self):
        yield Facts([("problem", "p " * 200), ("check", "passed (all)")], marked=("check",))
        yield Table(("name", "verdict", "time", "remarks"), [
            (f"x{i}", "failed" if i else "passed", i, "one\ntwo " + "word " * 40) for i in range(self.rows)
        ], right=("time",), marked=("verdict",))  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


def test_columns_are_aligned():
    text = tables.text([Table(("a", "time", "remarks"), [("x", 1, "y"), ("wide", 200, "one\ntwo")], right=("time",))])
    assert text.splitlines() == ["a     time  remarks", "x        1  y", "wide   200  one", "            two"]
    assert tables.text([Facts([]), Facts([("a", 1), ("long", 2)]), Facts([]), "x"]) == "a     1\nlong  2\n\nx"
    wide = tables.text([Facts([("\u4e2d\u6587", "x"), ("abcde", "y"), ("e\u0301", "z")])])
    assert wide.splitlines() == ["\u4e2d\u6587   x", "abcde  y", "e\u0301      z"]


@pytest.mark.parametrize("width", [30, 60, 100, 200])
def test_no_line_is_wider_than_the_terminal(width):
    lines = tables.text(Long(3)._parts(), width=width).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert (words.count("word"), words.count("p")) == (3 * 40, 200)  # nothing is lost
    assert tables.text([Facts([("a", "x" * 95)])], width=40).split() == ["a", "x" * 37, "x" * 37, "x" * 21]


def test_the_prompt_gets_one_screen():
    text = repr(Long(500))
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) <= 26
    assert "... and 480 more; print() has all" in text
    assert len(str(Long(500)).splitlines()) > 1000


def test_colours_are_for_terminals(monkeypatch):
    painted = "\x1b[1;31mfailed\x1b[0m"
    assert not ESCAPE.search(repr(Long(2)) + str(Long(2)))
    monkeypatch.setattr("sys.stdout", Terminal())
    assert painted in repr(Long(2))
    assert "\x1b[32mpassed\x1b[0m (all)" in repr(Long(2))
    assert ESCAPE.sub("", repr(Long(2))) != repr(Long(2))
    monkeypatch.setenv("TERM", "dumb")
    assert not ESCAPE.search(repr(Long(2)))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert painted in repr(Long(2))
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert painted in repr(Long(2))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not ESCAPE.search(repr(Long(2)))
    monkeypatch.setattr("sys.stdout", Terminal())
    assert not ESCAPE.search(repr(Long(2)))
    assert not ESCAPE.search(str(Long(2)))


def test_colours_change_no_column(monkeypatch):
    plain = tables.text(Long(3)._parts(), width=80)
    assert ESCAPE.sub("", tables.text(Long(3)._parts(), width=80, colour=True)) == plain


@pytest.mark.parametrize("columns", [40, 120])
def test_the_prompt_is_as_wide_as_the_terminal(monkeypatch, columns):
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    widest = max(len(ESCAPE.sub("", line)) for line in repr(Long(3)).splitlines())
    assert columns - 3 <= widest <= columns


def test_a_closed_stream_has_no_colours():
    closed = io.StringIO()
    closed.close()
    assert tables.terminal(closed) == tables.terminal(None) == (False, None)


def test_a_single_result_is_not_cut(monkeypatch):
    """One backend's state and verdict keep all of their remedy, at the width of the terminal."""
    remedy = "set A_HOME " * 20 + "and run it again"
    add(Scripted("homeless", probe=Absent("no home was found", remedy)))
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    for result in (gemmhub.backends()["homeless"], gemmhub.explain(*ONE)["homeless"]):
        text = ESCAPE.sub("", repr(result))
        assert max(map(len, text.splitlines())) <= 60
        assert remedy in " ".join(text.split())
        assert "..." not in text


def test_an_empty_last_column_takes_no_room():
    rows = [("x" * 30, "y" * 20, ""), ("x", "y", "")]
    (header, *others) = tables.text([Table(("name", "state", "remarks"), rows)], width=60).splitlines()
    assert header.split() == ["name", "state"]
    assert [line.split() for line in others] == [list(row[:2]) for row in rows]
    assert "remarks" in tables.text([Table(("name", "state", "remarks"), rows)])


@pytest.mark.parametrize("results", [gemmhub.backends, lambda: gemmhub.explain(*ONE)])
def test_an_unlisted_backend_has_the_listed_ones_in_its_error(results):
    with pytest.raises(KeyError, match=r"no backend 'nump' is listed; did you mean 'numpy'\?; listed: numpy"):
        results()["nump"]
    assert "nump" not in results()


def test_bars():
    assert tables.bars([1.0, 2.0, None, 0.001]) == [0.5, 1.0, "", 0.0005]
    assert [str(x) for x in tables.bars([1.0, 2.0, 0.001])] == ["#####", "##########", "#"]
    assert tables.bars([None, 3.0]) == ["", ""]
    assert isinstance(tables.bars([1.0, 2.0])[0], Bar)


def test_equal_rows_are_one():
    rows = [("a", "absent", "no home"), ("b", "ready", ""), ("c", "absent", "no home"), ("d", "absent", "")]
    assert tables.folded(rows) == [
        ("2 backends", "absent", "a, c: no home"), ("b", "ready", ""), ("d", "absent", ""),
    ]  # fmt: skip
    assert tables.folded([("a", ""), ("b", "")]) == [("2 backends", "a, b")]


RESULTS = {
    "explain": lambda: gemmhub.explain(*ONE), "backends": gemmhub.backends, "plan": lambda: gemmhub.plan(*ONE),
    "verdict": lambda: gemmhub.explain(*ONE)["numpy"], "state": lambda: gemmhub.backends()["numpy"],
    "compare": lambda: gemmhub.compare(*ONE), "tune": lambda: gemmhub.tune(*ONE),
    "spot_check": lambda: gemmhub.spot_check(*ONE, ONE[0] @ ONE[1]),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_is_a_report(name, capsys):
    """It fits one screen at the prompt, and the command line prints what str() is."""
    for i in range(12):
        add(Scripted(f"absent{i}", probe=Absent("no home was found", "set A_HOME " * 20)))
    result = RESULTS[name]()
    assert isinstance(result, Report)
    shown = repr(result)
    assert len(shown.splitlines()) <= 24
    assert max(map(len, shown.splitlines())) <= 100
    assert not ESCAPE.search(shown)
    screen.show(result)
    assert capsys.readouterr().out == f"{result}\n"
    assert result._repr_html_().startswith("<table")
    if name in ("explain", "backends"):
        assert "12 backends" in shown
        assert "absent0, absent1, absent2" in shown


def test_states_are_a_mapping():
    add(Scripted("away", probe=Absent("no card", "buy one")))
    states = gemmhub.backends()
    assert states["away"].state == "absent"
    assert "away" in states
    assert "nobody" not in states
    assert list(states) == [name for name, status in states.items() if status.name == name]
    assert len(states) == len(list(states.values()))
    with pytest.raises(KeyError):
        states["nobody"]
    assert len(Statuses()) == 0


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_the_size_of_a_real_terminal_is_used():
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream:
        assert tables.terminal(stream)[1] is not None
    os.close(ours)
