"""As much of cupy as the command line touches, with the host's memory as two devices, and a backend for it."""

from __future__ import annotations

import ctypes
import time
import types
from typing import ClassVar

import numpy as np

from gemmhub import Backend, Device, Kernel, Offer, Ready

CACHE = 2**14


class Pointer:
    """cupy.cuda.MemoryPointer: a place in a buffer."""

    def __init__(self, buffer, offset, device_id):
        self.buffer, self.offset, self.device_id = buffer, offset, device_id

    @property
    def ptr(self):
        return self.buffer.ctypes.data + self.offset

    def __add__(self, offset):
        return Pointer(self.buffer, self.offset + offset, self.device_id)


class Context:
    """cupy.cuda.Device: current within a block."""

    current: ClassVar = [0]
    attributes: ClassVar = {"L2CacheSize": CACHE}

    def __init__(self, index=None):
        self.id = Context.current[-1] if index is None else index

    def __enter__(self):
        Context.current.append(self.id)

    def __exit__(self, *_):
        Context.current.pop()

    def synchronize(self):
        pass


class Event:
    def record(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass


class ndarray:  # noqa: N801
    def __init__(self, shape, dtype=float, memptr=None, strides=None):
        self.dtype = np.dtype(dtype)
        shape = shape if isinstance(shape, tuple) else (shape,)
        if memptr is None:
            size = int(np.prod(shape)) * self.dtype.itemsize
            spare = np.empty(size + 512, np.uint8)
            memptr = Pointer(spare, -spare.ctypes.data % 512, Context.current[-1])
        self.data = memptr
        self.host = np.ndarray(shape, self.dtype, memptr.buffer, memptr.offset, strides)
        self.shape, self.strides, self.ndim, self.nbytes = shape, self.host.strides, len(shape), self.host.nbytes
        self.device = types.SimpleNamespace(id=memptr.device_id)

    @property
    def __cuda_array_interface__(self):
        return {"data": (self.data.ptr, False), "shape": self.shape, "strides": self.strides}

    def _like(self, host):
        offset = host.__array_interface__["data"][0] - self.data.buffer.ctypes.data
        return ndarray(host.shape, host.dtype, Pointer(self.data.buffer, offset, self.device.id), host.strides)

    @property
    def T(self):  # noqa: N802
        return self._like(self.host.T)

    def __getitem__(self, index):
        return self._like(self.host[index])

    def __setitem__(self, index, value):
        self.host[index] = value.host

    def fill(self, value):
        self.host[...] = value


def asarray(x):
    if x.dtype.name.startswith("float8"):
        raise ValueError(f"Unsupported dtype {x.dtype}\n(more lines)")
    made = ndarray(x.shape, x.dtype)
    made.host[...] = x
    return made


def matmul(a, b, out=None, **options):
    assert Context.current[-1] == a.device.id == b.device.id
    if a.dtype.name == "bfloat16":
        raise TypeError("no kernel for bfloat16")
    product = np.matmul(a.host, b.host, out=None if out is None else out.host, **options)
    return asarray(product) if out is None else out


def make(devices=2):
    """A module to put into sys.modules; counts of 0 raise, as without a driver."""

    class OutOfMemoryError(MemoryError):
        pass

    def count():
        if devices == 0:
            raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected\n(more lines)")
        return devices

    runtime = types.SimpleNamespace(
        is_hip=False, getDeviceCount=count, getDevice=lambda: Context.current[-1],
        getDeviceProperties=lambda index: {"name": f"Pretender {index}".encode()},
        runtimeGetVersion=lambda: 12040, driverGetVersion=lambda: 13000,
    )  # fmt: skip
    module = types.ModuleType("cupy")
    module.__version__ = "14.0"
    module.ndarray, module.asarray, module.matmul = ndarray, asarray, matmul
    module.asnumpy = lambda x: x.host.copy()
    module.empty = ndarray
    module.zeros = ndarray
    module.cuda = types.SimpleNamespace(
        Device=Context, Event=Event, runtime=runtime, memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        get_elapsed_time=lambda start, end: (end.time - start.time) * 1e3,
        get_current_stream=lambda index: types.SimpleNamespace(ptr=7, is_capturing=lambda: False),
    )  # fmt: skip
    return module


class Pretended(Backend):
    """Multiplies at addresses. One element is off by ``error``; ``seen`` holds the addresses of each call."""

    def __init__(self, name="pretended", error=0.0):
        self.name, self.error, self.seen, self.problems = name, error, [], []

    def probe(self):
        return Ready((Device("cuda", 0), Device("cuda", 1)), {"pretended": "1"})

    def offer(self, problem):
        return Offer()

    def prepare(self, problem, candidate, workspace_limit):
        self.problems.append(problem)

        def at(address, operand):
            layout = operand.layout
            size = operand.dtype.itemsize
            shape, strides = (layout.rows, layout.cols), (layout.row_stride * size, layout.col_stride * size)
            span = sum((n - 1) * step for n, step in zip(shape, strides)) + size
            buffer = np.frombuffer((ctypes.c_char * span).from_address(address), np.uint8)
            return np.ndarray(shape, operand.dtype, buffer, 0, strides)

        def run(a, b, out, alpha, beta, stream, c=None, bias=None):
            assert stream == 7
            assert Context.current[-1] == problem.device.index
            self.seen.append((a, b, out))
            wide = at(a, problem.a).astype(np.float64) @ at(b, problem.b).astype(np.float64)
            wide *= alpha
            wide[-1, 0] += self.error
            at(out, problem.out)[...] = wide.astype(problem.out.dtype)

        return Kernel(run, "pretended")
