"""Fake devices for every test here: fake cupy and torch, foreign libraries, a backend at addresses."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import address_backend
import cupy_module
import foreign_arrays
import numpy as np
import pytest
import torch_module
from machine import Machine, at

from gemmhub import api
from gemmhub._arrays.cupy.operands import cupy_arrays
from gemmhub._arrays.dlpack import adopted
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.host import torch_host_arrays
from gemmhub._arrays.torch.operands import torch_arrays, torch_dtypes


@pytest.fixture
def machine(monkeypatch):
    """Two devices, in a process that has used no device library."""
    for name in ("cupy", "torch", "torch_musa", "fakejax", "fakenumba"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    api.forget_decisions()
    _forget()
    yield Machine()
    _forget()


def _forget():
    for cached in (
        cupy_arrays, torch_arrays, torch_dtypes,
        torch_host_arrays, tensors.increment_version, tensors.dispatch_depth, tensors.autocast_test, tensors.forward_ad,
        tensors.dispatch_modes,
    ):  # fmt: skip
        cached.cache_clear()
    adopted.adopted_arrays.cache_clear()


@pytest.fixture
def cupy(machine, monkeypatch):
    module = cupy_module.build(machine)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def torch(machine, monkeypatch):
    module = torch_module.build(machine)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture
def fakejax(machine, monkeypatch):
    module = foreign_arrays.dlpack_module(machine)
    monkeypatch.setitem(sys.modules, "fakejax", module)
    return module


@pytest.fixture
def fakenumba(machine, monkeypatch):
    module = foreign_arrays.interface_module(machine)
    monkeypatch.setitem(sys.modules, "fakenumba", module)
    return module


@pytest.fixture
def backend(machine):
    made = address_backend.add(address_backend.Addresses())
    yield made
    assert not made.violations


class Library:
    """The interface that the tests use of cupy and torch alike."""

    def __init__(self, name, module, machine):
        self.name, self.module, self.machine = name, module, machine

    def array(self, x, device=0, offset=0):
        """The values of the ndarray ``x`` with its strides, its lowest byte ``offset`` after a page's begin."""
        x = np.asarray(x)
        before = -sum((n - 1) * step for n, step in zip(x.shape, x.strides) if step < 0) if x.size else 0
        after = sum((n - 1) * step for n, step in zip(x.shape, x.strides) if step > 0) if x.size else -x.itemsize
        memory = self.machine.allocate(offset + before + after + x.itemsize, device)
        made = self.at(memory, offset + before, x.dtype, x.shape, x.strides, device)
        made.host[...] = x
        return made

    def at(self, memory, offset, dtype, shape, strides, device=0):
        """An array in uint8 memory of the machine's."""
        address = memory.ctypes.data + offset
        if self.name == "torch":
            kind = getattr(self.module, dtype.name)
            host = at(address, dtype, shape, strides, memory)
            return self.module.Tensor(host, kind, self.module.device("cuda", device), memory)
        cuda = self.module.cuda
        pointer = cuda.MemoryPointer(cuda.UnownedMemory(memory.ctypes.data, memory.size, memory, device), offset)
        pointer.device_id = device
        return self.module.ndarray(shape, dtype, pointer, strides)

    def device(self, x):
        return x.get_device() if self.name == "torch" else x.data.device_id

    def stream(self, handle, device=0):
        """A stream object of the library's own."""
        if self.name == "torch":
            return self.module.cuda.ExternalStream(handle, self.module.device("cuda", device))
        return self.module.cuda.ExternalStream(handle, device)

    def current(self, handle, device=0):
        """Make a stream current for a block."""
        return self.machine.streaming(self.name, device, handle) if handle is not None else nullcontext()

    def owns(self, x):
        return type(x) is (self.module.Tensor if self.name == "torch" else self.module.ndarray)


@pytest.fixture(params=["cupy", "torch"])
def library(request, machine):
    return Library(request.param, request.getfixturevalue(request.param), machine)


@pytest.fixture
def library_of(machine, request):
    """A function that makes the :class:`Library` of a name."""
    return lambda name: Library(name, request.getfixturevalue(name), machine)
