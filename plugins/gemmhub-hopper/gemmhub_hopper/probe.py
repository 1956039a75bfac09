"""What the machine has: a driver, Hopper devices, NVRTC."""

from __future__ import annotations

import os
from collections.abc import Callable

from gemmhub.capability import Absent, Device, Ready
from gemmhub_hopper.driver import Driver, DriverError, Gpu
from gemmhub_hopper.nvrtc import Compiler, CompilerError
from gemmhub_hopper.workspace import Workspace

OLDEST_DRIVER = (12, 4)
"""Of CUDA."""
CAPABILITY = (9, 0)
UNPROVEN = "GEMMHUB_HOPPER_UNPROVEN"
"""The environment variable that lets kernels run that no card has run yet."""

_NO_DEVICE = 100


class Machine:
    """The driver, the compiler and the devices, and a workspace on each that is of Hopper."""

    def __init__(self, driver: Driver, compiler: Compiler, gpus: tuple[Gpu, ...]) -> None:
        self.driver = driver
        self.compiler = compiler
        self.gpus = gpus
        """All of them: their numbers are those of gemmhub's devices."""
        self.workspaces = tuple(map(Workspace, gpus))

    @property
    def hoppers(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.capability == CAPABILITY)


def look(open_driver: Callable[[], Driver], open_compiler: Callable[[], Compiler]) -> Machine | Absent:
    """The machine, or what it lacks and what to do. Never raises."""
    try:
        driver = open_driver()
        gpus = tuple(Gpu(driver, i) for i in range(driver.device_count()))
    except OSError as error:
        return Absent(f"there is no NVIDIA driver here ({error})", "install one, or use a machine with a Hopper GPU")
    except AttributeError as error:
        return Absent(f"the NVIDIA driver is too old ({error})", "install driver 550 or later")
    except DriverError as error:
        if error.code == _NO_DEVICE:
            return Absent("the NVIDIA driver shows no device", "look at CUDA_VISIBLE_DEVICES and nvidia-smi")
        return Absent(f"the NVIDIA driver does not work: {error}", "see whether nvidia-smi works; restart the machine")
    if not gpus:
        return Absent("the NVIDIA driver shows no device", "look at CUDA_VISIBLE_DEVICES and nvidia-smi")
    if all(gpu.capability != CAPABILITY for gpu in gpus):
        names = ", ".join(sorted({f"{gpu.name} ({gpu.capability[0]}.{gpu.capability[1]})" for gpu in gpus}))
        return Absent(
            f"its kernels are for compute capability 9.0 (Hopper); here is {names}",
            "use another backend, gemmhub-cublas for one, or a machine with an H100 or H200",
        )
    if driver.cuda_version < OLDEST_DRIVER:
        return Absent(
            "the NVIDIA driver runs up to CUDA {}.{}, CUDA {}.{} is needed".format(
                *driver.cuda_version, *OLDEST_DRIVER
            ),
            "update the NVIDIA driver to 550 or later",
        )
    try:
        compiler = open_compiler()
    except CompilerError as error:
        return Absent(error.reason, error.remedy)
    if compiler.version[0] > driver.cuda_version[0]:
        return Absent(
            "{} is NVRTC {}.{}; the driver runs up to CUDA {}.{}".format(
                compiler.where, *compiler.version, *driver.cuda_version
            ),
            f"pip install 'gemmhub-hopper[cu{driver.cuda_version[0]}]', or update the NVIDIA driver",
        )
    if not os.environ.get(UNPROVEN):
        return Absent(
            "its kernels were compiled and checked on the host but have not yet run on a card",
            f"set {UNPROVEN}=1 to try them",
        )
    return Machine(driver, compiler, gpus)


def ready(machine: Machine) -> Ready:
    """What gemmhub keeps of it."""
    return Ready(
        tuple(Device("cuda", gpu.index) for gpu in machine.hoppers),
        {
            "nvrtc": "{}.{}".format(*machine.compiler.version),
            "driver": "{}.{}".format(*machine.driver.cuda_version),
            "device": " + ".join(sorted({gpu.name for gpu in machine.hoppers})),
        },
        (f"NVRTC from {machine.compiler.where}",),
    )
