"""The backend on the doubles of libcuda and libcublasLt, and memory for the conformance kit to go with it."""

from __future__ import annotations

import weakref

import numpy as np
from fake_cuda import FakeCuda
from fake_lt import FakeLt
from gemmhub_cublas.backend import CublasBackend
from gemmhub_cublas.library import Library

from gemmhub.capability import Device
from gemmhub.dtypes import as_dtype, compute_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.native.cuda import Driver
from gemmhub.problem import Bias, GemmProblem, Operand
from gemmhub.testing import Memory


class Home:
    """One fake machine."""

    def __init__(self, **cuda):
        self.cuda = FakeCuda(**cuda)
        self.lt = FakeLt(self.cuda)

    def backend(self):
        backend = CublasBackend(lambda: Driver(self.cuda), lambda major: Library(self.lt, "libcublasLt.so"))
        backend.probe()
        return backend


class FakeMemory(Memory):
    """Host memory that counts as that of a device of ``home``."""

    stream = 0x5EA

    def __init__(self, home, index=0):
        self.home = home
        self.device = Device("cuda", index)

    def empty(self, nbytes):
        whole = np.empty(nbytes + 256, np.uint8)
        start = -whole.ctypes.data % 256
        buffer = whole[start : start + nbytes]
        regions, address = self.home.cuda.regions, buffer.ctypes.data
        regions[address] = nbytes
        weakref.finalize(buffer, regions.pop, address, None)
        return buffer

    def view(self, buffer, dtype, shape, strides, offset):
        return buffer.ctypes.data + offset


def operand(dtype, rows, cols, order="row", batch=(), alignment=256):
    """A dense operand."""
    return Operand(as_dtype(dtype), MatrixLayout.contiguous(rows, cols, batch, order), alignment)


def problem(m=16, n=16, k=16, dtype="float32", out=None, batch=(), a="row", b="row", d="row", index=0, **changes):
    """A problem with dense operands; ``changes`` are fields of GemmProblem."""
    out = as_dtype(out or dtype)
    values = {
        "a": operand(dtype, m, k, a, batch), "b": operand(dtype, k, n, b, batch),
        "out": operand(out.name, m, n, d, batch),
        "compute_dtype": compute_dtype(as_dtype(dtype), as_dtype(dtype), out), "batch": batch,
        "device": Device("cuda", index),
    }  # fmt: skip
    return GemmProblem(m=m, n=n, k=k, **{**values, **changes})


def bias(dtype="float32", axis="n", stride=1):
    return Bias(as_dtype(dtype), axis, stride)


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
        """Call the kernel; the result as it then is."""
        places = [None if x is None else x.ctypes.data for x in (self.a, self.b, self.out, self.c, self.bias)]
        if beta == 0:
            places[3] = None
        kernel.run(*places, alpha, beta, stream)
        return self.out
