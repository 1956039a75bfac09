"""Every benchmark is in the README's table and answers --help; result files have one form."""

from __future__ import annotations

import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.lib import results

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
README = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
MODULES = sorted(
    f"benchmarks.{folder}.{path.stem}"
    for folder in ("run", "pages", "fit")
    for path in (BENCHMARKS / folder).glob("*.py")
    if not path.stem.startswith("__") and "__main__" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_the_readme_lists_it(module):
    assert re.search(rf"`python -m {re.escape(module)}\b", README)


def test_the_readme_lists_nothing_else():
    listed = set(re.findall(r"python -m (benchmarks\.\w+\.\w+)", README))
    assert listed == set(MODULES)
    for name in re.findall(r"`(?:lib|ladder|results)/[\w./]*`", README):
        assert (BENCHMARKS / name.strip("`")).exists(), name


@pytest.mark.parametrize("module", [*(x for x in MODULES if ".pages." not in x), "benchmarks.fit"])
def test_help(module, tmp_path):
    """Where what it imports is installed."""
    found = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=BENCHMARKS.parent, capture_output=True, text=True
    )
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'\n\Z", found.stderr)
    if missing and not missing[1].startswith(("benchmarks", "gemmhub.")):
        pytest.skip(f"{missing[1]} is not installed")
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("usage: ")


def test_a_result_file_names_its_command(monkeypatch, tmp_path):
    """As a reader types it: the module, and no result file."""
    monkeypatch.setattr(sys, "argv", ["/somewhere/map.py", "--seed", "3", "--json", "x.json", "--classes", "long k"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="benchmarks.run.map"), raising=False)
    results.save(tmp_path / "x.json", rows=[{"us": 1.23456789, "name": "a", "right": True, "sizes": (2, 3)}])
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["command"] == "python -m benchmarks.run.map --seed 3 --classes 'long k'"
    assert {"python", "gemmhub", "host"} < set(written)
    assert written["rows"] == [{"us": 1.2346, "name": "a", "right": True, "sizes": [2, 3]}]


def test_a_result_file_may_be_compressed(tmp_path):
    for name in ("x.json", "x.json.xz"):
        results.save(tmp_path / name, rows=list(range(1000)))
        assert results.load(tmp_path / name)["rows"] == list(range(1000))
    assert json.loads(lzma.decompress((tmp_path / "x.json.xz").read_bytes()))["rows"][-1] == 999
    assert (tmp_path / "x.json.xz").stat().st_size < (tmp_path / "x.json").stat().st_size / 4
