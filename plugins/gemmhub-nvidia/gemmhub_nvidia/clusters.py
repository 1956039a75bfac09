"""The number of thread block clusters that an NVIDIA device runs at once, queried from the driver once a device.

A cluster runs within one GPU processing cluster (GPC). The number of multiprocessors of a GPC differs between chips of
one model, because defective ones are switched off.
"""

from __future__ import annotations

import ctypes
import struct
from contextlib import suppress
from ctypes import addressof, byref, c_int, c_uint, c_void_p

from gemmhub_nvidia.driver import DriverError, Gpu
from gemmhub_nvidia.launch import WORD, LaunchAttribute, LaunchConfig

LARGEST = 8
"""Largest cluster size that every device with clusters runs."""
_GROUPS = 12
"""Number of multiprocessors that clusters of more than two CTAs leave idle."""
_FUNCTION = "cuOccupancyMaxActiveClusters"
_STUB = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry stub()\n{\n    ret;\n}\n\0"
_THREADS = 384
_MAX_SHARED = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


def estimated(sms: int, size: int) -> int:
    """Estimate the number of resident clusters of ``size`` CTAs, one CTA on each of ``sms`` multiprocessors.

    It reproduces the measured numbers of H200s with 132 multiprocessors: 30 clusters of four and 15 of eight.
    """
    return max(1, (sms if size <= 2 else sms - _GROUPS) // size)


def asked(gpu: Gpu) -> tuple[int, ...]:
    """Query the number of resident clusters by cluster size, from 0 to :data:`LARGEST`.

    Each CTA takes all of the shared memory, and so a multiprocessor of its own. Where the driver does not answer, the
    numbers are :func:`estimated`.
    """
    clusters = [gpu.sms, gpu.sms, *(estimated(gpu.sms, size) for size in range(2, 1 + LARGEST))]
    query = getattr(gpu.driver.cuda, _FUNCTION, None)
    if query is None:
        return tuple(clusters)
    query.restype, query.argtypes = c_int, (c_void_p, c_void_p, c_void_p)
    with suppress(DriverError):  # no kernel can be loaded: a driver without a compiler of PTX
        shared = gpu.attribute(_MAX_SHARED)
        stub = gpu.function(_STUB, "stub", shared)
        for size in range(2, 1 + LARGEST):
            attribute = LaunchAttribute(_CLUSTER_DIMENSION)
            ctypes.memmove(addressof(attribute) + WORD, struct.pack("3I", size, 1, 1), 12)
            grid, block = (c_uint * 3)(size, 1, 1), (c_uint * 3)(_THREADS, 1, 1)
            config, number = LaunchConfig(grid, block, shared, None, addressof(attribute), 1), c_int()
            with gpu:
                status = query(byref(number), stub, byref(config))
            if not status and number.value > 0:
                clusters[size] = min(number.value, gpu.sms // size)
    return tuple(clusters)
