"""Reports of an audit: the page, JSON, pictures, the command, and what they must not hold."""

from __future__ import annotations

import getpass
import json
import platform
import re
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import click
import numpy as np
import pytest
from click.testing import CliRunner
from planted import F32, planted

from gemmhub._audit import choose, libraries, page, picture
from gemmhub._audit.implementation import Implementation
from gemmhub._audit.result import anonymous, pooled
from gemmhub._choice.status import BackendStatus, Statuses
from gemmhub.capability import Device
from gemmhub.cli.main import main
from gemmhub.errors import DependencyError, InputError
from gemmhub.testing import Claims, audit

CASES = {"drops_k_remainder": "value", "reads_past_a_row": "nan"}


@pytest.fixture(scope="module")
def result():
    return audit(planted("drops_k_remainder"), seconds=3.0)


def test_the_page_is_one_file_without_network_or_scripts(result):
    text = page.html(result)
    assert not re.findall(r"<(script|link|img|iframe)|url\(|@import", text)
    assert set(re.findall(r'(?:href|src)="([^"]*)"', text)) == set()
    assert re.findall(r"https?://[^ \"<]*", text) == ["http://www.w3.org/2000/svg"]  # a name, not an address
    ElementTree.fromstring(re.search(r"<svg.*?</svg>", text, re.DOTALL)[0])
    assert "drops_k_remainder" in text
    assert "gemmhub audit: 1 fault<" in text
    assert "an element is off by more than its bound" in text


