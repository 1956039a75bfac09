"""Probes the machine for a driver, Hopper devices and NVRTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemmhub_nvidia import probe, proof, tma
from gemmhub_nvidia.driver import KERNELS, Driver, Gpu, load
from gemmhub_nvidia.nvrtc import Compiler

from gemmhub.capability import Absent, Ready
from gemmhub_hopper.variants.compiled import Kernels
from gemmhub_hopper.variants.sources import ARCH

CAPABILITY = (9, 0)
"""The compute capability of Hopper."""

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    **KERNELS,
    **tma.FUNCTIONS,
    **proof.FUNCTIONS,
    "cuCtxSynchronize": (),
}
"""Functions of the driver that the plugin calls, with their arguments."""


def open_driver() -> Driver:
    """Load the driver, as :func:`gemmhub_nvidia.driver.load` does."""
    return load(FUNCTIONS)


class Machine(probe.Machine):
    """The driver, the compiler and the devices, Hopper or not."""

    def __init__(self, driver: Driver, compiler: Compiler, gpus: tuple[Gpu, ...]) -> None:
        super().__init__(driver, compiler, gpus, "gemmhub_hopper")
        self.hoppers = tuple(gpu for gpu in gpus if gpu.capability == CAPABILITY)
        """The Hopper devices."""
        self.kernels = Kernels(self.images, gpus)


def look(open_driver: Callable[[], Driver], open_compiler: Callable[[], Compiler]) -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    probed = probe.look(open_driver, "550", "a Hopper GPU")
    if isinstance(probed, Absent):
        return probed
    driver, gpus = probed
    if all(gpu.capability != CAPABILITY for gpu in gpus):
        return Absent(
            f"the kernels need compute capability 9.0 (Hopper); this machine has {probe.names(gpus)}",
            "use another backend, gemmhub-cublas for one, or a machine with an H100 or H200",
        )
    compiler = probe.find_compiler(open_compiler, driver)
    if isinstance(compiler, Absent):
        return compiler
    return Machine(driver, compiler, gpus)


def ready(machine: Machine) -> Ready:
    """Return the devices and versions of ``machine``."""
    return machine.ready(machine.hoppers, [ARCH])
