"""The build of archives, as far as it needs no NVRTC: gemmhub-hopper's tests compile a few."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from gemmhub_nvidia import build_cubins, cubin_hook
from gemmhub_nvidia.nvrtc import CompilerError, Source

HOPPER = Path(__file__).resolve().parents[2] / "gemmhub-hopper"


def source(number):
    return Source(f"kernel-{number}", "kernel.cu", {"kernel.cu": str(number)}, ())


@pytest.mark.parametrize(("count", "number"), [(10, 3), (3, 3), (1, 1), (7, 2), (0, 2), (3, 10)])
def test_some_are_spaced_evenly(count, number):
    every = [source(i) for i in range(count)]
    some = build_cubins.some(every, number)
    assert len(some) == len({x.name for x in some}) == min(count, number)
    assert some == [x for x in every if x in some]
    assert some[:1] == every[:1]


def test_nothing_is_built_unless_it_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.delenv(cubin_hook.VARIABLE, raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a build was started"))
    assert cubin_hook.requirements(HOPPER) == []
    assert cubin_hook.build(HOPPER, "gemmhub_hopper", tmp_path) == {}


def test_what_a_build_needs(monkeypatch):
    monkeypatch.setenv(cubin_hook.VARIABLE, "all")
    needed = cubin_hook.requirements(HOPPER)
    assert cubin_hook.NVRTC in needed
    assert any(x.startswith("numpy") for x in needed)


@pytest.mark.parametrize(("asked", "more"), [("all", []), ("3", ["3"])])
def test_what_is_built_is_named(monkeypatch, tmp_path, asked, more):
    monkeypatch.setenv(cubin_hook.VARIABLE, asked)
    started = []

    def run(command, check, env):
        started.append(command)
        assert check
        assert env["PYTHONPATH"].startswith(str(HOPPER.parents[1]))
        (tmp_path / "sm_90a.cubins").touch()

    monkeypatch.setattr(subprocess, "run", run)
    made = cubin_hook.build(HOPPER, "gemmhub_hopper", tmp_path)
    assert made == {str(tmp_path / "sm_90a.cubins"): "gemmhub_hopper/cubins/sm_90a.cubins"}
    assert started == [[sys.executable, "-m", "gemmhub_nvidia.build_cubins", "gemmhub_hopper", str(tmp_path), *more]]


def test_a_failed_build_makes_no_wheel(monkeypatch, tmp_path):
    monkeypatch.setenv(cubin_hook.VARIABLE, "all")
    with pytest.raises(subprocess.CalledProcessError):
        cubin_hook.build(HOPPER, "no_such_package", tmp_path)


def test_without_nvrtc(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(CompilerError, match=r"NVRTC 12 is not on sys\.path; pip install 'nvidia-cuda-nvrtc-cu12=="):
        build_cubins.library()
