"""Plugins found by real entry points: good ones work, and no broken one breaks anything else."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from plugins.gemmhub_example_bad.backend import LOADING_FAULTS, Scripted

import gemmhub
from gemmhub._choice import decide, suggestions
from gemmhub._choice import registry as plugins
from gemmhub.backend import CONTRACT
from gemmhub.kit import install
from gemmhub.testing import Case, check
from plugins import GOOD, HERE, Site, add, write_distribution

ROOT = Path(gemmhub.__file__).parent.parent


@pytest.fixture
def site(tmp_path, monkeypatch):
    return Site(tmp_path / "site", monkeypatch)


@pytest.fixture
def operands(rng):
    return rng.standard_normal((9, 7), np.float32), rng.standard_normal((7, 5), np.float32)


def status(name):
    found = [s for s in gemmhub.backends().rows if s.name == name]
    assert len(found) == 1, found
    return found[0]


def assert_numpy_and_example_work(a, b):
    assert status("numpy").state == status("example").state == "ready"
    expected = a @ b
    for name in (None, "numpy", "example"):
        assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b, backend=name)), name
    assert np.array_equal(gemmhub.matmul(a, b, backend="numpy"), expected)


# ---------------------------------------------------------------- the good plugin


def test_a_good_plugin_is_found_and_runs(site, operands):
    site.install("gemmhub-example-good", GOOD)
    a, b = operands
    found = status("example")
    assert (found.state, found.distribution) == ("ready", "gemmhub-example-good")
    assert found.versions == {"numpy": np.__version__, "gemmhub-example-good": "1.0"}
    decision = gemmhub.explain(a, b, backend="example")
    assert decision.chosen == "example"
    assert decision["example"].candidate == "block64"
    assert_numpy_and_example_work(a, b)
    refused = gemmhub.explain(a.astype(np.float64), b.astype(np.float64))["example"]
    assert (refused.status, refused.reason) == ("refused", "it takes float32, not float64")


@pytest.mark.parametrize(
    "case",
    [
        Case(m=70, n=65, k=130, alpha=2.5, beta=-1, c="row", bias="n", every_candidate=True),
        Case(m=70, n=1, k=3, a="col", b="col", out="col", bias="m"),
        Case(m=5, n=6, k=0, beta=1, c="out"),
        Case(m=3, n=4, k=5, threads=4),
    ],
    ids=str,
)
def test_the_good_plugin_keeps_the_contract(site, case):
    from gemmhub_example_good.backend import ExampleBackend

    assert check(ExampleBackend(), case).accepted


def test_nothing_is_discovered_by_importing(tmp_path):
    write_distribution(tmp_path, "gemmhub-example-good", GOOD)
    script = """
