"""The examples in docstrings of gemmhub are run, in the environment that has the library which they are about."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

import gemmhub

ROOT = Path(gemmhub.__file__).parent
MODULES = [
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
LIBRARIES = {"torch": "torch", "jax": "jax_tvm_ffi", "dask": "dask"}
"""What the modules of each door need."""


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name, tmp_path, monkeypatch):
    names = {"gemmhub": gemmhub, "np": np}
    for door, needed in LIBRARIES.items():
        if f".{door}." in name:
            pytest.importorskip(needed)
            importlib.import_module(f"gemmhub.{'distributed' if door == 'dask' else door}")
            names[door] = importlib.import_module(door)
    importlib.import_module("gemmhub.numpy")
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(
        importlib.import_module(name), extraglobs=names, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert tried
    assert not failed
