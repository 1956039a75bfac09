"""The fakes for CUDA plugins: calls of gemmhub_nvidia.driver work, and violations are reported."""

from __future__ import annotations

import ctypes
import gc
import struct
import subprocess
import sys
from ctypes import byref, c_int, c_uint64, c_void_p

import numpy as np
import pytest
from gemmhub_nvidia.driver import FUNCTIONS, KERNELS, Driver, DriverError, Gpu
from gemmhub_nvidia.nvrtc import Source
from gemmhub_nvidia.probe import look
from gemmhub_nvidia.testing.fake_cuda import RELAXED, TYPES, FakeCuda, FakeMemory
from gemmhub_nvidia.testing.fake_kernels import KERNEL_TYPES, FakeCompiler, FakeKernels, LaunchConfig

from gemmhub.capability import Device
from gemmhub.errors import AllocationError


@pytest.fixture
def fake():
    return FakeCuda(devices=2)


@pytest.fixture
def gpu(fake):
    return Gpu(Driver(fake), 1)


def bytes_at(address, nbytes):
    return np.frombuffer(ctypes.string_at(address, nbytes), np.uint8)


@pytest.mark.parametrize("name", [*FUNCTIONS, *KERNELS])
def test_declarations(name):
    """The arguments agree in number and size with the fake's, which follow cuda.h."""
    declared = {**FUNCTIONS, **KERNELS}[name]
    result, arguments = {**TYPES, **KERNEL_TYPES}[name]
    assert result is c_int
    assert [*map(ctypes.sizeof, declared)] == [*map(ctypes.sizeof, arguments)]


