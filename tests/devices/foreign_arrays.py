"""Fakes of unknown libraries: one exports DLPack, one the CUDA array interface."""

from __future__ import annotations

import types

import numpy as np
from machine import Capsule, at, dense_strides


class Array:
    """On a device of ``machine``; ``host`` is the same memory for the tests."""

    def __init__(self, machine, address, dtype, shape, strides, device, owner):
        self._machine, self._address, self._device, self._owner = machine, address, device, owner
        self.host = at(address, dtype, shape, strides, owner)


def dlpack_module(machine):
    """``fakejax``: arrays with DLPack only; ``asked`` lists the streams that consumers passed."""
    module = types.ModuleType("fakejax")
    module.asked = []

    class DLPackArray(Array):
        def __dlpack_device__(self):
            return 2, self._device

        def __dlpack__(self, *, stream=None, **options):
            module.asked.append(stream)
            host = self.host
            return Capsule(host.ctypes.data, host.dtype, host.shape, host.strides, self._device, self)

    def from_dlpack(x):
        """Import an array of the fake cupy or torch, whichever imports foreign arrays."""
        host = x.host
        return DLPackArray(machine, host.ctypes.data, host.dtype, host.shape, host.strides, _device(machine, x), x)

    DLPackArray.__module__ = "fakejax"
    module.Array, module.from_dlpack = DLPackArray, from_dlpack
    module.array = lambda x, device=0: _array(machine, DLPackArray, x, device)
    return module


def interface_module(machine):
    """``fakenumba``: arrays with the CUDA array interface only."""
    module = types.ModuleType("fakenumba")
    module.cuda = types.SimpleNamespace()

    class InterfaceArray(Array):
        stream = None
        readonly = False

        @property
        def __cuda_array_interface__(self):
            host = self.host
            address = host.ctypes.data if host.size else 0
            interface = {"shape": host.shape, "typestr": host.dtype.str, "data": (address, self.readonly)}
            interface |= {"strides": None if host.flags.c_contiguous else host.strides, "version": 3}
            return interface | ({} if self.stream is None else {"stream": self.stream})

    def as_cuda_array(x):
        host = x.host
        return InterfaceArray(machine, host.ctypes.data, host.dtype, host.shape, host.strides, _device(machine, x), x)

    InterfaceArray.__module__ = "fakenumba"
    module.Array, module.cuda.as_cuda_array = InterfaceArray, as_cuda_array
    module.array = lambda x, device=0: _array(machine, InterfaceArray, x, device)
    return module


def _array(machine, kind, x, device):
    x = np.asarray(x)
    memory = machine.allocate(x.nbytes, device)
    strides = dense_strides(x.shape, x.itemsize)
    made = kind(machine, memory.ctypes.data, x.dtype, x.shape, strides, device, memory)
    made.host[...] = x
    return made


def _device(machine, x):
    return machine.owner(x.host.ctypes.data) if x.host.size else machine.device
