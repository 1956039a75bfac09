"""Probes the machine for a driver, devices and a cuBLASLt that fits them."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_void_p

from gemmhub_nvidia import probe
from gemmhub_nvidia.driver import Driver, DriverError, Gpu

from gemmhub.capability import Absent, Ready
from gemmhub.kit import locks
from gemmhub_cublas.algorithm_proof import Proofs
from gemmhub_cublas.descriptors import Objects
from gemmhub_cublas.library import Library, LibraryError, StatusError, check
from gemmhub_cublas.workspace import Workspace

OLDEST_DRIVER = (12,)
"""The oldest CUDA version of the driver."""


class Machine:
    """The driver, the library and the devices; handles of the library are created when they are first needed."""

    def __init__(self, driver: Driver, gpus: tuple[Gpu, ...], library: Library) -> None:
        self.driver = driver
        self.library = library
        self.objects = Objects(library)
        self.gpus = gpus
        self.workspaces = tuple(map(Workspace, gpus))
        self.proofs = Proofs(library, self.objects, gpus)
        self._handles: dict[int, int] = {}
        self._lock = locks.lock()

    def handle(self, index: int) -> int:
        """Return the library's handle for a device, for all threads. Raises StatusError where creating it fails."""
        handle = self._handles.get(index)
        if handle is None:
            with self._lock, self.gpus[index]:
                if index not in self._handles:
                    created = c_void_p()
                    check("cublasLtCreate", self.library.lt.cublasLtCreate(byref(created)))
                    self._handles[index] = created.value or 0
                handle = self._handles[index]
        return handle


def look(open_driver: Callable[[], Driver], open_library: Callable[[int], Library]) -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    probed = probe.look(open_driver, "525", "an NVIDIA GPU")
    if isinstance(probed, Absent):
        return probed
    driver, gpus = probed
    old = probe.too_old(driver, OLDEST_DRIVER, "525")
    if old is not None:
        return old
    try:
        machine = Machine(driver, gpus, open_library(driver.cuda_version[0]))
        # One handle shows that the library works: on the device that is in use already, if there is one.
        machine.handle(driver.current_device() or 0)
    except LibraryError as error:
        return Absent(error.reason, error.remedy)
    except StatusError as error:
        return Absent(
            f"{error} ({machine.library.where})",
            "check that the device has free memory and that nvidia-smi lists it in compute mode Default",
        )
    except DriverError as error:
        return Absent(
            f"the device cannot be used: {error}", "check that nvidia-smi shows it healthy and with free memory"
        )
    return machine


def ready(machine: Machine) -> Ready:
    """Return the devices and versions of ``machine``."""
    library = {"cublasLt": machine.library.version}
    return probe.ready(machine.driver, machine.gpus, library, f"cuBLASLt from {machine.library.where}")
