"""The backend on the doubles of libcuda and NVRTC, and memory for the conformance kit to go with it."""

from __future__ import annotations

from fake_cuda import FakeCuda
from gemmhub_cuda.backend import CudaBackend
from gemmhub_cuda.probe import FUNCTIONS

from gemmhub.kit.cuda import Driver
from gemmhub.testing import fake_cuda
from gemmhub.testing.fake_kernels import FakeCompiler


class Home:
    """One fake machine."""

    def __init__(self, **cuda):
        self.cuda = FakeCuda(**cuda)

    def backend(self):
        backend = CudaBackend(lambda: Driver(self.cuda, FUNCTIONS), FakeCompiler)
        backend.probe()
        return backend


class FakeMemory(fake_cuda.FakeMemory):
    """That of a device of ``home``."""

    def __init__(self, home, index=0):
        super().__init__(home.cuda, index)
