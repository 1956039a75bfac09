"""The HTML report of gemmhub bench, and progress on terminals."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser

import pytest

import gemmhub
from gemmhub._base.progress import report as step
from gemmhub._base.progress import watched
from gemmhub.cli import figures, measurements, report
from gemmhub.cli.measurements import Case, HostTime, Measurement
from gemmhub.kit import install

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within matplotlib, of its own dependencies

EVIL = "<script>alert(1)</script> $x & \x1b[2J"
VOID = ("meta", "br")


class Page(HTMLParser):
    """An HTML page: the rows of its tables, its ids, and what it refers to. Fails on elements that are not closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.rows, self.ids, self.references, self.tags = [], [], [], [], Counter()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href"):
                self.references.append(value)
            self.references += re.findall(r"url\((.*?)\)", value or "")
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture
def small(monkeypatch):
    """A short measurement of bandwidth."""
    monkeypatch.setattr(measurements, "_COPIED_CACHES", 1 / 16)


def test_a_report(run, small, reference):
    pytest.importorskip("matplotlib")
    run("bench", "--shape", "8,16x4,8x32", "--rounds", 2, "--host", "--html", "r.html")
    text = (run.folder / "r.html").read_text()
    page = Page(text)
    facts = dict(row for row in page.rows if len(row) == 2)
    assert facts["command"] == "gemmhub bench --shape 8,16x4,8x32 --rounds 2 --host --html r.html"
    assert facts["clock"] == "host, 2 rounds"
    assert f"gemmhub {gemmhub.__version__}" in facts["versions"]
    assert facts["copy"].endswith("GB/s, read and write together")
    assert facts["backend reference"] == "scripted 1"
    results = [row for row in page.rows if len(row) == 8]
    assert results[0][2:] == ["contender", "median", "range", "GFLOP/s", "vs numpy.matmul", "remarks"]
    assert len(results) == 1 + 4 * 3
    assert {row[2] for row in results[1:]} == {"numpy (through gemmhub)", "numpy.matmul", "reference"}
    assert [row[0] for row in results if row[0]][1:] == ["8x4x32", "8x8x32", "16x4x32", "16x8x32"]
    assert ["m x n x k", "dtype", "contender", "call", "host time", "vs numpy.matmul"] in page.rows
    # plot, roofline and heat map, and nothing from elsewhere
    assert page.tags["svg"] == 3
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == 0
    inner = {reference for reference in page.references if not reference.startswith("data:image/png;base64,")}
    assert {reference[:1] for reference in inner} == {"#"}
    assert {reference[1:] for reference in inner} <= set(page.ids)
    assert {name for name, count in Counter(page.ids).items() if count > 1} == set()
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)


@pytest.mark.parametrize(("shapes", "plots"), [("8", 2), ("8,16", 2), ("8,16x8x8", 3)])
def test_plots_for_which_there_are_numbers(run, small, shapes, plots):
    """No heat map of one product, nor of m, n and k that all differ."""
    pytest.importorskip("matplotlib")
    run("bench", "--shape", shapes, "--rounds", 1, "--html", "r.html")
    assert Page((run.folder / "r.html").read_text()).tags["svg"] == plots


def test_a_report_without_matplotlib(run, small, monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)
    said = run("bench", "--shape", 8, "--rounds", 1, "--json", "r.json", "--html", "r.html").stdout
    assert "\n\nwritten  r.json\nwritten  r.html\n" in said
    assert "\n\n\n" not in said
    text = (run.folder / "r.html").read_text()
    assert Page(text).tags["svg"] == 0
    assert f"Not drawn: matplotlib is not installed. {install.command('gemmhub[plot]')}" in text.replace("&#x27;", "'")


def test_a_report_of_what_did_not_run(run, small, choosy):
    run("bench", "--shape", 8, "--rounds", 1, "--backend", "choosy", "--baseline", "choosy", "--html", "r.html", code=3)
    page = Page((run.folder / "r.html").read_text())
    assert page.tags["svg"] == 0
    assert any("it is Monday; wait a day" in row[-1] for row in page.rows)


def test_texts_of_a_report_are_escaped():
    rows = (
        Measurement(EVIL, EVIL, "passed", 1.0, 1.0, 1.0, (1.0,), 1.0, 1.0, EVIL),
        Measurement("x", EVIL, "failed", remark=EVIL),
    )
    host = (HostTime(EVIL, EVIL, 1.0, 1.0),)
    case = Case(EVIL, 1, 1, 1, EVIL, EVIL, 2.0, 3.0, "cpu", "numpy", "host", 1, EVIL, rows, host)
    document = {
        "command": ["gemmhub", EVIL], "started": EVIL, "device": {"name": EVIL, "index": EVIL, "library": EVIL},
        "clock": EVIL, "rounds": 1, "versions": {EVIL: EVIL, "backends": {EVIL: {EVIL: EVIL}}},
        "copy_bytes_per_second": None, "warnings": [EVIL],
    }  # fmt: skip
    text = report.page(document, [case])
    page = Page(text)
    assert page.tags["script"] == 0
    assert "\x1b" not in text
    assert any("<script>alert(1)</script> $x & \\x1b[2J" in cell for row in page.rows for cell in row)


@pytest.mark.parametrize("file", ["nowhere/r.html", "."])
def test_where_no_report_can_be_written(run, file):
    assert run.error("bench", "--shape", 8, "--html", file)


def test_sizes_without_an_option(run):
    data = run.json("bench", 8, 4, 2, "--shape", "8x4x2,4", "--rounds", 1, "--json", "-")
    assert [(case["m"], case["n"], case["k"]) for case in data["cases"]] == [(8, 4, 2), (8, 4, 4)]
    data = run.json("bench", "8x4x2", "--rounds", 1, "--json", "-")
    assert [(case["m"], case["n"], case["k"]) for case in data["cases"]] == [(8, 4, 2)]
    assert "8 8 are two sizes; K is missing. Give three sizes M N K or --shape MxNxK" in run.error("bench", 8, 8)


# ---------------------------------------------------------------- progress


def test_steps_are_reported_to_the_watcher():
    seen = []
    step("nobody watches")
    with watched(seen.append):
        step("one")
        with watched(lambda text: None):
            step("inner")
        step("two")
    step("nobody watches")
    assert seen == ["one", "two"]


COMMANDS = {
    "bench": (["bench", "--shape", "8,16", "--rounds", "2"], ["8x8x8 float32 rrr", "16x16x16 float32 rrr"]),
    "tune": (["tune", "8", "8", "8"], ["tuning 8x8x8", "tuning 8x8x8: numpy default", "checking results"]),
    "compare": (["compare", "8", "8", "8"], ["comparing: numpy"]),
    "doctor": (["doctor"], ["looking for devices", "self-test"]),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_terminals_only(tmp_path, name, terminal):
    arguments, steps = COMMANDS[name]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "gemmhub", *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs if terminal else subprocess.PIPE
    )
    os.close(theirs)
    told = ""
    try:
        while part := os.read(ours, 100_000).decode():
            told += part
    except OSError:  # the end of what a terminal was sent
        pass
    os.close(ours)
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
    if terminal:
        assert all(text in told for text in steps), told
    else:
        others = [
            line for line in done.stderr.splitlines() if not line.startswith((b"tuned ", b"warning: "))
        ]  # warnings of a loaded machine
        assert (told, others) == ("", [])