import json, sys
import gemmhub
names = "pluggy", "gemmhub_example_good.plugin", "gemmhub_example_good.backend"
def loaded(): return [name for name in names if name in sys.modules]
seen = [loaded()]
with gemmhub.use(precision="ieee"): pass
seen.append(loaded())
gemmhub.backends()
seen.append(loaded())
print(json.dumps(seen))
"""
    path = os.pathsep.join(map(str, (tmp_path, HERE, ROOT)))
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    before, used, after = json.loads(result.stdout)
    assert before == used == []
    assert after == ["pluggy", "gemmhub_example_good.plugin", "gemmhub_example_good.backend"]


def test_heavy_code_loads_only_when_a_problem_of_its_device_comes(site, operands):
    site.install("gemmhub-example-good", GOOD)
    list(plugins.registry())
    assert "gemmhub_example_good.plugin" in sys.modules
    assert "gemmhub_example_good.backend" not in sys.modules
    gemmhub.explain(*operands)
    assert "gemmhub_example_good.backend" in sys.modules


def test_a_backend_for_another_device_is_not_loaded(operands):
    def load():
        raise AssertionError("loaded")

    plugins.registry().add(gemmhub.BackendDescription("card", load, "", ("cuda",), contract=2), "card", "gemmhub-card")
    decision = gemmhub.explain(*operands)
    assert "card" not in {v.backend for v in decision.verdicts}


# ---------------------------------------------------------------- before there is a backend

EARLY = {
    "import_raises": ("importing the plugin raised ValueError: the plugin's own mistake", True),
    "import_exits": ("importing the plugin raised SystemExit: usage", True),
    "import_lacks_library": ("importing the plugin raised ModuleNotFoundError: No module named", True),
    "no_such_module": ("importing the plugin raised ModuleNotFoundError", True),
    "hooks:no_such_name": ("importing the plugin raised AttributeError", True),
    "hooks:wrong_signature": ("registering the plugin raised PluginValidationError", True),
    "hooks:hook_raises": ("asking the plugin for its backends raised OSError: no such driver", True),
    "hooks:hook_exits": ("asking the plugin for its backends raised SystemExit: 3", True),
    "hooks:breaks_off": ("asking the plugin for its backends raised KeyError: 'the second backend'", True),
    "hooks:one_description": ("asking the plugin for its backends raised TypeError", True),
    "hooks:no_hook": ("it describes no backend", False),
    "hooks:unmarked": ("it describes no backend", False),
    "hooks:nothing": ("it describes no backend", False),
    "hooks:empty": ("it describes no backend", False),
    "hooks:strings": ("its hook returned str, not a BackendDescription", False),
    "hooks:name_number": ("7 is not a lower-case name", False),
}


@pytest.mark.parametrize("target", EARLY)
def test_a_plugin_that_fails_before_it_names_a_backend(site, operands, target):
    reason, traced = EARLY[target]
    site.install("gemmhub-example-bad", {"bad": f"gemmhub_example_bad.{target}"})
    site.install("gemmhub-example-good", GOOD)
    found = status("bad")
    assert found.state == "failed"
    assert found.reason.startswith(reason)
    assert "gemmhub-example-bad" in found.remedy
    assert bool(found.traceback) == traced
    if traced:
        assert "Traceback (most recent call last)" in found.traceback
    verdict = gemmhub.explain(*operands)["bad"]
    assert (verdict.status, verdict.reason, verdict.remedy) == ("failed", found.reason, found.remedy)
    assert verdict.traceback == found.traceback
    with pytest.raises(gemmhub.NoBackendError, match="cannot run it") as caught:
        gemmhub.matmul(*operands, backend="bad")
    assert caught.value.decision["bad"].reason == found.reason
    assert_numpy_and_example_work(*operands)


NAMED = {
    "newer": ("bad-description", f"written for contract 99 of gemmhub, this is contract {CONTRACT}", "upgrade gemmhub"),
    "older": ("bad-description", "written for contract 0 of gemmhub", "upgrade gemmhub-example-bad"),
    "contract_text": ("bad-description", "its contract is '1', not an int", "report it"),
    "bad_name": ("Bad Name", "'Bad Name' is not a lower-case name", "report it"),
    "name_empty": ("", "'' is not a lower-case name", "report it"),
    "no_devices": ("bad-description", "its device_types are None", "report it"),
    "variables_text": ("bad-description", "its variables are 'GEMMHUB_BAD'", "report it"),
}


@pytest.mark.parametrize("target", NAMED)
def test_a_description_that_is_refused(site, operands, target):
    name, reason, remedy = NAMED[target]
    site.install("gemmhub-example-bad", {"bad": f"gemmhub_example_bad.hooks:{target}"})
    site.install("gemmhub-example-good", GOOD)
    found = status(name)
    assert found.state == "failed"
    assert found.reason.startswith(reason)
    assert found.remedy.startswith(remedy)
    assert gemmhub.explain(*operands)[name].status == "failed"
    assert_numpy_and_example_work(*operands)


def test_the_variables_of_a_plugin_are_known(site, operands, monkeypatch, caplog):
    site.install("gemmhub-example-good", GOOD)
    monkeypatch.setenv("GEMMHUB_EXAMPLE_MODE", "fast")
    gemmhub.reload()
    gemmhub.matmul(*operands)
    assert caplog.records == []
    monkeypatch.setenv("GEMMHUB_EXAMPLE_MOOD", "fast")
    gemmhub.reload()
    gemmhub.matmul(*operands)
    assert "did you mean GEMMHUB_EXAMPLE_MODE?" in caplog.text
    monkeypatch.delenv("GEMMHUB_EXAMPLE_MOOD")
    monkeypatch.setenv("GEMMHUB_DISABLE", "example")
    caplog.clear()
    gemmhub.reload()
    gemmhub.matmul(*operands)
    assert "GEMMHUB_EXAMPLE_MODE: neither gemmhub nor a loaded plugin reads it" in caplog.text


def test_one_bad_description_does_not_take_the_plugins_others(site, operands):
    site.install("gemmhub-example-bad", {"bad": "gemmhub_example_bad.hooks:one_good_one_bad"})
    assert (status("Bad").state, status("bad-description").state) == ("failed", "ready")
    assert gemmhub.explain(*operands).chosen == "bad-description"


def test_the_name_of_the_builtin_backend_is_taken(site, operands):
    site.install("gemmhub-example-bad", {"bad": "gemmhub_example_bad.hooks:takes_numpy"})
    states = {s.distribution: s for s in gemmhub.backends().rows if s.name == "numpy"}
    assert states["gemmhub"].state == "ready"
    assert states["gemmhub-example-bad"].reason == "the name 'numpy' is taken by gemmhub"
    assert "GEMMHUB_DISABLE" in states["gemmhub-example-bad"].remedy
    a, b = operands
    assert np.array_equal(gemmhub.matmul(a, b, backend="numpy"), a @ b)
    assert gemmhub.explain(a, b)["numpy"].distribution == "gemmhub"


def test_the_first_of_two_equal_backend_names_wins(site):
    site.install("gemmhub-example-b", {"b": "gemmhub_example_bad.hooks:one_good_one_bad"})
    site.install("gemmhub-example-a", {"a": "gemmhub_example_bad.backend:run_raises"})
    site.install("gemmhub-example-c", {"c": "gemmhub_example_twin"})
    (site.folder / "gemmhub_example_twin.py").write_text(
        "from gemmhub import BackendDescription, hookimpl\n"
        "@hookimpl\n"
        "def gemmhub_backends():\n"
        "    names = 'bad-description', 'run-raises'\n"
        "    return [BackendDescription(name, None, '', contract=2) for name in names]\n",
        encoding="utf-8",
    )
    found = {(s.name, s.distribution): s for s in gemmhub.backends().rows}
    for name, first in (("bad-description", "gemmhub-example-b"), ("run-raises", "gemmhub-example-a")):
        assert found[name, first].state == "ready"
        assert found[name, "gemmhub-example-c"].reason == f"the name {name!r} is taken by {first}"


def test_two_entry_points_of_one_name(site, operands):
    site.install("gemmhub-example-good", GOOD)
    site.install("gemmhub-example-second", {"example": "gemmhub_example_bad.hooks:one_good_one_bad"})
    failed = [s for s in gemmhub.backends().rows if s.state == "failed"]
    assert [s.reason for s in failed] == ["a second plugin is called 'example'"]
    remaining = [s.name for s in gemmhub.backends().rows if s.state == "ready"]
    assert remaining[0] == "numpy"
    assert len(remaining) == 2


def test_one_module_under_two_entry_points(site, operands):
    site.install("gemmhub-example-good", {**GOOD, "example2": GOOD["example"]})
    assert status("example2").reason == "it is the plugin 'example' under a second name"
    assert_numpy_and_example_work(*operands)


def test_a_distribution_without_readable_metadata(site, operands):
    site.install("gemmhub-example-good", GOOD)
    (site.folder / "gemmhub_example_good-1.0.dist-info" / "METADATA").unlink()
    gemmhub.reload()
    assert status("example").state == "ready"
    assert_numpy_and_example_work(*operands)


def test_entry_points_that_cannot_be_read(monkeypatch, operands):
    def broken(**given):
        raise TypeError("Pair.__new__() missing 1 required positional argument: 'value'")

    monkeypatch.setattr(importlib.metadata, "entry_points", broken)
    gemmhub.reload()
    found = status("plugins")
    assert found.state == "failed"
    assert found.reason.startswith("reading the entry points of installed distributions raised TypeError: Pair")
    assert "Traceback" in found.traceback
    a, b = operands
    assert np.array_equal(gemmhub.matmul(a, b), a @ b)


# ---------------------------------------------------------------- loading and probing

LATE = {
    "load_raises": ("failed", "loading the backend raised ImportError: libexample.so", True),
    "load_exits": ("failed", "loading the backend raised SystemExit: 1", True),
    "load_gives_class": ("failed", "load() returned ABCMeta, not a Backend", False),
    "probe_raises": ("failed", "probing raised RuntimeError: driver version is insufficient", True),
    "probe_exits": ("failed", "probing raised SystemExit: no device", True),
    "probe_gives_true": ("failed", "probe() returned bool, not Ready or Absent", False),
    "probe_gives_none": ("failed", "probe() returned NoneType, not Ready or Absent", False),
    "probe_names_devices": ("failed", "probing raised TypeError: devices are ('cpu',), not of class Device", True),
    "probe_lacks_devices": ("failed", "probing raised TypeError", True),
    "probe_gives_version_numbers": ("failed", "probing raised TypeError: versions are", True),
    "probe_lacks_features": ("failed", "probing raised TypeError", True),
    "probe_gives_features_as_text": ("failed", "probing raised TypeError: features are 'avx'", True),
    "probe_absent": ("absent", "no example card in this machine", False),
}


@pytest.mark.parametrize("fault", LOADING_FAULTS)
def test_a_backend_that_cannot_be_loaded_or_probed(site, operands, fault):
    state, reason, traced = LATE[fault]
    name = fault.replace("_", "-")
    site.install("gemmhub-example-bad", {"bad": f"gemmhub_example_bad.backend:{fault}"})
    site.install("gemmhub-example-good", GOOD)
    found = status(name)
    assert found.state == state
    assert found.reason.startswith(reason)
    assert found.remedy
    assert bool(found.traceback) == traced
    assert found.summary == f"has the fault {fault}"
    verdict = gemmhub.explain(*operands)[name]
    assert (verdict.status, verdict.reason, verdict.traceback) == (state, found.reason, found.traceback)
    with pytest.raises(gemmhub.NoBackendError) as caught:
        gemmhub.matmul(*operands, backend=name)
    assert found.reason in str(caught.value)
    assert_numpy_and_example_work(*operands)


def test_a_backend_is_probed_once_though_many_threads_ask():
    gate = threading.Barrier(8)

    def slow():
        threading.Event().wait(0.05)
        return gemmhub.Ready((gemmhub.Device(),))

    backend = Scripted("probed", probe=slow)
    add(backend)
    entry = plugins.registry().find("probed")

    def ask(_):
        gate.wait()
        return entry.get()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert backend.calls["probe"] == 1
    assert all(answer[0] is backend for answer in answers)
    gemmhub.backends()
    assert backend.calls["probe"] == 1


def test_discovery_happens_once_though_many_threads_ask(site, monkeypatch):
    site.install("gemmhub-example-good", GOOD)
    asked = []
    real = importlib.metadata.entry_points

    def slow(**given):
        asked.append(given)
        threading.Event().wait(0.05)
        return real(**given)

    monkeypatch.setattr(importlib.metadata, "entry_points", slow)
    gate = threading.Barrier(6)

    def ask(_):
        gate.wait()
        return [entry.name for entry in plugins.registry()]

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    assert asked == [{"group": "gemmhub"}]
    assert all(answer == ["numpy", "example"] for answer in answers)


def test_a_plugin_that_multiplies_while_it_is_imported(site, operands):
    (site.folder / "gemmhub_example_eager.py").write_text(
        "import numpy, gemmhub\n"
        "product = gemmhub.matmul(numpy.ones((2, 2)), numpy.ones((2, 2)))\n"
        "from gemmhub_example_good.plugin import gemmhub_backends\n",
        encoding="utf-8",
    )
    site.install("gemmhub-example-eager", {"eager": "gemmhub_example_eager"})
    assert [(e.name, e.plugin) for e in plugins.registry()] == [("numpy", plugins.BUILTIN), ("example", "eager")]
    assert_numpy_and_example_work(*operands)


@pytest.mark.parametrize("where", ["import", "load", "probe"])
@pytest.mark.parametrize("layout_sensitive", [True, False])
def test_products_of_a_plugin_that_is_not_ready_decide_nothing_later(monkeypatch, operands, where, layout_sensitive):
    """They are correct, and once the plugin is ready it is asked about calls of the same kind: first, warm, planned."""
    a, b = operands
    seen = []

    def multiplies():
        seen.append(np.array_equal(gemmhub.matmul(a, b), a @ b))

    class Multiplying(Scripted):
        def probe(self):
            if where == "probe":
                multiplies()
            return super().probe()

    def load():
        if where == "load":
            multiplies()
        return Multiplying("eager", layout_sensitive)

    def imported():
        if where == "import":
            multiplies()
        describe = gemmhub.hookimpl(
            lambda: [gemmhub.BackendDescription("eager", load, "", contract=2)], specname="gemmhub_backends"
        )
        return SimpleNamespace(gemmhub_backends=describe)

    point = SimpleNamespace(name="eager", value="eager", dist=SimpleNamespace(name="gemmhub-eager"), load=imported)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    gemmhub.reload()
    for x, y in ((a, b), (a, b), (a[::-1], b), (a, b[:, ::-1]), (a[::-1], b)):
        assert np.allclose(gemmhub.matmul(x, y), x @ y)
    assert seen == [True]
    backend, _ = plugins.registry().find("eager").get()
    assert backend.calls["prepare"] == (3 if layout_sensitive else 1)
    assert gemmhub.plan(a, b).decision.chosen == "eager"


@pytest.mark.parametrize("first", [True, False])
def test_decisions_of_one_key_may_differ_in_whether_strides_matter(monkeypatch, operands, first):
    """As after a backend that depends on them was added, or removed, while a call was being decided."""
    a, b = operands
    sensitive = Scripted("sensitive", True)
    plugins.registry().add(
        gemmhub.BackendDescription("sensitive", lambda: sensitive, "", contract=2), "sensitive", "gemmhub-sensitive"
    )
    real, turns = decide.resolve, iter([first, not first, first])

    def resolve(*key):
        found = real(*key)
        return replace(found, decision=replace(found.decision, layout_free=next(turns)))

    monkeypatch.setattr(decide, "resolve", resolve)
    for x in (a, a[::-1], a[:, ::-1], a, a[::-1]):
        assert np.allclose(gemmhub.matmul(x, b), x @ b)


def test_a_probe_that_asks_gemmhub_does_not_hang(operands):
    seen = []

    def probe():
        seen.append({s.name: s.reason for s in gemmhub.backends().rows}["asking"])
        return gemmhub.Ready((gemmhub.Device(),))

    add(Scripted("asking", probe=probe))
    assert gemmhub.explain(*operands).chosen == "asking"
    assert seen == ["it is being loaded"]


# ---------------------------------------------------------------- switches

SWITCHES = {
    "deny by environment": ({"GEMMHUB_DISABLE": "example, other"}, "", "switched off by GEMMHUB_DISABLE"),
    "allow by environment": ({"GEMMHUB_PLUGINS": "other"}, "", "not in the allow list of GEMMHUB_PLUGINS"),
    "allow none": ({"GEMMHUB_PLUGINS": ""}, "", "not in the allow list of GEMMHUB_PLUGINS"),
    "deny by file": ({}, "deny = ['example']", "switched off by {file}"),
    "allow by file": ({}, "allow = []", "not in the allow list of {file}"),
    "deny beats allow": ({"GEMMHUB_DISABLE": "example"}, "allow = ['example']", "switched off by GEMMHUB_DISABLE"),
    "environment beats file": ({"GEMMHUB_DISABLE": ""}, "deny = ['example']", None),
    "allowed by environment": ({"GEMMHUB_PLUGINS": "example"}, "allow = []", None),
    "allowed by file": ({}, "allow = ['example']\ndeny = ['other']", None),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_allow_and_deny_lists(site, tmp_path, monkeypatch, operands, switch):
    environment, text, reason = SWITCHES[switch]
    file = tmp_path / "settings.toml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("GEMMHUB_CONFIG", str(file))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    site.install("gemmhub-example-good", GOOD)
    found = status("example")
    if reason is None:
        assert found.state == "ready"
        assert_numpy_and_example_work(*operands)
        return
    assert found.state == "absent"
    assert found.reason == reason.format(file=file)
    assert found.remedy
    assert "gemmhub_example_good.plugin" not in sys.modules
    assert gemmhub.explain(*operands)["example"].reason == found.reason
    a, b = operands
    assert np.array_equal(gemmhub.matmul(a, b), a @ b)


def test_reload_sees_what_was_switched_off_since(site, monkeypatch):
    site.install("gemmhub-example-good", GOOD)
    assert status("example").state == "ready"
    monkeypatch.setenv("GEMMHUB_DISABLE", "example")
    assert status("example").state == "ready"
    gemmhub.reload()
    assert status("example").state == "absent"


# ---------------------------------------------------------------- what could be installed


def test_suggestions_name_what_to_install(site, operands):
    offered = {s.name: s for s in gemmhub.backends().rows if s.state == "not installed"}
    installed = {e.distribution for e in plugins.registry()}
    assert offered.keys() == {s.backend for s in suggestions.known() if s.distribution not in installed}
    assert suggestions.known()
    for found in offered.values():
        assert found.remedy == install.command(found.distribution)
        assert str(found).endswith(f"\ndetails       {found.remedy}")
    site.install("gemmhub-cublas", {"cublas": "gemmhub_example_bad.hooks:one_good_one_bad"})
    assert not [s for s in gemmhub.backends().rows if s.name == "cublas"]


def test_a_backend_that_is_not_installed_has_its_command(operands):
    suggestion = next(s for s in plugins.missing() if s.device_type == "musa")
    assert suggestion.backend not in {v.backend for v in gemmhub.explain(*operands).verdicts}
    with pytest.raises(gemmhub.NoBackendError, match=re.escape(install.command(suggestion.distribution))) as caught:
        gemmhub.matmul(*operands, backend=suggestion.backend)
    assert caught.value.decision[suggestion.backend].status == "not installed"


def test_what_could_be_installed_for_this_device_is_shown(operands):
    for suggestion in plugins.missing():
        if suggestion.device_type != "cpu":
            continue
        verdict = gemmhub.explain(*operands)[suggestion.backend]
        assert (verdict.status, verdict.remedy) == ("not installed", install.command(suggestion.distribution))


def test_a_status_prints_as_facts(operands):
    add(Scripted("missing", probe=gemmhub.Absent("no card", "buy one")))
    lines = str(status("missing")).splitlines()
    assert lines[0].split() == ["backend", "missing"]
    assert lines[-1] == "details       no card; buy one"
    assert str(status("numpy")).splitlines()[2].split() == ["state", "ready"]
