"""Every test starts from default settings, without cached decisions, with its own random data."""

from __future__ import annotations

import os
import secrets
import zlib

import hypothesis
import numpy as np
import pytest

import gemmhub

SEED = int(os.environ.get("TEST_SEED", secrets.randbits(32)))

hypothesis.settings.load_profile("gemmhub")


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path_factory, request):
    """No settings of this machine: no variables, an empty file, records of this test only, empty caches."""
    for name in list(os.environ):
        if name.startswith("GEMMHUB_"):
            monkeypatch.delenv(name)
    folder = tmp_path_factory.getbasetemp()
    empty = folder / "empty.toml"
    empty.touch()
    monkeypatch.setenv("GEMMHUB_CONFIG", str(empty))
    monkeypatch.setenv("GEMMHUB_RECORDS", str(folder / f"records-{zlib.crc32(request.node.nodeid.encode())}.jsonl"))
    gemmhub.reload()
    yield
    gemmhub.reload()


@pytest.fixture
def rng(request):
    """Random data that differ from run to run; a failing test prints the seed that repeats them."""
    print(f"TEST_SEED={SEED}")
    return np.random.default_rng([SEED, zlib.crc32(request.node.nodeid.encode())])
