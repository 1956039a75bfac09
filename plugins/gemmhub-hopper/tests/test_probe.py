"""What the plugin says where something is missing: Absent, with a reason and a remedy, never an exception."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest
from fakes import FakeCompiler, Home
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.probe import FUNCTIONS

import gemmhub
from gemmhub.capability import Absent, Device, Ready
from gemmhub.kit import nvrtc
from gemmhub.kit.cuda import Driver
from gemmhub.kit.nvrtc import Compiler, CompilerError
from gemmhub.testing.check import honest


def absent(home, open_driver=None, open_compiler=FakeCompiler):
    backend = HopperBackend(open_driver or (lambda: Driver(home.cuda, FUNCTIONS)), open_compiler)
    found = backend.probe()
    assert isinstance(found, Absent)
    honest(found, "probe()")
    assert backend.probe() is found
    with pytest.raises(RuntimeError):
        _ = backend.machine
    return found


def raising(error):
    def fails():
        raise error

    return fails


def test_ready():
    found = Home(devices=2).backend().probe()
    assert isinstance(found, Ready)
    assert found.devices == (Device("cuda", 0), Device("cuda", 1))
    assert found.versions == {
        "nvrtc": "13.0", "driver": "13.0", "device": "Fake H200", "multiprocessors": "4", "memory": "4.92 TB/s",
    }  # fmt: skip


def test_this_machine():
    """Whatever is here: an answer."""
    found = HopperBackend().probe()
    assert isinstance(found, (Ready, Absent))
    if isinstance(found, Absent):
        honest(found, "probe()")


def test_no_driver():
    assert "no NVIDIA driver" in absent(Home(), raising(OSError("libcuda.so.1: not found"))).reason


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
