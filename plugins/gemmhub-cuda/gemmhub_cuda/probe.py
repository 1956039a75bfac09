"""Probes the machine for a driver, NVIDIA devices and NVRTC."""

from __future__ import annotations

from collections.abc import Callable

from gemmhub_nvidia import probe
from gemmhub_nvidia.driver import KERNELS, Driver, Gpu, load
from gemmhub_nvidia.nvrtc import Compiler

from gemmhub.capability import Absent, Ready
from gemmhub_cuda.compiled import Kernels
from gemmhub_cuda.variants import sources
from gemmhub_cuda.variants.card import Card


def open_driver() -> Driver:
    """Load the driver, as :func:`gemmhub_nvidia.driver.load` does."""
    return load(KERNELS)


def oldest(compiler: Compiler) -> tuple[int, int]:
    """Return the first compute capability for which this NVRTC compiles: NVRTC 13 begins with 7.5."""
    return (7, 0) if compiler.version[0] < 13 else (7, 5)


class Machine(probe.Machine):
    """The driver, the compiler and the devices."""

    def __init__(self, driver: Driver, compiler: Compiler, gpus: tuple[Gpu, ...]) -> None:
        super().__init__(driver, compiler, gpus, "gemmhub_cuda")
        self.cards = tuple(map(Card.of, gpus))
        self.kernels = Kernels(self.images, gpus)

    @property
    def usable(self) -> tuple[Gpu, ...]:
        """The devices for which kernels can be compiled."""
        return tuple(gpu for gpu in self.gpus if gpu.capability >= oldest(self.compiler))


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
    return Machine(driver, compiler, gpus)


def ready(machine: Machine) -> Ready:
    """Return the devices and versions of ``machine``."""
    return machine.ready(machine.usable, [sources.architecture(gpu.capability) for gpu in machine.usable])
