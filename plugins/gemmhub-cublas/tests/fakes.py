# ruff: noqa: N802 (methods are called as the C functions are)
"""The backend on a fake libcuda and libcublasLt, with memory for the conformance kit."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_size_t, c_uint64, c_void_p
from typing import ClassVar

import numpy as np
from fake_lt import FakeLt
from gemmhub_cublas.algorithm_proof import COPIES
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cublas.library import Library
from gemmhub_nvidia.driver import Driver
from gemmhub_nvidia.testing import fake_cuda

from gemmhub.capability import Device
from gemmhub.testing import problems
from gemmhub.testing.problems import bias, operand

__all__ = ["Arrays", "FakeMemory", "Home", "bias", "operand", "problem"]


class FakeCuda(fake_cuda.FakeCuda):
    """With copies between host and device, and on the device."""

    types: ClassVar = {
        **fake_cuda.TYPES,
        "cuMemcpyHtoDAsync_v2": (c_int, (c_uint64, c_void_p, c_size_t, c_void_p)),
        "cuMemcpyDtoHAsync_v2": (c_int, (c_void_p, c_uint64, c_size_t, c_void_p)),
        "cuMemcpyDtoDAsync_v2": (c_int, (c_uint64, c_uint64, c_size_t, c_void_p)),
    }

    def __init__(self, **given):
        super().__init__(**given)
        self.copies = []
        """The copies on a device: (target, source, bytes, stream, capture)."""

    def _copy(self, target, source, address, nbytes, stream):
        assert self.stack
        assert self.inside(address, nbytes)
        assert stream not in self.captures
        ctypes.memmove(target, source, nbytes)

    def _cuMemcpyHtoDAsync_v2(self, target, source, nbytes, stream):
        self._copy(target, source, target, nbytes, stream)

    def _cuMemcpyDtoHAsync_v2(self, target, source, nbytes, stream):
        self._copy(target, source, source, nbytes, stream)

    def _cuMemcpyDtoDAsync_v2(self, target, source, nbytes, stream):
        assert self.context
        assert self.inside(target, nbytes)
        assert self.inside(source, nbytes)
        assert nbytes > 0
        self.copies.append((target, source, nbytes, stream or 0, self.captures.get(stream, 0)))
        ctypes.memmove(target, source, nbytes)


class Home:
    """A fake machine."""

    def __init__(self, **cuda):
        self.cuda = FakeCuda(**cuda)
        self.lt = FakeLt(self.cuda)

    def backend(self):
        backend = CublasBackend(lambda: Driver(self.cuda, COPIES), lambda major: Library(self.lt, "libcublasLt.so"))
        backend.probe()
        return backend


class FakeMemory(fake_cuda.FakeMemory):
    """The memory of a device of ``home``."""

    def __init__(self, home, index=0):
        super().__init__(home.cuda, index)


def problem(m=16, n=16, k=16, *more, index=0, **changes):
    """Return a problem of gemmhub.testing on a device."""
    return problems.problem(m, n, k, *more, **{"device": Device("cuda", index), **changes})


class Arrays:
    """Operands of :func:`problem` on a fake device: numpy arrays whose addresses kernels take."""

    def __init__(self, home, problem, seed=0, offset=0):
        rng = np.random.default_rng(seed)
        self.buffers = []

        def make(dtype, *shape):
            size = int(np.prod(shape)) * dtype.itemsize
            buffer = FakeMemory(home).empty(size + 256)
            self.buffers.append(buffer)
            values = buffer[offset : offset + size].view(dtype).reshape(shape)
            values[...] = rng.integers(-4, 5, shape).astype(dtype)
            return values

        batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
        self.a, self.b = make(problem.a.dtype, *batch, m, k), make(problem.b.dtype, *batch, k, n)
        self.out = make(problem.out.dtype, *batch, m, n)
        self.c = make(problem.c.dtype, *batch, m, n) if problem.c else None
        self.bias = make(problem.bias.dtype, n if problem.bias.axis == "n" else m) if problem.bias else None

    def run(self, kernel, alpha=1, beta=0, stream=0):
        """Call the kernel; return the result."""
        a, b, out = (x.ctypes.data for x in (self.a, self.b, self.out))
        others = {"c": self.c if beta else None, "bias": self.bias}
        kernel.run(a, b, out, alpha, beta, stream, **{k: x.ctypes.data for k, x in others.items() if x is not None})
        return self.out
