# ruff: noqa: N802 (methods are called as the C functions are)
"""A fake libcuda with the real kernels, compiled for the host and run by tests/emulator."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from gemmhub_hopper.variants import sources
from gemmhub_nvidia.testing.emulator import EmulatedKernels
from gemmhub_nvidia.testing.fake_cuda import H200, INVALID_CONTEXT
from gemmhub_nvidia.testing.fake_kernels import FakeKernels

GEMM_BYTES, PREPASS_BYTES, F16_PREPASS_BYTES, GEMV_BYTES = 488, 264, 240, 264
"""Of Params, PrepassParams, F16PrepassParams and GemvParams."""
MAP = (
    c_void_p, c_int, c_uint, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int,
)  # fmt: skip
"""The arguments of cuTensorMapEncodeTiled."""


KERNELS = EmulatedKernels("gemmhub_hopper", sources.activations(), Path(__file__).parent / "emulator")
CHANGES: tuple[tuple[str, str, str], ...] = ()
"""Changes of the kernels' files; see fakes.mutated."""


def emulator(macros):
    """The kernel with these macros as a library of the host."""
    return KERNELS.library(macros, CHANGES)


class FakeCuda(FakeKernels):
    """Few SMs: the more CTAs, the longer an emulated launch takes."""

    card: ClassVar = {**H200, 16: 4}
    types: ClassVar = {
        **FakeKernels.types, "cuTensorMapEncodeTiled": (c_int, MAP),
    }  # fmt: skip

    def entry_points(self, module):
        macros = module["macros"]
        if "F16_PREPASS" in macros:
            return ("f16_prepass",)
        return ("prepass",) if "PREPASS_FORMAT" in macros else ("gemv",) if "GEMV_NUM_VECTORS" in macros else ("gemm",)

    def _cuTensorMapEncodeTiled(self, *given):
        return _encoder().encode(*given) if self.context else INVALID_CONTEXT

    def sizes(self, kernel):
        alone = {"prepass": PREPASS_BYTES, "f16_prepass": F16_PREPASS_BYTES, "gemv": GEMV_BYTES}
        return (alone[kernel.name],) if kernel.name in alone else (128, 128, 128, GEMM_BYTES)

    def check(self, kernel, launch):
        macros = kernel.module["macros"]
        assert launch.grid[1:] == (1, 1)
        if kernel.name in ("prepass", "f16_prepass"):
            assert (launch.shared, launch.block) == (0, (256, 1, 1))
        elif kernel.name == "gemv":
            assert (launch.shared, launch.block) == (macros["GEMV_SHARED_BYTES"], (256, 1, 1))
            assert launch.grid[0] % macros["GEMV_CLUSTER_SIZE"] == 0
        else:
            assert launch.shared == macros["GEMM_SHARED_BYTES"]
            assert launch.block == (128 * (1 + macros["GEMM_NUM_CONSUMERS"]), 1, 1)
            cluster = macros["GEMM_CLUSTER_M"] * macros["GEMM_CLUSTER_N"] * macros["GEMM_CLUSTER_K"]
            assert launch.grid[0] % cluster == 0
            assert macros["GEMM_CLUSTER_K"] > 1 or launch.grid[0] <= max(cluster, self.attributes[16])

    def execute(self, kernel, launch):
        parameters = b"".join(launch.parameters)
        copy = np.empty(len(parameters) + 64, np.uint8)
        start = copy.ctypes.data + -copy.ctypes.data % 64
        ctypes.memmove(start, parameters, len(parameters))
        return run_emulator(kernel.module["macros"], start, launch.grid[0], self.seed)


def run_emulator(macros, arguments, grid, seed):
    """Run the kernel on the parameters at that address; what went wrong, or an empty string."""
    library = emulator(macros)
    message = ctypes.create_string_buffer(2000)
    places = [c_void_p(arguments + 128 * i) for i in range(4)]
    if macros.keys() & {"PREPASS_FORMAT", "F16_PREPASS", "GEMV_NUM_VECTORS"}:
        places[3] = c_void_p(arguments)
    library.emulate(*places, c_uint(grid), c_uint64(seed), message, c_uint(len(message)))
    return message.value.decode()


@cache
def _encoder():
    """Any variant's library: they all have the encoder of tensor maps."""
    from gemmhub_hopper.variants.config import Form, Shape, Variant

    library = KERNELS.library(Variant(Shape(64, 16, 2, consumers=1), Form(False, False, "bfloat16", "bfloat16")).macros)
    library.encode.argtypes = MAP
    return library
