"""Finds out what of the pipelined kernel's means the installed toolkit has: by a few lines of each that compile or not.

``musa_pipeline_primitives.h`` and ``musaFuncSetSharedMemConfig`` are known from one public program. Others use the
compiler's own functions for asynchronous copies; those with groups came later than those without.
"""

from __future__ import annotations

from gemmhub_musa.attempts import accepted, device_flags
from gemmhub_musa.sdk import Sdk

from gemmhub_musa_kernels import sources
from gemmhub_musa_kernels.sources import PIPELINED

COPIES = {0: "musa_pipeline_primitives.h", 1: "__musa_memcpy_g2s in groups", 2: "__musa_memcpy_g2s"}
"""Asynchronous copies by the value of GEMMHUB_COPIES, the best first."""
THROUGH_REGISTERS = 3
"""The value of GEMMHUB_COPIES without asynchronous copies, which every compiler accepts."""
_COPYING = """
extern "C" __global__ void gemmhub_tried(const char* from, uint4* to) {
  __shared__ __align__(16) char shared[64];
  __pipeline_memcpy_async(shared, from, 16);
  __pipeline_memcpy_async(shared + 16, from + 16, 8);
  __pipeline_memcpy_async(shared + 32, from + 32, 4);
  __pipeline_commit();
  __pipeline_wait_prior(1);
  __pipeline_wait_prior(0);
  __syncthreads();
  *to = *reinterpret_cast<uint4*>(shared);
}
"""
_BANKS = """#include <musa_runtime.h>
__global__ void gemmhub_tried() {}
extern "C" int gemmhub_banks() {
  return musaFuncSetSharedMemConfig(gemmhub_tried, musaSharedMemBankSizeEightByte);
}
"""


def flags(sdk: Sdk, arch: str, file: str) -> tuple[str, ...]:
    """Return the compiler's flags for kernels/``file``.mu that depend on the toolkit."""
    return (*device_flags(sdk, arch), *(_means(sdk, arch) if file == PIPELINED else ()))


def _means(sdk: Sdk, arch: str) -> tuple[str, ...]:
    return f"-DGEMMHUB_COPIES={copies(sdk, arch)}", f"-DGEMMHUB_BANKS={int(accepted(sdk, arch, _BANKS))}"


def copies(sdk: Sdk, arch: str) -> int:
    """Return the value of GEMMHUB_COPIES: the first that compiles."""
    text = (sources.KERNELS / "copies.h").read_text().replace("#pragma once\n", "") + _COPYING
    compiling = (way for way in COPIES if accepted(sdk, arch, text, (f"-DGEMMHUB_COPIES={way}",)))
    return next(compiling, THROUGH_REGISTERS)
