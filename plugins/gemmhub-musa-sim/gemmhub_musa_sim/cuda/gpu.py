"""Queries the driver for the NVIDIA GPU of this machine by ctypes, without other software."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int
from functools import cache

from gemmhub.capability import Refusal

_DRIVER = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76
"""CUdevice_attribute: the compute capability."""


@cache
def capability() -> tuple[int, int] | Refusal:
    """Compute capability of the first GPU, (9, 0) for sm_90; a Refusal where there is none. Never raises."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError as error:
        return Refusal(f"there is no NVIDIA driver: {error}", "install the driver of an NVIDIA GPU")
    status = driver.cuInit(0)
    if status:
        return Refusal(f"the NVIDIA driver finds no GPU: cuInit returns {status}", "check that nvidia-smi lists one")
    count, device, major, minor = c_int(), c_int(), c_int(), c_int()
    status = driver.cuDeviceGetCount(byref(count))
    if status or count.value == 0:
        return Refusal(
            f"the NVIDIA driver shows {count.value} GPUs (cuDeviceGetCount returns {status})",
            "check CUDA_VISIBLE_DEVICES, and that nvidia-smi lists one",
        )
    status = driver.cuDeviceGet(byref(device), 0)
    for value, attribute in ((major, _MAJOR), (minor, _MINOR)):
        status = status or driver.cuDeviceGetAttribute(byref(value), attribute, device)
    if status:
        return Refusal(f"querying the first GPU failed: the driver returns {status}", "check that nvidia-smi works")
    return major.value, minor.value