def test_devices(fake):
    driver, gpus = look(lambda: Driver(fake), "525", "a GPU")
    assert driver.cuda_version == (13, 0)
    assert [(gpu.name, gpu.sms, gpu.capability) for gpu in gpus] == [("Fake H200", 132, (9, 0))] * 2
    assert [gpu.default_workspace for gpu in gpus] == [143_771 * 2**20 // 256] * 2
    assert Gpu(Driver(FakeCuda(attributes={75: 8})), 0).capability == (8, 0)
    assert fake.complaints == []


def test_small_cards_have_64_mib():
    class Small(FakeCuda):
        total_memory = 8 * 2**30

    assert Gpu(Driver(Small()), 0).default_workspace == 64 * 2**20


def test_without_devices():
    assert "no device" in look(lambda: Driver(FakeCuda(devices=0)), "525", "a GPU").reason


def test_memory(fake, gpu):
    address = gpu.allocate(1000, zeroed=True)
    assert address % 256 == 0
    assert fake.allocated == [(address, 1000, 1)]
    assert not bytes_at(address, 1000).any()
    assert bytes_at(gpu.allocate(1000), 1000).any()
    assert fake.inside(address + 10, 990)
    assert not fake.inside(address + 10, 991)
    assert fake.complaints == []
    assert fake.stack == []


def test_freed_memory(fake, gpu):
    address, before = gpu.allocate(1000), fake.memory
    with gpu:
        assert fake.cuMemFree_v2(address) == 0
        assert fake.cuMemFree_v2(address) == fake.failed
    assert (fake.allocated, fake.freed, fake.memory) == ([], [address], before + 1000)
    assert not fake.inside(address, 1)
    assert len(fake.complaints) == 1


def test_out_of_memory():
    with pytest.raises(AllocationError):
        Gpu(Driver(FakeCuda(memory=100)), 0).allocate(101)


def test_allocating_during_a_capture(fake, gpu):
    """gemmhub's own allocation does not affect captures; a plain call invalidates them."""
    fake.captures[7] = 77
    assert gpu.driver.stream(7) == (77, fake.graph(7), 0)
    assert gpu.driver.stream(8) == (0, 0, 8)
    gpu.allocate(100, zeroed=True)
    assert fake.mode == 0
    assert fake.invalidated == set()
    address = c_uint64()
    with gpu:
        assert fake.cuMemAlloc_v2(byref(address), 100) == 900
    assert fake.invalidated == {77}
    assert fake.complaints == ["a forbidden call during capture"]


def forbidden(fake):
    """Violations, by their messages."""
    buffer = np.zeros(16, np.uint8)
    mode = c_int(RELAXED)
    yield "cuDeviceGet: ", lambda: fake.cuDeviceGet(byref(c_int()), 2)
    yield "cuCtxPushCurrent_v2: ", lambda: fake.cuCtxPushCurrent_v2(0x1002)
    yield "cuCtxPopCurrent_v2: ", lambda: fake.cuCtxPopCurrent_v2(byref(c_void_p()))
    yield "cuCtxSynchronize: ", lambda: fake.cuCtxSynchronize()
    yield "waits for the legacy one", lambda: fake.cuCtxPushCurrent_v2(0x1000) or fake.cuStreamCreate(byref(mode), 0)
    yield "cuMemsetD8Async: ", lambda: fake.cuMemsetD8Async(buffer.ctypes.data, 1, 16, None)
    yield "cuDeviceGetAttribute: KeyError", lambda: fake.cuDeviceGetAttribute(byref(c_int()), 4711, 0)


def test_what_must_not_be_done(fake):
    cases = [*forbidden(fake)]
    for i, (words, call) in enumerate(cases):
        assert call() == fake.failed
        assert words in fake.complaints[i]
    assert len(fake.complaints) == len(cases) == 7


def test_faults(fake):
    driver = Driver(fake)
    fake.faults["cuDeviceGetCount"] = 2
    with pytest.raises(DriverError, match="CUDA_ERROR_OUT_OF_MEMORY: out of memory"):
        driver.device_count()
    fake.faults.clear()
    assert driver.device_count() == 2
    assert fake.calls.count("cuDeviceGetCount") == 2


def test_a_driver_without_a_function(fake):
    del fake.cuStreamGetCaptureInfo_v2
    with pytest.raises(AttributeError):
        Driver(fake)


def test_fake_memory(fake):
    memory = FakeMemory(fake, 1)
    assert memory.device == Device("cuda", 1)
    buffer = memory.empty(100)
    address = memory.view(buffer, np.dtype(np.float32), (5, 5), (20, 4), 8) - 8
    assert address == buffer.ctypes.data
    assert address % 256 == 0
    view = buffer.view(np.float32)
    del buffer
    assert fake.inside(address, 100), "while anybody can write to it"
    del view
    gc.collect()
    assert not fake.inside(address, 1)


class Adding(FakeKernels):
    """Its kernels add a macro to the number at an address."""

    def sizes(self, kernel):
        return (8,)

    def check(self, kernel, launch):
        assert launch.block == (32, 1, 1), "a warp"

    def execute(self, kernel, launch):
        (address,) = struct.unpack("=Q", *launch.parameters)
        if not self.inside(address, 8):
            return f"{address:#x} is nobody's"
        c_uint64.from_address(address).value += kernel.module["macros"]["STEP"] * launch.grid[0]
        return ""


def launch(fake, function, address, block=32, shared=0):
    parameter = c_uint64(address)
    places = (c_uint64 * 1)(ctypes.addressof(parameter))
    config = LaunchConfig(3, 1, 1, block, 1, 1, shared, 5, 0, 0)
    return fake.cuLaunchKernelEx(byref(config), function, places, None)


def test_kernels():
    fake = Adding()
    gpu = Gpu(Driver(fake, KERNELS), 0)
    source = Source("add", "add.cu", {"add.cu": ""}, ("--gpu-architecture=sm_90", "-DSTEP=4"))
    function = gpu.function(FakeCompiler().compile(source).cubin, "gemm", 60000)
    address = gpu.allocate(8, zeroed=True)
    assert launch(fake, function, address, shared=60000) == 0
    assert c_uint64.from_address(address).value == 12
    module = {"macros": {"STEP": 4}, "main": "add.cu", "arch": "sm_90"}
    assert fake.launches == [(module, (3, 1, 1), 5)]
    assert fake.complaints == []
    refused = ({"block": 64}, {"shared": 60001}, {"address": address + 8})
    for changes in refused:
        assert launch(fake, function, **{"address": address, **changes}) == 719
    assert [words in text for words, text in zip(("a warp", "AssertionError", "is nobody's"), fake.complaints)] == [
        True
    ] * 3
    assert c_uint64.from_address(address).value == 12
    with pytest.raises(DriverError):
        gpu.function(FakeCompiler().compile(source).cubin, "another", 0)


def test_torchs_memory_imports_torch_at_its_first_use():
    script = (
        "import sys; from gemmhub_nvidia.testing.torch_cuda import TorchMemory; "
        "print(TorchMemory(1).device, *sys.modules)"
    )
    words = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert words[0] == "cuda:1"
    assert "torch" not in words