def test_the_picture_shows_where_the_errors_are(result):
    fault = result.faults[0]
    assert max(map(max, fault.grid)) > 1.0
    wrong = [(low, high) for low, high, bad in fault.blocks if bad]
    k = fault.blocks[-1][1]
    assert wrong
    assert wrong[-1][1] == k  # the remainder
    assert all(high > k // 32 * 32 for _, high in wrong)
    assert picture.svg(fault).count("<rect") == len(fault.grid) * len(fault.grid[0]) + len(fault.blocks)
    grid = pooled(np.array([[0.1] * 100] * 60 + [[np.nan] * 100]))
    assert (len(grid), len(grid[0])) == (48, 48)
    assert all(np.isnan(x) for x in grid[-1])


def test_nothing_private_is_reported(result, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "secret-host")
    home, user = str(Path.home()), getpass.getuser()
    text = anonymous(f"in {home}/x.py on secret-host: /usr/lib/x.so: error/bound 3, a/b, see https://numpy.org/doc/x")
    assert text == "in <path> on <private>: <path>: error/bound 3, a/b, see https://numpy.org/doc/x"
    written = page.html(result) + str(result)
    for private in (home + "/", f"/home/{user}", str(Path(sys.executable).parent)):
        assert private not in written


def own_library(monkeypatch, name):
    row = libraries.Library((), "cpu", lambda label, device: planted(name))
    monkeypatch.setitem(libraries.LIBRARIES, name, row)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        done = CliRunner().invoke(main, ["audit", *arguments], prog_name="gemmhub")
        assert done.exit_code == code, done.output
        return done.output

    return run


def test_a_fault_makes_exit_code_1_and_is_written(run, monkeypatch, tmp_path):
    own_library(monkeypatch, "drops_k_remainder")
    output = run("drops_k_remainder", "--html", "a.html", "--json", "a.json", "--scripts", "faults", code=1)
    assert "drops_k_remainder  failed" in output
    assert "run alone: fails" in output
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert document["command"] == "gemmhub audit drops_k_remainder --quick"
    assert document["ok"] is False
    (fault,) = document["implementations"][0]["faults"]
    assert (fault["kind"], fault["repeated"]) == ("value", True)
    assert fault["worst"] > 1
    assert fault["bound"] > 0
    script = (tmp_path / "faults" / "drops_k_remainder-1.py").read_text(encoding="utf-8")
    assert script == fault["script"]
    assert len(script.splitlines()) <= 10 + 2 + 4  # comments, and the function
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("option", ["--html", "--json"])
def test_a_file_that_cannot_be_created_is_refused_before_the_run(run, monkeypatch, tmp_path, option):
    monkeypatch.setattr("gemmhub.cli.audit.audit", None)
    assert "nodir/x: there is no directory nodir" in run("numpy", option, "nodir/x", code=2)
    assert not (tmp_path / "nodir").exists()


@pytest.mark.parametrize("folder", ["file", "file/new", "nowhere", "nowhere/new/newer"])
def test_a_folder_that_cannot_be_made_is_refused_before_the_run(run, monkeypatch, tmp_path, folder):
    monkeypatch.setattr("gemmhub.cli.audit.audit", None)
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to("missing")
    assert f"{folder}: {folder.split('/')[0]} is not a directory" in run("numpy", "--scripts", folder, code=2)
    assert not (tmp_path / "missing").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(run, monkeypatch, tmp_path):
    monkeypatch.setattr("gemmhub.cli.audit.audit", None)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # as of a user other than root
    (tmp_path / "closed").mkdir()
    message = "closed/new: the directory closed cannot be written"
    assert message in run("numpy", "--scripts", "closed/new", code=2)
    assert list((tmp_path / "closed").iterdir()) == []


def test_a_new_folder_is_made_for_scripts_alone(run, monkeypatch, tmp_path):
    row = libraries.Library((), "cpu", lambda name, device: Implementation.of(np.matmul, Claims(F32), name=name))
    monkeypatch.setitem(libraries.LIBRARIES, "right", row)
    run("right", "--scripts", "new/newer")
    assert not (tmp_path / "new").exists()


def test_correct_code_makes_exit_code_0(run, monkeypatch):
    row = libraries.Library((), "cpu", lambda name, device: Implementation.of(np.matmul, Claims(F32), name=name))
    monkeypatch.setitem(libraries.LIBRARIES, "right", row)
    document = json.loads(run("right", "--json", "-"))
    assert document["ok"] is True
    assert document["implementations"][0]["trials"] > 100


def test_what_cannot_be_audited_is_named(run, monkeypatch):
    assert "allowed: numpy, torch" in run("nope", code=2)
    row = libraries.Library(("no_such_module",), "cpu", lambda name, device: planted(name))
    monkeypatch.setitem(libraries.LIBRARIES, "missing", row)
    assert "no_such_module, which is not installed" in run("missing", code=3)
    with pytest.raises(InputError, match="implementation: 'numpy' on cuda"):
        choose.chosen(["numpy"], Device("cuda"))
    with pytest.raises(DependencyError):
        choose.chosen(["missing"], Device())


def test_a_device_without_implementations_is_an_error_with_reasons(run, monkeypatch):
    monkeypatch.setattr(choose, "backend_implementations", lambda device: {})
    row = libraries.Library(("no_such_module",), "cuda", lambda name, device: planted(name))
    monkeypatch.setattr(choose, "LIBRARIES", {"missing": row})
    state = BackendStatus("carded", "gemmhub-carded", "", "absent", reason="no card", remedy="add one")
    monkeypatch.setattr(choose, "backends", lambda: Statuses((state, replace(state, name="other", state="ready"))))
    output = run("--device", "cuda", code=3)
    assert "no implementation is ready on cuda" in output
    assert "missing: needs no_such_module, which is not installed" in output
    assert "carded: absent: no card; add one" in output
    assert "other" not in output


def test_an_implementation_that_refuses_everything_is_no_success(run, monkeypatch):
    def refuses(a, b):
        raise RuntimeError("no device")

    row = libraries.Library((), "cpu", lambda name, device: Implementation.of(refuses, Claims(F32), name=name))
    monkeypatch.setitem(libraries.LIBRARIES, "absent", row)
    assert re.search(r"^absent +refused +0 ", run("absent", code=3), re.MULTILINE)
    broken = libraries.Library((), "cpu", lambda name, device: Implementation(name, Claims(F32), str, "import no_such"))
    monkeypatch.setitem(libraries.LIBRARIES, "broken", broken)
    assert "implementation 'broken' cannot be used: ModuleNotFoundError" in run("broken", code=3)


def test_without_names_all_that_is_installed_is_audited():
    names = [each.name for each in choose.chosen([], Device())]
    assert names[:1] == ["numpy"]
    assert {"gemmhub", "gemmhub/numpy"} <= set(names)


def test_every_library_of_the_table_states_its_claims():
    for name, row in libraries.LIBRARIES.items():
        if row.device != "cpu" or not row.installed:
            continue
        made = row.make(name, "cpu:0")
        assert made.name == name
        assert made.claims.products
        for note in made.claims.notes:
            assert note.text.endswith(".")
            assert re.fullmatch(r"https://\S+|observed; not documented", note.source)
        assert all(made.versions().values())


def test_the_command_has_the_efforts():
    command = main.get_command(click.Context(main), "audit")
    assert {"--quick", "--normal", "--full"} <= {x for p in command.params for x in p.opts}
