"""Finding and compiling the glue: what is missing, what fails, what hangs."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from gemmhub_mudnn import library
from gemmhub_mudnn.backend import MudnnBackend
from gemmhub_mudnn.library import CXX, CXX_APART, C, generations
from gemmhub_musa import sdk as sdks
from gemmhub_musa.sdk import Library, Sdk
from problems import problem

from conftest import GENERATION
from gemmhub.capability import Absent, Refusal


@dataclass(frozen=True)
class Installation(Sdk):
    """An SDK of parts; its libraries are those of the test's home, or none."""

    real: bool = True
    asked: list[str] = field(default_factory=list)

    def library(self, stem: str) -> Library | Refusal:
        self.asked.append(stem)
        return sdks.find().library(stem) if self.real else Refusal(f"there is no lib{stem}.so here", "install it")


@pytest.fixture
def parts(home, tmp_path, monkeypatch):
    """An SDK with the home's headers and no mcc, and an empty cache."""
    monkeypatch.setenv("GEMMHUB_CACHE_DIR", str(tmp_path / "cache"))
    return Installation(home, "a test", (home / "lib",), home / "include")


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_generations_are_recognised_by_their_headers(tmp_path):
    include = tmp_path / "include"
    (include / "mudnncxx").mkdir(parents=True)
    sdk = Sdk(tmp_path, "a test", include=include)
    assert generations(sdk) == ()
    (include / "mudnn.h").write_text("#include <mudnn_math.h>\nnamespace musa {}\n")
    assert generations(sdk) == (CXX,)
    (include / "mudnn_math.h").write_text("int mudnnCreateBatchMatMulDescriptor(void**);\n")
    assert generations(sdk) == (C, CXX)
    (include / "mudnncxx" / "mudnn.h").touch()
    assert generations(sdk) == (CXX_APART, C, CXX)
    assert generations(Sdk(None, "the loader")) == ()


def test_the_right_generation_is_used(home):
    chosen = {"5.1": CXX_APART, "5.1-c": C}.get(GENERATION, CXX)
    backend = MudnnBackend()
    backend.probe()
    assert backend.machine.library.generation is chosen


def test_no_headers(parts, tmp_path):
    found = library.load(Installation(tmp_path, "a test", (), tmp_path), "mp_22")
    assert isinstance(found, Absent)
    assert "no mudnn.h" in found.reason
    assert "headers" in found.remedy
    assert isinstance(library.load(Sdk(None, "the loader"), "mp_22"), Absent)


def test_no_library(parts):
    found = library.load(Installation(parts.home, "a test", (), parts.include, real=False), "mp_22")
    assert isinstance(found, Absent)
    assert "there is no libmudnn" in found.reason


def test_no_compiler_at_all(parts, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    found = library.load(parts, "mp_22")
    assert "no C++ compiler" in found.reason
    assert "no MUSA compiler" in found.reason
    assert "g++" in found.remedy


def test_a_failing_compiler(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", 'echo "mudnn.h:7: error: what is this"; exit 3'))
    monkeypatch.setenv("GEMMHUB_MCC", script(tmp_path / "mcc", "exit 4"))
    found = library.load(parts, "mp_22")
    assert isinstance(found, Absent)
    assert "error: what is this" in found.reason
    assert "exit code 3" in found.traceback
    assert "exit code 4" in found.reason


def test_mcc_takes_over(parts, tmp_path, monkeypatch):
    """A header that the host's compiler rejects is compiled by mcc."""
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "exit 3"))
    body = f"""
echo "$*" > {tmp_path}/asked
for word; do
  shift
  case $word in -x|musa|--offload-arch=*) ;; *) set -- "$@" "$word" ;; esac
done
exec {shutil.which("g++")} "$@"
"""
    monkeypatch.setenv("GEMMHUB_MCC", script(tmp_path / "mcc", body))
    found = library.load(parts, "mp_31")
    assert isinstance(found, library.Library), found
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("-x musa")
    assert "--offload-arch=mp_31" in asked


def test_a_hanging_compiler(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", 'case "$*" in *--version*) exit 0;; esac; sleep 60'))
    monkeypatch.setattr(library, "PATIENCE", 0.5)
    start = time.monotonic()
    found = library.load(parts, "mp_22")
    assert isinstance(found, Absent)
    assert "did not end within" in found.reason
    assert time.monotonic() - start < 10


def test_a_library_without_the_functions(parts, tmp_path):
    """Header and library of different versions: refused when it is loaded, not a crash at the first call."""
    include = tmp_path / "include"
    shutil.copytree(parts.include, include)
    for path in include.rglob("mudnn.h"):
        text = path.read_text().replace("SetBeta(double", "SetBeta(long double")
        path.write_text(f"#define mudnnSetStream mudnnSetStreamElsewhere\n{text}")
    found = library.load(Installation(parts.home, "a test", parts.libraries, include), "mp_22")
    assert isinstance(found, Absent)
    assert "undefined symbol" in found.reason


def test_absence_is_reported_by_the_backend():
    backend = MudnnBackend(lambda: Absent("no card", "buy one"))
    assert backend.probe() == Absent("no card", "buy one")
    with pytest.raises(RuntimeError, match="no card; buy one"):
        backend.offer(problem())


def test_the_plugin_describes_one_backend():
    from gemmhub_mudnn import plugin

    (description,) = plugin.gemmhub_backends()
    assert (description.name, description.device_types, description.contract) == ("mudnn", ("musa",), 2)
    assert isinstance(description.load(), MudnnBackend)
