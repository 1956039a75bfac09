"""Probing reports what is missing as Absent, with a reason and a remedy, and never raises."""

from __future__ import annotations

import importlib.metadata

import pytest
from fakes import FakeCompiler, Home
from gemmhub_cuda.backend import CudaBackend
from gemmhub_cuda.probe import FUNCTIONS

from gemmhub.capability import Absent, Device, Ready
from gemmhub.kit.cuda import Driver
from gemmhub.kit.nvrtc import CompilerError
from gemmhub.testing.check import honest


class OlderCompiler(FakeCompiler):
    version = (12, 4)


def absent(home, open_driver=None, open_compiler=FakeCompiler):
    backend = CudaBackend(open_driver or (lambda: Driver(home.cuda, FUNCTIONS)), open_compiler)
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
    """Probing returns an answer on any machine."""
    found = CudaBackend().probe()
    assert isinstance(found, (Ready, Absent))
    if isinstance(found, Absent):
        honest(found, "probe()")


def test_no_driver():
    assert "no NVIDIA driver" in absent(Home(), raising(OSError("libcuda.so.1: not found"))).reason


def test_old_driver():
    assert "too old" in absent(Home(), raising(AttributeError("cuLaunchKernelEx"))).reason
    assert "12.4 is needed" in absent(Home(version=12030)).reason


@pytest.mark.parametrize("fault", [None, 100])
def test_no_device(fault):
    home = Home(devices=0)
    if fault is None:
        home.cuda.faults["cuInit"] = 0
    assert "shows no device" in absent(home).reason


def test_old_cards():
    """Which cards are too old depends on NVRTC."""
    volta = {75: 7, 76: 0}
    found = absent(Home(attributes=volta))
    assert "7.5 and later" in found.reason
    assert "Fake H200 (7.0)" in found.reason
    assert "cu12" in found.remedy
    home = Home(attributes=volta)
    assert isinstance(CudaBackend(lambda: Driver(home.cuda, FUNCTIONS), OlderCompiler).probe(), Ready)
    assert "7.0 and later" in absent(Home(attributes={75: 6, 76: 1}), open_compiler=OlderCompiler).reason


def test_no_compiler():
    error = CompilerError("NVRTC was not found", "pip install it")
    found = absent(Home(), open_compiler=raising(error))
    assert (found.reason, found.remedy) == ("NVRTC was not found", "pip install it")


def test_a_compiler_too_new_for_the_driver():
    found = absent(Home(version=12080))
    assert "NVRTC 13.0; the driver runs up to CUDA 12.8" in found.reason
    assert "nvidia-cuda-nvrtc-cu12" in found.remedy


def test_entry_point():
    points = [p for p in importlib.metadata.entry_points(group="gemmhub") if p.name == "cuda"]
    assert [p.value for p in points] == ["gemmhub_cuda.plugin"]
    from gemmhub_cuda import plugin

    (description,) = plugin.gemmhub_backends()
    assert description.name == "cuda"
    assert description.load().name == "cuda"
