"""``gemmhub doctor`` with plugins that hang or end the process: they are named, and the others are reported."""

from __future__ import annotations

import json
import signal

import pytest

from gemmhub._choice import registry as registered
from gemmhub.cli import doctor_probe
from plugins import GOOD, Site

BACKEND = """
import os, signal, time
from gemmhub import Absent, Backend, BackendDescription, hookimpl
class Bad(Backend):
    name = "bad"
    def probe(self): {probe}
    def offer(self, problem): ...
    def prepare(self, problem, candidate, workspace_limit): ...
def load():
    {load}
    return Bad()
@hookimpl
def gemmhub_backends():
    {hook}
    return [BackendDescription("bad", load, "", contract=2)]
{imported}
"""
FAULTS = {
    "import hangs": ("imported", "time.sleep(30)", "importing the plugin did not end within 3 s"),
    "import exits": ("imported", "os._exit(3)", "importing the plugin ended the process with exit code 3"),
    "hook aborts": ("hook", "os.abort()", "asking the plugin for its backends ended the process by signal 6 (SIGABRT)"),
    "load is killed": (
        "load", "os.kill(os.getpid(), signal.SIGSEGV)",
        "loading the backend 'bad' ended the process by signal 11 (SIGSEGV)",
    ),
    "probe hangs": ("probe", "signal.pause()", "probing for the backend 'bad' did not end within 3 s"),
    "probe exits": ("probe", "os._exit(0)", "probing for the backend 'bad' ended the process with exit code 0"),
}  # fmt: skip
unix = pytest.mark.skipif(not hasattr(signal, "pause"), reason="signals of Unix")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_probe, "PATIENCE", 3.0)
    site = Site(tmp_path / "site", monkeypatch)
    site.install("gemmhub-example-good", GOOD)
    return site


def install(site, fault):
    place, code, reason = FAULTS[fault]
    parts = {"imported": "", "hook": "pass", "load": "pass", "probe": "return Absent('no card', 'none')", place: code}
    name = f"gemmhub_{fault.replace(' ', '_')}"
    (site.folder / f"{name}.py").write_text(BACKEND.format(**parts), encoding="utf-8")
    site.install(name, {fault.replace(" ", "-"): name})
    return fault.replace(" ", "-"), reason


@unix
@pytest.mark.parametrize("fault", FAULTS)
def test_a_plugin_that_hangs_or_ends_the_process_is_named(run, site, fault):
    plugin, reason = install(site, fault)
    data = json.loads(run("doctor", "--json", code=3).stdout)
    (culprit,) = data["culprits"]
    assert (culprit["plugin"], culprit["reason"]) == (plugin, reason)
    assert f"GEMMHUB_DISABLE={plugin}" in culprit["remedy"]
    states = {backend["name"]: backend["state"] for backend in data["backends"]}
    assert (states["numpy"], states["example"], states[plugin]) == ("ready", "ready", "failed")
    assert "switched off" not in json.dumps(data["backends"])  # by this report, not by the user
    assert all(test["ok"] for test in data["self_test"])
    assert not data["ok"]


@unix
def test_the_report_names_every_culprit_and_leaves_the_process_as_it_was(run, site, monkeypatch):
    monkeypatch.setenv("GEMMHUB_DISABLE", "unknown")
    for fault in ("import exits", "hook aborts"):
        install(site, fault)
    told = run("doctor", code=3).stdout
    for text in ("plugin import-exits", "plugin hook-aborts", "GEMMHUB_DISABLE=hook-aborts", FAULTS["hook aborts"][2]):
        assert text in told
    assert doctor_probe.os.environ["GEMMHUB_DISABLE"] == "unknown"
    monkeypatch.setenv("GEMMHUB_DISABLE", "import-exits,hook-aborts")
    run("doctor")


def test_plugins_that_behave_are_no_culprits(site, capfd):
    assert doctor_probe.culprits(()) == []
    assert capfd.readouterr() == ("", "")
    assert registered.registry().find("example") is not None


def test_a_child_that_does_not_start(site, monkeypatch):
    monkeypatch.setattr(doctor_probe.sys, "executable", "/bin/false")
    (culprit,) = doctor_probe.culprits(())
    assert culprit.reason == "starting a child process ended the process with exit code 1"
