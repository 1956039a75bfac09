"""Probing reports what is missing as Absent, with a reason and a remedy, and never raises."""

from __future__ import annotations

import importlib.metadata

import pytest
from fakes import FakeCompiler, Home
from gemmhub_cuda.backend import CudaBackend
from gemmhub_cuda.probe import FUNCTIONS
from gemmhub_nvidia.driver import Driver
from gemmhub_nvidia.nvrtc import CompilerError
from gemmhub_nvidia.testing.probe import ProbeTests, Probing, raising

from gemmhub.capability import Ready


class OlderCompiler(FakeCompiler):
    version = (12, 4)


probing = Probing(CudaBackend, FUNCTIONS, FakeCompiler)
absent = probing.absent


class TestProbe(ProbeTests):
    probing = probing
    home = Home
    backend = CudaBackend


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


def test_new_cards():
    """Cards of Blackwell need NVRTC 12.8."""
    for capability in ({75: 10, 76: 0}, {75: 12, 76: 0}):
        found = absent(Home(attributes=capability), open_compiler=OlderCompiler)
        assert "NVRTC 12.4 does not compile for compute capability 10.0 and later" in found.reason
        assert "12.8" in found.remedy
        home = Home(attributes=capability)
        backend = CudaBackend(lambda cuda=home.cuda: Driver(cuda, FUNCTIONS), FakeCompiler)
        assert isinstance(backend.probe(), Ready)
    ada = Home(attributes={75: 8, 76: 9})
    assert isinstance(CudaBackend(lambda: Driver(ada.cuda, FUNCTIONS), OlderCompiler).probe(), Ready)


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
