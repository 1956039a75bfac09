"""Isolates the tests from settings of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import Home

import gemmhub


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("GEMMHUB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("GEMMHUB_CONFIG", str(tmp_path / "empty.toml"))
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "records.jsonl"))
    gemmhub.reload()
    yield
    gemmhub.reload()


@pytest.fixture
def home() -> Iterator[Home]:
    """A machine with the fake library, whose objects were used as they may be."""
    home = Home()
    yield home
    assert home.cuda.complaints == []
