"""``gemmhub doctor NAME``: reports of plugins, with fake entry points instead of installed plugins."""

from __future__ import annotations

import json
import os
import sys

import pytest

from gemmhub.cli import doctor_report
from gemmhub.cli.doctor_report import Finding


@pytest.fixture
def bring(entry_points):
    """``bring(name, function, module="reports")``: as if an installed distribution reported about ``name`` by it."""
    return lambda name, function, module="reports": entry_points(doctor_report.GROUP, name, module, findings=function)


def fine():
    yield Finding("libraries", "musart", "libmusart.so.4")
    yield Finding("libraries", "mublas", "libmublas.so.1", True)
    yield Finding("compilers", "mcc", "4.3.1", True, "mcc version 4.3.1\nand more\n")


def test_a_report_is_shown_by_sections(run, bring):
    bring("musa", fine)
    told = run("doctor", "musa").stdout
    assert told.startswith("gemmhub  ")
    assert "\nlibraries\nmusart             libmusart.so.4\nmublas     passed  libmublas.so.1\n" in told
    assert told.endswith("\ncompilers\nmcc        passed  4.3.1\n\nmcc:\nmcc version 4.3.1\nand more\n")
    assert "self-test" not in told  # the usual report is another


def test_a_report_as_json(run, bring):
    bring("musa", fine)
    data = run.json("doctor", "musa", "--json")
    assert data["ok"] is True
    assert set(data) == {"system", "libraries", "findings", "ok"}
    assert data["findings"][1] == {
        "section": "libraries", "item": "mublas", "text": "libmublas.so.1", "ok": True, "detail": "",
    }  # fmt: skip


def test_what_is_wrong_is_the_exit_code(run, bring):
    bring("musa", lambda: [*fine(), Finding("products", "float32", "numpy has 1, it has 2", False)])
    assert "float32   failed  numpy has 1, it has 2\n" in run("doctor", "musa", code=3).stdout
    assert run.json("doctor", "musa", "--json", code=3)["ok"] is False


def broken():
    yield Finding("libraries", "musart", "libmusart.so.4")
    raise RuntimeError("the driver is upset")


def test_a_report_that_breaks_keeps_what_it_found(run, bring):
    bring("musa", broken)
    told = run("doctor", "musa", code=3).stdout
    assert "\nmusart       libmusart.so.4\n" in told
    assert "reports:findings  failed  it raised RuntimeError: the driver is upset\n" in told
    assert "Traceback (most recent call last):" in told


def test_a_report_that_cannot_be_imported_or_is_none(run, bring, monkeypatch):
    bring("musa", None)
    assert "TypeError" in run("doctor", "musa", code=3).stdout
    bring("other", lambda: ["text"], "others")
    assert "others:findings yielded a str, not a Finding" in run("doctor", "other", code=3).stdout
    bring("gone", fine, "gone")
    monkeypatch.setitem(sys.modules, "gone", None)
    assert "ModuleNotFoundError" in run("doctor", "gone", code=3).stdout


def test_several_distributions_report_about_one_thing(run, bring):
    bring("musa", lambda: [Finding("second", "b", "two")], "z_reports")
    bring("musa", lambda: [Finding("first", "a", "one")], "a_reports")
    findings = run.json("doctor", "musa", "--json")["findings"]
    assert [finding["section"] for finding in findings] == ["first", "second"]


def test_a_name_without_a_report(run, bring):
    assert run.error("doctor", "musa") == (
        "error: there is no report about 'musa'; allowed: none, as no installed plugin has a report\n"
    )
    bring("musa", fine)
    bring("cuda", fine, "others")
    assert "allowed: cuda, musa\n" in run.error("doctor", "rocm")


def test_the_home_directory_is_written_as_a_tilde(run, bring, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    bring("musa", lambda: [Finding("a", "b", f"in {tmp_path}/x", None, f"and {tmp_path}/y")])
    told = run("doctor", "musa").stdout
    assert str(tmp_path) not in told
    assert "in ~/x" in told
    assert "and ~/y" in told


def test_a_report_in_a_file(run, bring, monkeypatch, tmp_path):
    """With what takes minutes, where a plugin has that, and nothing that names the user."""
    monkeypatch.setenv("HOME", str(tmp_path))

    def findings(trial=False):
        yield from fine()
        if trial:
            yield Finding("speed", "mublas", f"fast, in {tmp_path}")

    bring("musa", findings)
    bring("musa", lambda: [Finding("others", "a", "one")], "z_reports")
    file = tmp_path / "report.json"
    assert "speed" not in run("doctor", "musa").stdout
    told = run("doctor", "musa", "--report", file)
    assert "fast, in ~" in told.stdout
    assert str(tmp_path) not in file.read_text()
    report = json.loads(file.read_text())
    assert [found["item"] for found in report["findings"]] == ["musart", "mublas", "mcc", "mublas", "a"]
    assert (report["ok"], report["complete"]) == (True, True)
    assert set(report) == {"system", "libraries", "findings", "ok", "complete"}


def test_a_report_that_breaks_is_in_the_file(run, bring, tmp_path):
    bring("musa", broken)
    file = tmp_path / "report.json"
    run("doctor", "musa", "--report", file, code=3)
    report = json.loads(file.read_text())
    assert [found["item"] for found in report["findings"]] == ["musart", "reports:findings"]
    assert (report["ok"], report["complete"]) == (False, True)


def test_what_was_found_before_the_process_ended_is_in_the_file(run, bring, tmp_path):
    """The end of the process stands for a fault in a library: the file is read at that moment."""
    file, seen = tmp_path / "report.json", []

    def ends():
        yield from fine()
        seen.append(json.loads(file.read_text()))

    bring("musa", ends)
    run("doctor", "musa", "--report", file)
    (report,) = seen
    assert len(report["findings"]) == 3
    assert (report["ok"], report["complete"]) == (False, False)


def test_a_file_needs_a_name_and_a_folder(run, bring, tmp_path):
    assert "--report needs a NAME" in run.error("doctor", "--report", tmp_path / "report.json")
    bring("musa", fine)
    missing = os.path.join(tmp_path, "nowhere", "report.json")
    assert "nowhere" in run("doctor", "musa", "--report", missing, code=3).stderr
