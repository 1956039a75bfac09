"""Every example that needs no GPU runs, alone."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
ON_A_GPU = {"llama"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example(path, tmp_path, monkeypatch):
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)).count(f"python examples/{path.name}") == 1
    if path.stem in ON_A_GPU:
        pytest.skip("it needs a GPU")
    for module in ("torch", "jax", "dask"):
        if f"import {module}" in text and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "records.jsonl"))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout
