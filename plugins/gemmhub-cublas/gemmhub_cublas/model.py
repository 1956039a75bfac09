"""A cost model: arithmetic at the tensor cores' peak or memory traffic, whichever takes longer, and a launch.

It ranks cuBLASLt among other backends before anything is measured; tuning replaces it.
"""

from __future__ import annotations

from gemmhub.native.cuda import Gpu
from gemmhub.problem import GemmProblem

LAUNCH = 4e-6
"""Seconds for an empty kernel, host time included."""
_EFFICIENCY = 0.75
"""Of the peak that large products reach."""

_HALF_RATE = {7: 1024, 8: 2048, 9: 4096, 10: 8192, 12: 2048}
"""float16 operations of tensor cores in a clock of a multiprocessor, by major compute capability."""
_NO_TENSOR_CORES = 256
_SINGLE_RATE = 256
"""Likewise float32 without tensor cores."""
_DOUBLE_RATE = {8: 128, 9: 256, 10: 128}
_LITTLE_DOUBLE = 4


def rate(problem: GemmProblem, gpu: Gpu) -> float:
    """Operations a second that the device's units for these dtypes make at most."""
    major = gpu.capability[0]
    half = _HALF_RATE.get(major, _NO_TENSOR_CORES)
    compute, itemsize = problem.compute_dtype.name, problem.a.dtype.itemsize
    if compute in ("float64", "complex128"):
        each = _DOUBLE_RATE.get(major, _LITTLE_DOUBLE) if gpu.capability[1] == 0 else _LITTLE_DOUBLE
    elif itemsize == 1:
        each = 2 * half
    elif itemsize == 2:
        each = half
    elif problem.precision != "ieee" and major >= 8:
        each = half // 2
    else:
        each = _SINGLE_RATE
    return float(each) * gpu.sms * gpu.clock


def seconds(problem: GemmProblem, gpu: Gpu, launches: int) -> float:
    """A call, with that many products."""
    product = problem.flops / (_EFFICIENCY * rate(problem, gpu))
    return max(product, problem.nbytes / gpu.bandwidth) + LAUNCH * max(1, launches)
