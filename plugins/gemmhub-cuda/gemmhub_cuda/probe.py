"""Probes the machine for a driver, NVIDIA devices and NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_void_p
from typing import Any

from gemmhub.capability import Absent, Device, Ready
from gemmhub.kit import cuda, nvrtc
from gemmhub.kit.cuda import Driver, Gpu
from gemmhub.kit.cuda_scratch import Scratch
from gemmhub.kit.nvrtc import Compiler
from gemmhub_cuda.model import Card

OLDEST_DRIVER = (12, 4)
"""The oldest CUDA version of the driver."""

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    **cuda.KERNELS,
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
}
"""Functions of the driver that the plugin calls, with their arguments."""


def open_driver() -> Driver:
    """Load the driver, as :func:`gemmhub.kit.cuda.load` does."""
    return cuda.load(FUNCTIONS)


def oldest(compiler: Compiler) -> tuple[int, int]:
    """Return the first compute capability for which this NVRTC compiles: NVRTC 13 begins with 7.5."""
    return (7, 0) if compiler.version[0] < 13 else (7, 5)


class Machine:
    """The driver, the compiler and the devices, with a workspace for each."""

    def __init__(self, driver: Driver, compiler: Compiler, gpus: tuple[Gpu, ...]) -> None:
        self.driver = driver
        self.compiler = compiler
        self.gpus = gpus
        """All devices: their indices are those of gemmhub's devices."""
        self.cards = tuple(map(Card.of, gpus))
        self.workspaces = tuple(map(Scratch, gpus))

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """The devices for which kernels can be compiled."""
        return tuple(gpu for gpu in self.gpus if gpu.capability >= oldest(self.compiler))


def look(open_driver: Callable[[], Driver], open_compiler: Callable[[], Compiler]) -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    found = cuda.look(open_driver, "550", "an NVIDIA GPU")
    if isinstance(found, Absent):
        return found
    driver, gpus = found
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
    if all(gpu.capability < oldest(compiler) for gpu in gpus):
        names = ", ".join(sorted({f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})" for gpu in gpus}))
        return Absent(
            "NVRTC {}.{} compiles for compute capability {}.{} and later; this machine has {}".format(
                *compiler.version, *oldest(compiler), names
            ),
            "install NVRTC 12 (gemmhub-cuda[cu12]), which compiles for 7.0 and later, or use another backend",
        )
    return Machine(driver, compiler, gpus)


def ready(machine: Machine) -> Ready:
    """Return the devices and versions of ``machine``."""
    return Ready(
        tuple(Device("cuda", gpu.index) for gpu in machine.usable),
        {"nvrtc": "{}.{}".format(*machine.compiler.version), **cuda.versions(machine.driver, machine.usable)},
        (f"NVRTC from {machine.compiler.where}",),
    )
