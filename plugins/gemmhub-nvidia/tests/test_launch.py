"""Launches: slots, the context of the thread, and the error of a kernel that does not start."""

from __future__ import annotations

import ctypes
import threading

import pytest
from gemmhub_nvidia.driver import KERNELS, Driver, Gpu
from gemmhub_nvidia.launch import Function, Slot
from gemmhub_nvidia.nvrtc import Source
from gemmhub_nvidia.testing.fake_kernels import FakeCompiler, FakeKernels

from gemmhub.errors import KernelError

SOURCE = Source("count", "count.cu", {"count.cu": ""}, ("--gpu-architecture=sm_90",))


class Arguments(ctypes.Structure):
    _fields_ = (("at", ctypes.c_uint64),)


class Counting(FakeKernels):
    """Its kernels do nothing."""

    def sizes(self, kernel):
        return (8,)

    def execute(self, kernel, launch):
        return ""


@pytest.fixture
def cuda():
    fake = Counting()
    yield fake
    assert fake.complaints == []
    assert fake.stack == []


@pytest.fixture
def function(cuda):
    gpu = Gpu(Driver(cuda, KERNELS), 0)
    handle = gpu.function(FakeCompiler().compile(SOURCE).cubin, "gemm", 0)
    return Function(gpu, "mine", handle, lambda: Slot(Arguments(at=1), (3, 1, 1), 32, 0))


def test_a_slot_is_for_one_call_at_a_time(cuda, function):
    first, second = function.take(), function.take()
    assert first is not second
    first.words[0] = 5
    assert function.started(first, 7)
    assert cuda.launches[-1][1:] == ((3, 1, 1), 7)
    function.free.append(first)
    assert function.take() is first
    assert (first.arguments.at, second.arguments.at) == (5, 1)


def test_a_thread_without_the_context(cuda, function):
    """Nothing starts, and nothing raises: the caller repeats the launch in the context."""
    started = []
    thread = threading.Thread(target=lambda: started.append(function.started(function.take(), 0)))
    thread.start()
    thread.join()
    assert started == [False]
    assert cuda.launches == []


def test_a_kernel_that_does_not_start(cuda, function):
    cuda.faults["cuLaunchKernelEx"] = 719
    with function._gpu, pytest.raises(KernelError, match=r"mine.*unspecified launch failure"):
        function.started(function.take(), 0)
