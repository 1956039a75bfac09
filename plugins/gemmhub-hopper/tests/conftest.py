"""Settings of the machine the tests run on must not decide what they see."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.launches import pdl

import gemmhub
from gemmhub.capability import Absent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--random-problems", type=int, default=100, help="drawn by tests/test_device.py")
    parser.addoption("--random-float32", type=int, default=200, help="of float32 alone, drawn by tests/test_device.py")


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("GEMMHUB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("GEMMHUB_CONFIG", str(tmp_path / "empty.toml"))
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "records.jsonl"))
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path / "cache"))
    pdl.allowed.cache_clear()
    gemmhub.reload()
    yield
    pdl.allowed.cache_clear()
    gemmhub.reload()


@pytest.fixture
def kept_kernels(isolated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile once for all runs, into the user's cache."""
    monkeypatch.delenv("GEMMHUB_CACHE_DIR")


@pytest.fixture(scope="module")
def backend() -> HopperBackend:
    """The backend on a real card, probed. Modules that need none have a fixture of this name."""
    made = HopperBackend()
    found = made.probe()
    if isinstance(found, Absent):
        pytest.fail(f"{found.reason}; {found.remedy}")
    return made
