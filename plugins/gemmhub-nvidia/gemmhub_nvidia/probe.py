"""The common part of the probes of CUDA plugins: the driver, its devices and its age, NVRTC, and the report of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from gemmhub.capability import Absent, Device, Ready
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.driver import Driver, DriverError, Gpu
from gemmhub_nvidia.images import Images
from gemmhub_nvidia.nvrtc import Compiler
from gemmhub_nvidia.scratch import Scratch

_NO_DEVICE = 100
_OLDEST_WITH_COMPILER = "550"
"""The first driver that runs the CUDA version nvrtc.OLDEST."""


def look(open_driver: Callable[[], Driver], oldest: str, device: str) -> tuple[Driver, tuple[Gpu, ...]] | Absent:
    """Return the driver and its devices, at least one; or Absent with reason and remedy. Never raises.

    ``oldest`` is the first driver that has all functions ("525"), ``device`` what the plugin needs ("an NVIDIA GPU").
    """
    try:
        driver = open_driver()
        gpus = tuple(Gpu(driver, i) for i in range(driver.device_count()))
    except OSError as error:
        return Absent(f"there is no NVIDIA driver here ({error})", f"install one, or use a machine with {device}")
    except AttributeError as error:
        return Absent(f"the NVIDIA driver is too old ({error})", f"install driver {oldest} or later")
    except DriverError as error:
        if error.code != _NO_DEVICE:
            return Absent(
                f"the NVIDIA driver does not work: {error}", "check that nvidia-smi works; restart the machine"
            )
        gpus = ()
    if not gpus:
        return Absent("the NVIDIA driver shows no device", "check CUDA_VISIBLE_DEVICES and nvidia-smi")
    return driver, gpus


def too_old(driver: Driver, cuda: tuple[int, ...], oldest: str) -> Absent | None:
    """Return Absent where the driver runs no CUDA as new as ``cuda``; ``oldest`` is the first driver that does."""
    if driver.cuda_version >= cuda:
        return None
    needed = ".".join(map(str, cuda))
    return Absent(
        "the NVIDIA driver runs up to CUDA {}.{}, CUDA {} is needed".format(*driver.cuda_version, needed),
        f"update the NVIDIA driver to {oldest} or later",
    )


def find_compiler(open_compiler: Callable[[], Compiler], driver: Driver) -> Compiler | Absent:
    """Return a compiler whose cubins ``driver`` can load, for a driver as new as the oldest compiler; or Absent."""
    return too_old(driver, nvrtc.OLDEST, _OLDEST_WITH_COMPILER) or nvrtc.look(open_compiler, driver)


def cubins_of(package: str) -> Path:
    """Return the folder in which a plugin's wheel has its archives of cubins, if it has any."""
    return Path(str(resources.files(package)), "cubins")


class Machine:
    """The driver, the compiler and the devices, with a workspace for each: the base for plugins with kernels."""

    def __init__(self, driver: Driver, compiler: Compiler, gpus: tuple[Gpu, ...], package: str) -> None:
        """``package``: the plugin's, whose folder ``cubins`` may have compiled kernels."""
        self.driver = driver
        self.compiler = compiler
        self.gpus = gpus
        """All devices: their indices are those of gemmhub's devices."""
        self.workspaces = tuple(map(Scratch, gpus))
        self.images = Images(compiler, cubins_of(package))
        """The images of the plugin's kernels."""

    def ready(self, gpus: Sequence[Gpu], architectures: Iterable[str]) -> Ready:
        """Return those of the devices that the plugin has kernels for, with versions.

        ``architectures``: those that its kernels are compiled for, such as "sm_90a".
        """
        library = {"nvrtc": "{}.{}".format(*self.compiler.version)}
        every = sorted(set(architectures))
        found = ready(self.driver, gpus, library, f"NVRTC from {self.compiler.where}", *map(self.images.about, every))
        return replace(found, warnings=tuple(filter(None, map(self.images.fault, every))))


def names(gpus: Sequence[Gpu]) -> str:
    """The names and compute capabilities of cards, each once, for a message."""
    return ", ".join(sorted({"{} ({}.{})".format(gpu.name, *gpu.capability) for gpu in gpus}))


def ready(driver: Driver, gpus: Sequence[Gpu], library: Mapping[str, str], *features: str) -> Ready:
    """Return the devices, with the version of the plugin's library and those of :func:`versions`."""
    devices = tuple(Device("cuda", gpu.index) for gpu in gpus)
    return Ready(devices, {**library, **versions(driver, gpus)}, features)


def versions(driver: Driver, gpus: Sequence[Gpu]) -> dict[str, str]:
    """The versions of driver and cards for a backend's probe: tuning records hold only where they are the same.

    Cards of one name differ: an H100 and an H200 share their number of multiprocessors, and two H100s may not.
    """

    def joined(texts: Iterable[str]) -> str:
        return " + ".join(sorted(set(texts)))

    return {
        "driver": "{}.{}".format(*driver.cuda_version),
        "device": joined(gpu.name for gpu in gpus),
        "multiprocessors": joined(str(gpu.sms) for gpu in gpus),
        "memory": joined(f"{gpu.bandwidth / 1e12:.3g} TB/s" for gpu in gpus),
    }
