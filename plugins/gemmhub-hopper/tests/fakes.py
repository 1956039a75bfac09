"""The backend on a fake libcuda and NVRTC, with memory for the conformance kit."""

from __future__ import annotations

import ctypes

import fake_cuda
import numpy as np
from fake_cuda import FakeCuda
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.probe import FUNCTIONS
from gemmhub_nvidia.driver import Driver
from gemmhub_nvidia.scratch import COUNTERS
from gemmhub_nvidia.testing import fake_cuda as doubles
from gemmhub_nvidia.testing.fake_kernels import FakeCompiler


class Home:
    """A fake machine."""

    def __init__(self, **cuda):
        self.cuda = FakeCuda(**cuda)

    def backend(self):
        backend = HopperBackend(lambda: Driver(self.cuda, FUNCTIONS), FakeCompiler)
        backend.probe()
        return backend

    def counters_are_clear(self):
        """Return whether the counters of the workspace, marks included, are zero."""
        address = next(at for at, nbytes, _ in self.cuda.allocated if nbytes > COUNTERS)
        return not np.ctypeslib.as_array((ctypes.c_uint8 * COUNTERS).from_address(address)).any()


def mutated(monkeypatch, tmp_path, file, *pairs, **cuda):
    """Return a home whose kernels have replaced text."""
    changes = tuple((file, old, new) for old, new in pairs)
    fake_cuda.KERNELS.changed(changes)  # fails here where a text is not there: a launch's failure is what tests expect
    monkeypatch.setattr(fake_cuda, "CHANGES", changes)
    return Home(**cuda)


class FakeMemory(doubles.FakeMemory):
    """That of a device of ``home``."""

    def __init__(self, home, index=0):
        super().__init__(home.cuda, index)
