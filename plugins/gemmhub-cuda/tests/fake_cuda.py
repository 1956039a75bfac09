"""A fake libcuda with the real kernels, compiled for the host and run by the emulator (emulated.py)."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import ClassVar

import emulated
from gemmhub_cuda import quantize
from gemmhub_cuda.launch import Params
from gemmhub_nvidia.testing.fake_cuda import H200
from gemmhub_nvidia.testing.fake_kernels import FakeKernels

EVERYWHERE = SimpleNamespace(ctypes=SimpleNamespace(data=4096), nbytes=2**47)
"""Operands may have any address: mma_product.py checks which addresses a kernel accesses."""


CHANGES = ()
"""Changes of the kernels' files: (file, old, new) texts."""


class FakeCuda(FakeKernels):
    """Few SMs: the more CTAs, the longer an emulated launch takes."""

    card: ClassVar = {**H200, 16: 4, 97: 232448, 81: 233472, 39: 2048, 106: 32, 111: 1024, 38: 52428800}

    def __init__(self, **home):
        super().__init__(**home)
        self.allowed = []
        """Bytes of dynamic shared memory that functions were allowed."""

    def _cuFuncSetAttribute(self, function, attribute, value):  # noqa: N802
        assert value <= self.attributes[97], "more shared memory than a CTA of the card may have"
        self.allowed.append(value)
        super()._cuFuncSetAttribute(function, attribute, value)

    def load(self, image):
        module = super().load(image)
        assert module["arch"] == f"sm_{self.attributes[75]}{self.attributes[76]}", "compiled for another card"
        return module

    def entry_points(self, module):
        return (quantize.KERNEL,) if module["main"] == quantize.MAIN else super().entry_points(module)

    def sizes(self, kernel):
        return (ctypes.sizeof(_params(kernel)),)

    def check(self, kernel, launch):
        macros = kernel.module["macros"]
        assert launch.shared == macros["SHARED_BYTES"]
        assert launch.block == (macros["THREADS"], 1, 1)
        assert launch.grid[1] == 1
        assert launch.grid[2] <= 65535

    def execute(self, kernel, launch):
        macros, params = kernel.module["macros"], _params(kernel).from_buffer_copy(launch.parameters[0])
        if kernel.name != "gemm":
            macros = {**macros, "ENTRY": kernel.name}
        try:
            emulated.run(
                kernel.module["main"], macros, params, launch.grid, launch.block[0], launch.shared, [], [EVERYWHERE],
                seed=self.seed, changes=CHANGES,
            )  # fmt: skip
        except emulated.EmulatorError as error:
            return str(error)
        return ""


def _params(kernel):
    """The structure of a kernel's parameters."""
    return quantize.Params if kernel.module["main"] == quantize.MAIN else Params
