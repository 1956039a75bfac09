"""The backend on the doubles of libcuda and NVRTC, and memory for the conformance kit to go with it."""

from __future__ import annotations

import json

import numpy as np
from fake_cuda import FakeCuda
from gemmhub_cuda.backend import CudaBackend
from gemmhub_cuda.probe import FUNCTIONS

from gemmhub.capability import Device
from gemmhub.native.cuda import Driver
from gemmhub.native.nvrtc import Compiled
from gemmhub.testing import Memory


class FakeCompiler:
    """Makes "cubins" that FakeCuda understands."""

    version = (13, 0)
    where = "libnvrtc.so"

    def compile(self, source, verbose=False):
        macros = dict(option[2:].split("=") for option in source.options if option.startswith("-D"))
        arch = next(option for option in source.options if option.startswith("--gpu-architecture="))
        module = {
            "macros": {name: int(value) for name, value in macros.items()},
            "main": source.main,
            "arch": arch.split("=")[1],
        }
        return Compiled(json.dumps(module).encode(), "")


class Home:
    """One fake machine."""

    def __init__(self, **cuda):
        self.cuda = FakeCuda(**cuda)

    def backend(self):
        """Needs GEMMHUB_CUDA_UNPROVEN in the environment to be Ready."""
        backend = CudaBackend(lambda: Driver(self.cuda, FUNCTIONS), FakeCompiler)
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
        return whole[start : start + nbytes]

    def view(self, buffer, dtype, shape, strides, offset):
        return buffer.ctypes.data + offset
