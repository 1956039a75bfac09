"""Results in notebooks: escaped HTML tables beside the unchanged text."""

from __future__ import annotations

import inspect
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import Scripted

import gemmhub
from gemmhub import Refusal
from gemmhub._base import markup
from gemmhub._base.tables import Facts, Table
from gemmhub._choice.status import BackendStatus, Statuses
from gemmhub._measure.compare import Compared, Comparison
from gemmhub._measure.tune import Tuned, TuneResult
from gemmhub._measure.tune_function import FunctionTuneResult, TunedProduct
from gemmhub.cli import measurements
from gemmhub.verdict import Decision
from plugins import add

ONE = np.ones((3, 2), np.float32), np.ones((2, 4), np.float32)
EVIL = "<script>alert('x')</script> & \"quoted\"\x1b[2J\u202etxt\nsecond"


class Tables(HTMLParser):
    """The rows of all tables as texts; fails on elements that are not closed, or not of tables."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.rows, self.open = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in ("table", "thead", "tbody", "tr", "th", "td", "i", "br", "span", "div")
        assert {name for name, _ in attributes} <= {"style", "scope", "colspan"}
        if tag == "br":
            self.rows[-1][-1] += "\n"
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.rows[-1][-1] += data


def rows(shown):
    return Tables(shown._repr_html_()).rows


def test_a_decision():
    decision = gemmhub.explain(*ONE, backend="numpy")
    shown = rows(decision)
    assert shown[0] == ["problem", str(decision.problem)]
    assert shown[1] == ["chosen", f"numpy ({decision.why})"]
    assert shown[2] == ["backend", "verdict", "time", "remarks"]
    assert [tuple(row) for row in shown[3 : 3 + len(decision.rows())]] == decision.rows()
    assert ["setting", "backend from the call"] in shown
    assert 'color:#2da44e;font-weight:bold">chosen</span><' in decision._repr_html_()


def test_a_decision_of_nothing():
    problem = gemmhub.explain(*ONE).problem
    assert rows(Decision(problem, None, "no backend", (), {}))[1:] == [
        ["chosen", "none (no backend)"], ["backend", "verdict", "time", "remarks"], ["none"],
    ]  # fmt: skip


def test_a_spot_check():
    a, b = ONE
    right, wrong = gemmhub.spot_check(a, b, a @ b), gemmhub.spot_check(a, b, a @ b + 1)
    assert rows(right) == [
        ["verdict", "passed (recomputed: 12 elements recomputed)"], ["reason", right.reason],
    ]  # fmt: skip
    assert rows(wrong)[0][1].startswith("failed (")
    assert "expected 2" in rows(wrong)[1][1]
    assert str(right) == f"verdict  passed (recomputed: 12 elements recomputed)\nreason   {right.reason}"


def test_backends():
    found = gemmhub.backends()
    shown = rows(found)
    assert shown[0] == ["backend", "state", "details"]
    assert [row[0] for row in shown[1:]] == list(found)
    assert shown[1][:2] == ["numpy", "ready"]
    assert np.__version__ in shown[1][2]
    assert rows(Statuses())[1:] == [["none"]]


def test_a_plan():
    plan = gemmhub.plan(*ONE)
    shown = dict(rows(plan))
    assert shown["plan for"] == str(plan.decision.problem)
    assert shown["kernel"] == plan.kernel.description
    assert isinstance(plan, gemmhub.Plan)
    assert not inspect.isclass(plan)  # whose methods a notebook does not call


def test_a_comparison():
    comparison = gemmhub.compare(*ONE)
    shown = rows(comparison)
    assert shown[:2] == [
        ["problem", comparison.problem], ["backend", "verdict", "error/bound", "max difference", "remarks"],
    ]  # fmt: skip
    assert shown[2][:2] == ["numpy", "passed"]
    assert shown[-1] == ["deviating", "none"]
    assert rows(Comparison("p", ()))[2:] == [["none"], ["deviating", "none"]]
    assert rows(Comparison("p", (Compared("x", "failed", 2.0, 1.0, "one\ntwo"),)))[2][4] == "one"


def test_what_tuning_found():
    timed = Tuned("numpy", "default", 2e-3), Tuned("numpy", "other", 4e-3), Tuned("x", "y", None, "wrong: z")
    result = TuneResult("p", timed, None, flops=4e6)
    assert rows(result)[1:] == [
        ["backend", "candidate", "time", "GFLOP/s", "", "remarks"], ["numpy", "default", "2.00 ms", "2.00", "", ""],
        ["numpy", "other", "4.00 ms", "1.00", "", ""], ["x", "y", "-", "-", "", "wrong: z"],
        ["recorded", "no: records are off"],
    ]  # fmt: skip
    assert "width:50px" in result._repr_html_()
    assert str(result).splitlines()[3].split()[-1] == "#####"


def test_what_tuning_of_a_function_found():
    slow, fast = Tuned("numpy", "default", 4e-3), Tuned("x", "y", 1e-3)
    products = TunedProduct("p", 3, slow, "estimated", (fast, slow)), TunedProduct("q", 1, fast, "measured", (fast,))
    skipped = TunedProduct("r", 2, Tuned("z", "z", None), "estimated", (), "not tuned: no memory")
    result = FunctionTuneResult((*products, skipped), None)
    assert rows(result) == [
        ["function", "6 calls of 3 products"],
        ["calls", "chosen", "time", "fastest", "tuned", "gain", "product"],
        ["3", "numpy default", "4.00 ms", "x y", "1.00 ms", "4.00x", "p"],
        ["1", "x y", "1.00 ms", "x y", "1.00 ms", "1.00x", "q"],
        ["2", "z z", "-", "-", "-", "-", "r; not tuned: no memory"],
        ["total", "13.0 ms before, 4.00 ms tuned: 3.25x"], ["recorded", "no: records are off"],
    ]  # fmt: skip


def test_a_benchmark():
    case = measurements.run_case(8, 8, 8, rounds=1)
    shown = rows(case)
    assert shown[1] == ["contender", "median", "range", "GFLOP/s", "vs numpy.matmul", "remarks"]
    assert {row[0] for row in shown[2:]} == {"numpy (through gemmhub)", "numpy.matmul"}
    assert all(row[4].endswith("x") for row in shown[2:])


def everything():
    add(Scripted("evil", refusal=Refusal(EVIL, EVIL)))
    yield gemmhub.explain(*ONE)
    yield Statuses((BackendStatus(EVIL, EVIL, EVIL, "absent", reason=EVIL, remedy=EVIL),))
    yield Comparison(EVIL, (Compared(EVIL, EVIL, 1.0, 1.0, EVIL),))
    tuned = (Tuned(EVIL, EVIL, None, EVIL),)
    yield TuneResult(EVIL, tuned, None)
    yield FunctionTuneResult((TunedProduct(EVIL, 1, tuned[0], "estimated", tuned, EVIL),), None)


def test_texts_are_escaped():
    for shown in everything():
        html = shown._repr_html_()
        assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quoted&quot;\\x1b[2J\\u202etxt" in html
        assert not set("\x1b\u202e\n") & set(html)
        assert any("<script>alert('x')</script>" in cell for row in rows(shown) for cell in row)


def test_empty_tables():
    assert markup.facts(Facts([])) == ""
    assert Tables(markup.table(Table((), []))).rows == [[], ["none"]]
    assert Tables(markup.table(Table(("a",), []), empty="<nothing>")).rows == [["a"], ["<nothing>"]]


@pytest.mark.parametrize("code", ["import gemmhub", "import gemmhub; gemmhub.matmul([[1.0]], [[1.0]])"])
def test_nothing_is_loaded_before_a_notebook_asks(code):
    script = f"import sys, numpy\n{code}\nassert 'gemmhub._base.markup' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
