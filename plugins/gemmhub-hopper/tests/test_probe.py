"""What the plugin says where something is missing: Absent, with a reason and a remedy, never an exception."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest
from fakes import FakeCompiler, Home
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.probe import FUNCTIONS
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.nvrtc import Compiler, CompilerError
from gemmhub_nvidia.testing.probe import ProbeTests, Probing, raising

import gemmhub

pytestmark = pytest.mark.emulator

probing = Probing(HopperBackend, FUNCTIONS, FakeCompiler)
absent = probing.absent


class TestProbe(ProbeTests):
    probing = probing
    home = Home
    backend = HopperBackend


@pytest.mark.parametrize("value", ["", "0", "false", "no"])
def test_a_switch_that_is_neither(monkeypatch, value):
    monkeypatch.setenv("GEMMHUB_HOPPER_PDL", value)
    found = absent(Home())
    assert f"GEMMHUB_HOPPER_PDL is {value!r}; allowed: on, off" in found.reason
    assert "unset it" in found.remedy


def test_old_driver():
    assert "too old" in absent(Home(), raising(AttributeError("cuLaunchKernelEx"))).reason
    assert "12.4 is needed" in absent(Home(version=12030)).reason


@pytest.mark.parametrize("fault", [None, 100])
def test_no_device(fault):
    home = Home(devices=0)
    if fault is None:
        home.cuda.faults["cuInit"] = 0
    assert "shows no device" in absent(home).reason


def test_broken_driver():
    home = Home()
    home.cuda.faults["cuInit"] = 999
    assert "does not work" in absent(home).reason


def test_another_card():
    found = absent(Home(attributes={75: 8}))
    assert "compute capability 9.0" in found.reason
    assert "Fake H200 (8.0)" in found.reason


def test_no_compiler():
    error = CompilerError("NVRTC was not found", "pip install it")
    found = absent(Home(), open_compiler=raising(error))
    assert (found.reason, found.remedy) == ("NVRTC was not found", "pip install it")


def test_a_compiler_too_new_for_the_driver():
    found = absent(Home(version=12080))
    assert "NVRTC 13.0; the driver runs up to CUDA 12.8" in found.reason
    assert "nvidia-cuda-nvrtc-cu12" in found.remedy


def test_an_incomplete_library():
    with pytest.raises(CompilerError, match="has no function nvrtcVersion"):
        Compiler(SimpleNamespace(), "libnvrtc.so")


def test_nvrtc_missing(monkeypatch):
    from cuda import pathfinder

    def fails(name):
        raise RuntimeError("Failure finding nvrtc\nand more")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", fails)
    with pytest.raises(CompilerError) as caught:
        nvrtc.find()
    assert "Failure finding nvrtc" in caught.value.reason
    assert "more" not in caught.value.reason


def test_entry_point():
    points = [p for p in importlib.metadata.entry_points(group="gemmhub") if p.name == "hopper"]
    assert [p.value for p in points] == ["gemmhub_hopper.plugin"]
    from gemmhub_hopper import plugin

    (description,) = plugin.gemmhub_backends()
    assert description.name == "hopper"
    assert description.load().name == "hopper"
    assert gemmhub.__name__ == "gemmhub"
