"""The backend on a fake libcuda and NVRTC, with memory for the conformance kit."""

from __future__ import annotations

from fake_cuda import FakeCuda
from gemmhub_cuda.backend import CudaBackend
from gemmhub_cuda.probe import FUNCTIONS
from gemmhub_nvidia.driver import Driver
from gemmhub_nvidia.testing import fake_cuda
from gemmhub_nvidia.testing.fake_kernels import FakeCompiler


class Home:
    """A fake machine."""

    def __init__(self, **cuda):
        self.cuda = FakeCuda(**cuda)

    def backend(self):
        backend = CudaBackend(lambda: Driver(self.cuda, FUNCTIONS), FakeCompiler)
        backend.probe()
        return backend


class FakeMemory(fake_cuda.FakeMemory):
    """The memory of a device of ``home``."""

    def __init__(self, home, index=0):
        super().__init__(home.cuda, index)
