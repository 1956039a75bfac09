"""A fake torch with torch_musa, as far as gemmhub uses it; its memory is a fake runtime's.

Streams as torch_musa has them: ``current_stream(index).musa_stream``, no fast path through ``torch._C``.
"""

from __future__ import annotations

import types
from contextlib import contextmanager, nullcontext

import numpy as np
from address_backend import at
from gemmhub_musa import array

from gemmhub import dtypes


class dtype:  # noqa: N801
    def __init__(self, name):
        self.name, self.numpy = name, dtypes.as_dtype(name)


class device:  # noqa: N801
    def __init__(self, kind, index=None):
        self.type, self.index = kind, index

    def __eq__(self, other):
        return (self.type, self.index) == (other.type, other.index)

    def __hash__(self):
        return hash((self.type, self.index))

    def __repr__(self):
        return f"{self.type}:{self.index}"


class Tensor:
    """Over an :class:`Array`. ``host`` is the same memory for the tests."""

    is_nested = requires_grad = is_cpu = False
    _version = 0

    def __init__(self, data, kind):
        self._data, self.dtype, self.layout = data, kind, "torch.strided"
        self.device = device("musa", data.data.device_id)

    @property
    def host(self):
        x = self._data
        return at(x.data.ptr, x.dtype, x.shape, x.strides)

    @property
    def shape(self):
        return self._data.shape

    @property
    def T(self):  # noqa: N802
        return Tensor(self._data.T, self.dtype)

    def __getitem__(self, key):
        return Tensor(self._data[key], self.dtype)

    def stride(self):
        return tuple(step // self._data.itemsize for step in self._data.strides)

    def data_ptr(self):
        return self._data.data.ptr

    def get_device(self):
        return self.device.index

    def numel(self):
        return self._data.size

    def is_conj(self):
        return False

    is_neg = is_conj

    def copy_(self, other):
        self.host[...] = other.host

    def __dlpack_device__(self):
        return 12, self.device.index

    def __dlpack__(self, **_):
        raise AssertionError("nobody needs to export it")


def build():
    """A fresh ``torch``. ``torch.streams`` are the current streams by device."""
    torch = types.ModuleType("torch")
    torch._C, torch.musa = types.SimpleNamespace(), types.SimpleNamespace()
    torch.version = types.SimpleNamespace(hip=None, musa="4.3.0")
    torch.strided, torch.streams, torch.synchronized = "torch.strided", {0: 0, 1: 0}, []
    kinds = {}
    for name in dtypes.SUPPORTED:
        kinds[dtypes.as_dtype(name)] = dtype(name)
        setattr(torch, name, kinds[dtypes.as_dtype(name)])

    class OutOfMemoryError(RuntimeError):
        pass

    class Stream:
        def __init__(self, handle, index):
            self.musa_stream, self.device = handle, device("musa", index)

    class ExternalStream(Stream):
        def __init__(self, handle, device=None):
            assert handle, "for 0 the real one takes a stream of torch's own"
            super().__init__(handle, device.index)

    @contextmanager
    def entered(stream):
        index = stream.device.index
        before, torch.streams[index] = torch.streams[index], stream.musa_stream
        try:
            with array.arrays(index).on(None):
                yield
        finally:
            torch.streams[index] = before

    def empty(shape, *, dtype, device):
        if device.type == "cpu":
            return types.SimpleNamespace(_version=0)
        return Tensor(array.empty(tuple(shape), dtype.numpy, device.index), dtype)

    def empty_strided(shape, steps, *, dtype, device):
        strides = tuple(step * dtype.numpy.itemsize for step in steps)
        span = sum((size - 1) * step for size, step in zip(shape, strides)) + dtype.numpy.itemsize
        memory = array.empty((span,), np.dtype(np.uint8), device.index)
        return Tensor(array.Array(memory.data, dtype.numpy, tuple(shape), strides), dtype)

    def increment_version(x):
        x._version += 1

    torch.autograd = types.SimpleNamespace(graph=types.SimpleNamespace(increment_version=increment_version))
    torch.nn = types.SimpleNamespace(Parameter=type("Parameter", (Tensor,), {}))
    torch.inference_mode = lambda enabled=True: nullcontext()
    torch.tensor = lambda x, index=0: Tensor(array.from_numpy(x, index), kinds[x.dtype])
    torch.Tensor, torch.device, torch.OutOfMemoryError = Tensor, device, OutOfMemoryError
    torch.empty, torch.empty_strided, torch.is_grad_enabled = empty, empty_strided, lambda: True
    vars(torch.musa).update(
        Stream=Stream, ExternalStream=ExternalStream, stream=entered,
        device=lambda index: array.arrays(index).on(None),
        current_stream=lambda index: Stream(torch.streams[index], index),
        default_stream=lambda index: Stream(0, index),
        synchronize=torch.synchronized.append, is_available=lambda: True, device_count=lambda: 2,
    )  # fmt: skip
    Tensor.__module__ = "torch"
    return torch
