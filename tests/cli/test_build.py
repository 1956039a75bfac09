"""``gemmhub build NAME``: work of plugins in advance, with fake entry points instead of installed plugins."""

from __future__ import annotations

import operator

import pytest

from gemmhub.cli import build
from gemmhub.cli.build import Job


@pytest.fixture
def bring(entry_points):
    """``bring(name, function, module="builders")``: as if an installed distribution built ``name`` by ``function``."""
    return lambda name, function, module="builders": entry_points(build.GROUP, name, module, jobs=function)


def fine():
    return [Job("kernel 1", operator.concat, ("com", "piled")), Job("kernel 2", str.lower, ("COMPILED",))]


def test_jobs_are_done_and_listed(run, bring):
    bring("hopper", fine)
    result = run("build", "hopper")
    assert sorted(line.split("] ")[1] for line in result.stderr.splitlines()) == [
        "kernel 1: compiled", "kernel 2: compiled",
    ]  # fmt: skip
    assert "[2/2]" in result.stderr
    told = result.stdout
    assert "built     hopper\n" in told
    assert "compiled  2\n" in told


def test_as_json(run, bring):
    bring("hopper", fine)
    data = run.json("build", "hopper", "--json", "--jobs", 1)
    assert data["ok"] is True
    assert data["results"] == [{"job": f"kernel {i}", "ok": True, "text": "compiled"} for i in (1, 2)]
    assert data["seconds"] > 0


def test_what_fails_is_the_exit_code(run, bring):
    bring("hopper", fine)
    bring("hopper", lambda: [Job("kernel 3", operator.truediv, (1, 0))], "others")
    told = run("build", "hopper", code=3).stdout
    assert "compiled  2\n" in told
    assert "kernel 3  failed   ZeroDivisionError: division by zero\n" in told


def test_nothing_to_do(run, bring):
    bring("hopper", list)
    assert run.json("build", "hopper", "--json")["results"] == []


def test_what_can_be_built_is_named(run, bring):
    assert "allowed: none, as no installed plugin builds anything" in run.error("build", "hopper")
    bring("hopper", fine)
    bring("ampere", fine, "others")
    assert run.error("build", "pascal") == ("error: no installed plugin builds 'pascal'; allowed: ampere, hopper\n")


def test_a_plugin_that_breaks(run, bring):
    bring("hopper", lambda: operator.truediv(1, 0))
    assert "builders:jobs: ZeroDivisionError: division by zero" in run.error("build", "hopper", code=3)
    bring("others", lambda: ["kernel"], "others")
    assert "it returned a str, not a Job" in run.error("build", "others", code=3)
    bring("none", None, "none")
    assert "none:jobs: TypeError" in run.error("build", "none", code=3)
