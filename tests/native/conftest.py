"""A separate cache for each test, and small compilers."""

from __future__ import annotations

import shutil
import stat

import pytest

from gemmhub.kit import native
from gemmhub.kit.native import Recipe, cache

pytestmark = pytest.mark.compiler


@pytest.fixture(autouse=True)
def cache_dir(tmp_path, monkeypatch):
    """The cache's folder, which does not exist yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv(cache.VARIABLE, str(path))
    monkeypatch.setattr(cache, "temporary_folders", {})
    monkeypatch.setattr(cache, "verified", {})
    monkeypatch.setattr(cache, "swept", set())
    native.forget()
    yield path / "native"
    native.forget()


@pytest.fixture
def script(tmp_path):
    """``script(body)``: an executable that stands for a compiler; ``$out`` is the file it must write."""

    def make(body, name="cc"):
        path = tmp_path / name
        find_out = 'out=; last=; for x in "$@"; do [ "$last" = -o ] && out="$x"; last="$x"; done'
        path.write_text(f"#!/bin/sh\n{find_out}\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


@pytest.fixture
def recipe(tmp_path):
    """``recipe(compiler, text="...", **fields)``: a recipe for one source file."""

    def make(compiler, text="source", **fields):
        source = tmp_path / "code.cpp"
        source.write_text(text)
        return Recipe((str(compiler),), fields.pop("flags", ("-O1",)), (source,), **fields)

    return make


@pytest.fixture
def gxx():
    found = shutil.which("g++")
    if found is None:
        pytest.skip("no g++")
    return found
