"""Device memory for the conformance kit, and operands for single products."""

from __future__ import annotations

import numpy as np
from gemmhub_musa import array, runtime, sdk

from gemmhub.capability import Device
from gemmhub.testing import Memory


class MusaMemory(Memory):
    """Memory of device ``index``, work on a stream of its own."""

    def __init__(self, index=0):
        self.device = Device("musa", index)
        self._stream = None

    @property
    def family(self):
        return array.family(self.device.index)

    @property
    def stream(self):
        if self._stream is None:
            with self.family.runtime.device(self.device.index):
                self._stream = self.family.runtime.stream_create()
        return self._stream

    def empty(self, nbytes):
        made = self.family.empty((nbytes,), np.dtype(np.uint8))
        assert made.data.ptr % 256 == 0
        return made

    def write(self, buffer, data):
        with self.family.runtime.device(self.device.index):
            self.family.runtime.memcpy(buffer.data.ptr, data.ctypes.data, data.nbytes, runtime.TO_DEVICE)

    def read(self, buffer):
        return buffer.numpy()

    def view(self, buffer, dtype, shape, strides, offset):
        return buffer.data.ptr + offset

    def synchronize(self):
        self.family.synchronize()


def simulator():
    """libmusart of the simulated home, for its own functions."""
    return sdk.find().load("musart")


class Operands:
    """Small whole numbers for a problem with operands of any strides, on its device."""

    def __init__(self, problem, seed=0):
        rng = np.random.default_rng(seed)
        self.problem, self.family = problem, array.family(problem.device.index)

        def make(operand):
            layout, size = operand.layout, operand.dtype.itemsize
            shape = (*problem.batch, layout.rows, layout.cols)
            steps = (*layout.batch_strides, layout.row_stride, layout.col_stride)
            low = sum((n - 1) * s for n, s in zip(shape, steps) if s < 0)
            high = sum((n - 1) * s for n, s in zip(shape, steps) if s > 0)
            memory = rng.integers(-4, 5, high - low + 1).astype(operand.dtype)
            strides = tuple(s * size for s in steps)
            values = np.ndarray(shape, operand.dtype, memory.view(np.uint8).data, -low * size, strides)
            placed = self.family.from_host(memory)
            return memory, values, placed, placed.data.ptr - low * size

        self.a, self.b, self.out = make(problem.a), make(problem.b), make(problem.out)
        self.c = make(problem.c) if problem.c else None
        self.bias = None
        if problem.bias:
            length = problem.n if problem.bias.axis == "n" else problem.m
            values = rng.integers(-4, 5, length).astype(problem.bias.dtype)
            placed = self.family.from_host(values)
            self.bias = values, values, placed, placed.data.ptr

    @property
    def wide(self):
        """a @ b of the values, in the accumulator's type."""
        compute = self.problem.compute_dtype
        return self.a[1].astype(compute) @ self.b[1].astype(compute)

    def launch(self, run, alpha=1, beta=0, stream=0, in_place=False):
        """Call the kernel; wait for nothing."""
        c = None if beta == 0 else self.out[3] if in_place else self.c[3]
        run(self.a[3], self.b[3], self.out[3], c, self.bias and self.bias[3], alpha, beta, stream)

    def result(self):
        """What is there once all work is done."""
        memory = self.out[2].numpy()
        like = self.out[1]
        return np.ndarray(
            like.shape, like.dtype, memory.view(np.uint8).data, self.out[3] - self.out[2].data.ptr, like.strides
        ).copy()

    def run(self, run, **options):
        """Call the kernel; the result."""
        self.launch(run, **options)
        return self.result()
