"""Probes the machine for a driver, Hopper devices and NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int, c_uint, c_uint64, c_void_p
from typing import Any

from gemmhub.capability import Absent, Device, Ready
from gemmhub.kit import cuda, nvrtc
from gemmhub.kit.cuda import Driver, Gpu
from gemmhub.kit.cuda_scratch import Scratch
from gemmhub.kit.nvrtc import Compiler
from gemmhub_hopper import pdl
from gemmhub_hopper.compiled import Kernels

OLDEST_DRIVER = (12, 4)
"""The oldest CUDA version of the driver."""
CAPABILITY = (9, 0)
"""The compute capability of Hopper."""

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    **cuda.KERNELS,
    "cuTensorMapEncodeTiled": (
        c_void_p, c_int, c_uint, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int,
    ),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuCtxSynchronize": (),
}  # fmt: skip
"""Functions of the driver that the plugin calls, with their arguments."""


def open_driver() -> Driver:
    """Load the driver, as :func:`gemmhub.kit.cuda.load` does."""
    return cuda.load(FUNCTIONS)


class Machine:
    """The driver, the compiler and the devices, with a workspace for each."""

    def __init__(self, driver: Driver, compiler: Compiler, gpus: tuple[Gpu, ...]) -> None:
        self.driver = driver
        self.compiler = compiler
        self.gpus = gpus
        """All devices, Hopper or not: their indices are those of gemmhub's devices."""
        self.hoppers = tuple(gpu for gpu in gpus if gpu.capability == CAPABILITY)
        """The Hopper devices."""
        self.workspaces = tuple(map(Scratch, gpus))
        self.kernels = Kernels(compiler, gpus)


def look(open_driver: Callable[[], Driver], open_compiler: Callable[[], Compiler]) -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    try:
        pdl.allowed()
    except ValueError as error:
        return Absent(str(error), "set it to one of these, or unset it")
    found = cuda.look(open_driver, "550", "a Hopper GPU")
    if isinstance(found, Absent):
        return found
    driver, gpus = found
    if all(gpu.capability != CAPABILITY for gpu in gpus):
        names = ", ".join(sorted({f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})" for gpu in gpus}))
        return Absent(
            f"the kernels need compute capability 9.0 (Hopper); this machine has {names}",
            "use another backend, gemmhub-cublas for one, or a machine with an H100 or H200",
        )
    if driver.cuda_version < OLDEST_DRIVER:
        return Absent(
            "the NVIDIA driver runs up to CUDA {}.{}, CUDA {}.{} is needed".format(
                *driver.cuda_version, *OLDEST_DRIVER
            ),
            "update the NVIDIA driver to 550 or later",
        )
    compiler = nvrtc.look(open_compiler, driver)
    if isinstance(compiler, Absent):
        return compiler
    return Machine(driver, compiler, gpus)


def ready(machine: Machine) -> Ready:
    """Return the devices and versions of ``machine``."""
    return Ready(
        tuple(Device("cuda", gpu.index) for gpu in machine.hoppers),
        {"nvrtc": "{}.{}".format(*machine.compiler.version), **cuda.versions(machine.driver, machine.hoppers)},
        (f"NVRTC from {machine.compiler.where}",),
    )
