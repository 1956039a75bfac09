"""Probes the machine for a driver, NVIDIA devices and NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmhub_nvidia import probe, proof
from gemmhub_nvidia.driver import KERNELS, Driver, Gpu, load
from gemmhub_nvidia.nvrtc import Compiler

from gemmhub.capability import Absent, Ready
from gemmhub_cuda.compiled import Kernels
from gemmhub_cuda.variants import sources
from gemmhub_cuda.variants.card import Card

FUNCTIONS: dict[str, tuple[Any, ...]] = {**KERNELS, **proof.FUNCTIONS}
"""Functions of the driver that the plugin calls, with their arguments."""


def open_driver() -> Driver:
    """Load the driver, as :func:`gemmhub_nvidia.driver.load` does."""
    return load(FUNCTIONS)


def oldest(compiler: Compiler) -> tuple[int, int]:
    """Return the first compute capability for which this NVRTC compiles: NVRTC 13 begins with 7.5."""
    return (7, 0) if compiler.version[0] < 13 else (7, 5)


_BLACKWELL, _FIRST_WITH_BLACKWELL = (10, 0), (12, 8)


def too_new(compiler: Compiler, capability: tuple[int, int]) -> bool:
    """Return whether this NVRTC is older than cards of that compute capability: those from 10.0 on need NVRTC 12.8."""
    return capability >= _BLACKWELL and compiler.version < _FIRST_WITH_BLACKWELL


class Machine(probe.Machine):
    """The driver, the compiler and the devices."""

    def __init__(self, driver: Driver, compiler: Compiler, gpus: tuple[Gpu, ...]) -> None:
        super().__init__(driver, compiler, gpus, "gemmhub_cuda")
        self.cards = tuple(map(Card.of, gpus))
        self.kernels = Kernels(self.images, gpus)

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """The devices for which kernels can be compiled."""
        return tuple(
            gpu
            for gpu in self.gpus
            if gpu.capability >= oldest(self.compiler) and not too_new(self.compiler, gpu.capability)
        )


def look(open_driver: Callable[[], Driver], open_compiler: Callable[[], Compiler]) -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    probed = probe.look(open_driver, "550", "an NVIDIA GPU")
    if isinstance(probed, Absent):
        return probed
    driver, gpus = probed
    compiler = probe.find_compiler(open_compiler, driver)
    if isinstance(compiler, Absent):
        return compiler
    if all(gpu.capability < oldest(compiler) for gpu in gpus):
        return Absent(
            "NVRTC {}.{} compiles for compute capability {}.{} and later; this machine has {}".format(
                *compiler.version, *oldest(compiler), probe.names(gpus)
            ),
            "install NVRTC 12 (gemmhub-cuda[cu12]), which compiles for 7.0 and later, or use another backend",
        )
    if all(gpu.capability < oldest(compiler) or too_new(compiler, gpu.capability) for gpu in gpus):
        return Absent(
            "NVRTC {}.{} does not compile for compute capability 10.0 and later; this machine has {}".format(
                *compiler.version, probe.names(gpus)
            ),
            "install NVRTC 12.8 or later (pip install --upgrade nvidia-cuda-nvrtc-cu12), or use another backend",
        )
    return Machine(driver, compiler, gpus)


def ready(machine: Machine) -> Ready:
    """Return the devices and versions of ``machine``."""
    return machine.ready(machine.usable, [sources.architecture(gpu.capability) for gpu in machine.usable])
