"""A backend for MUSA whose kernels compute with NumPy at the addresses they get: the fake's memory is the host's."""

from __future__ import annotations

import ctypes

import numpy as np
from gemmhub_musa import runtime

from gemmhub import Backend, BackendDescription, Device, Kernel, Ready
from gemmhub._choice import registry
from gemmhub.backend import BASIC, Offer
from gemmhub.epilogues import EPILOGUES


class Addresses(Backend):
    """``spoil`` is done to each result before it is written: it stands for a mistake."""

    name = "addresses"
    takes = BASIC

    def __init__(self, spoil=None):
        self.streams, self.devices, self.spoil = [], [], spoil

    @classmethod
    def listed(cls, **options):
        """Register the backend as a plugin would, until the next reload."""
        backend = cls(**options)
        description = BackendDescription(cls.name, lambda: backend, "for tests", ("musa",), contract=2)
        entry = registry.registry().add(description, cls.name, "gemmhub-addresses")
        assert entry.description is description, entry.get()
        return backend

    def probe(self):
        return Ready((Device("musa", 0), Device("musa", 1)), {"addresses": "1"}, ("computes on the host",))

    def offer(self, problem):
        return Offer()

    def prepare(self, problem, candidate, workspace_limit):
        def run(a, b, out, alpha, beta, stream, c=None, bias=None):
            self.streams.append(stream)
            self.devices.append(runtime.load().current_device)
            wide = np.complex128 if problem.compute_dtype.kind == "c" else np.float64
            result = alpha * np.matmul(matrix(problem.a, a).astype(wide), matrix(problem.b, b).astype(wide))
            if c is not None:
                result = result + beta * matrix(problem.c, c)
            if bias is not None:
                result = result + at(bias, problem.bias.dtype, (problem.n,), (problem.bias.dtype.itemsize,))
            if problem.activation is not None:
                result = EPILOGUES[problem.activation](result)
            if self.spoil is not None:
                result = self.spoil(result)
            matrix(problem.out, out)[...] = result.astype(problem.out.dtype)

        return Kernel(run, "NumPy at addresses")


def at(address, dtype, shape, strides):
    """The ndarray at an address, with strides in bytes."""
    low = sum((size - 1) * step for size, step in zip(shape, strides) if step < 0)
    high = sum((size - 1) * step for size, step in zip(shape, strides) if step > 0) + dtype.itemsize
    memory = (ctypes.c_uint8 * (high - low)).from_address(address + low)
    return np.ndarray(shape, dtype, memory, -low, strides)


def matrix(operand, address):
    """The operand as an ndarray of shape (..., rows, cols)."""
    layout, size = operand.layout, operand.dtype.itemsize
    strides = (*layout.batch_strides, layout.row_stride, layout.col_stride)
    return at(address, operand.dtype, (*layout.batch, layout.rows, layout.cols), [step * size for step in strides])
