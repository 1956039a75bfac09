"""A MUSA home with a runtime of the tests' own, which this process uses; the machine's settings do not count."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from gemmhub_musa import sdk

import gemmhub
from gemmhub.kit import native
from gemmhub.kit.native import Recipe, cache

pytestmark = pytest.mark.compiler

HERE = Path(__file__).parent
MUSA = (*sdk.VARIABLES, "GEMMHUB_MCC", "CXX", "LD_LIBRARY_PATH")


def link(path, source="", name=None, flags=()):
    """A shared library at ``path`` of C++ ``source`` (text or a file), with the soname ``name`` or that of ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = source
    if not isinstance(source, Path):
        file = path.with_suffix(".cpp")
        file.write_text(source)
    soname = f"-Wl,-soname,{name or path.name}"
    built = native.build(Recipe(("g++",), ("-shared", "-fPIC", "-O1", "-Wno-attributes", soname, *flags), (file,)))
    assert isinstance(built, Path), built
    shutil.copy(built, path)
    return path


SHARED = os.environ.get(cache.VARIABLE)
"""A cache that outlives the tests, if one is set: simulated homes take a while to compile."""


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return Path(SHARED) if SHARED else tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def home(tmp_path_factory, cache_dir):
    """The home of this process: libmusart.so.4 behind libmusart.so, two devices."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.VARIABLE, str(cache_dir))
        made = tmp_path_factory.mktemp("musa-4.3.1")
        link(made / "lib" / "libmusart.so.4", HERE / "fake_musart.cpp")
        (made / "lib" / "libmusart.so").symlink_to("libmusart.so.4")
    (made / "include").mkdir()
    (made / "include" / "musa.h").write_text("#pragma once\n#define MUSA_VERSION 4030\n")
    return made


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch, cache_dir):
    for name in [name for name in os.environ if name.startswith("GEMMHUB_") or name in MUSA]:
        monkeypatch.delenv(name)
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("GEMMHUB_CONFIG", str(tmp_path / "empty.toml"))
    monkeypatch.setenv("GEMMHUB_RECORDS", "off")
    monkeypatch.setenv("GEMMHUB_PLUGINS", "")  # what else is installed must not matter
    monkeypatch.setenv(cache.VARIABLE, str(cache_dir))
    monkeypatch.setattr(sdk, "USUAL", tmp_path / "usual")
    native.forget()
    gemmhub.reload()
    yield
    gemmhub.reload()


@pytest.fixture
def named(home, monkeypatch):
    """The home, named by MUSA_HOME."""
    monkeypatch.setenv("MUSA_HOME", str(home))
    return home


@pytest.fixture
def rt(named):
    """The runtime; afterwards nothing is planned to fail."""
    from gemmhub_musa import runtime

    found = runtime.load()
    assert isinstance(found, runtime.Runtime), found
    yield found
    found.library.cdll.fake_plan(b"")
    found.library.cdll.fake_limit(1 << 30)
    found.library.cdll.fake_devices(2)


@pytest.fixture
def fake(rt):
    """The functions of the fake runtime that direct it."""
    return rt.library.cdll


@pytest.fixture
def python():
    """``python(code, **environment)``: what a fresh interpreter prints, for what can be done once in a process."""

    def run(code, **environment):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, **{key: str(value) for key, value in environment.items()}},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture
def script(tmp_path):
    """``script(path, body)``: an executable; ``$out`` is what follows ``-o``."""

    def make(path, body):
        path.parent.mkdir(parents=True, exist_ok=True)
        find_out = 'out=; last=; for x in "$@"; do [ "$last" = -o ] && out="$x"; last="$x"; done'
        path.write_text(f"#!/bin/sh\n{find_out}\n{body}\n")
        path.chmod(0o755)
        return path

    return make
