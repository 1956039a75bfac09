"""A separate cache for each test."""

from __future__ import annotations

import pytest

from gemmhub.kit.native import cache


@pytest.fixture(autouse=True)
def cache_dir(tmp_path, monkeypatch):
    """The cache's folder, which does not exist yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(path))
    monkeypatch.setattr(cache, "temporary_folders", {})
    monkeypatch.setattr(cache, "verified", {})
    monkeypatch.setattr(cache, "swept", set())
    return path / "native"
