"""Isolates the tests from settings of the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import emulated
import pytest

import gemmhub


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--random-problems", type=int, default=100, help="drawn by tests/test_device.py")


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("GEMMHUB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("GEMMHUB_CONFIG", str(tmp_path / "empty.toml"))
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "records.jsonl"))
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path / "cache"))
    gemmhub.reload()
    yield
    gemmhub.reload()


@pytest.fixture(scope="session", autouse=True)
def emulated_kernels(request: pytest.FixtureRequest) -> None:
    """The variants and mutations of all products that will run, compiled two at a time."""
    if shutil.which("g++") is None:
        return
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    variants = {values["product"].variant: None for values in parameters if hasattr(values.get("product"), "variant")}
    mutations = [values["mutation"] for values in parameters if "mutation" in values]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda variant: emulated.built(variant.main, variant.macros), variants))
        list(pool.map(lambda mutation: mutation.build(), mutations))
