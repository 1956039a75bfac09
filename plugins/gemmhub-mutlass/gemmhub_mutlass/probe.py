"""Probes the machine for devices with MUTLASS kernels, the user's MUTLASS, and mcc. It compiles nothing."""

from __future__ import annotations

from gemmhub_musa import compile as compilers
from gemmhub_musa import runtime as musa
from gemmhub_musa.guard import Cleared
from gemmhub_musa.probe import Devices

from gemmhub.capability import Absent, Device, Ready, Refusal
from gemmhub_mutlass import installation
from gemmhub_mutlass.installation import Mutlass
from gemmhub_mutlass.library import Kernels
from gemmhub_mutlass.variants import ARCHITECTURES


class Machine(Devices):
    """The devices and the compiled kernels."""

    def __init__(self, found: musa.Machine, mutlass: Mutlass) -> None:
        super().__init__(found)
        self.mutlass = mutlass
        self.kernels = Kernels(found.sdk, mutlass)
        self.archs = tuple(found.arch_name(index) for index in range(found.count))
        self.cleared = Cleared()
        self.usable = tuple(index for index in self.usable if self.unsuited(index) is None)

    def on(self, found: musa.Machine) -> Machine:
        """Return the same for the machine as a child process has it."""
        return Machine(found, self.mutlass)

    def refusal(self, device: Device) -> Refusal | None:
        """Return why operands on ``device`` cannot be multiplied here: also that MUTLASS has no kernels for it."""
        present = device.type == "musa" and device.index < self.count
        return (self.unsuited(device.index) if present else None) or super().refusal(device)

    def unsuited(self, index: int) -> Refusal | None:
        """Return why MUTLASS has no kernels for a device; None where it has."""
        arch = self.archs[index]
        if arch not in ARCHITECTURES:
            return Refusal(
                f"musa:{index} is {arch}: MUTLASS has kernels for {' and '.join(ARCHITECTURES)}",
                "use another backend (mublas)",
            )
        if arch == "mp_31" and self.mutlass.version is not None and self.mutlass.version < (0, 2):
            return Refusal(
                f"musa:{index} is mp_31: {self.mutlass.name} has kernels for mp_22 only",
                f"set {installation.VARIABLE} to MUTLASS 0.2 or later",
            )
        return None


def look() -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    found = musa.machine()
    if isinstance(found, Absent):
        return found
    mutlass = installation.find()
    if isinstance(mutlass, Absent):
        return mutlass
    compiler = compilers.mcc(found.sdk)
    if isinstance(compiler, Refusal):
        return Absent(f"{compiler.reason}: MUTLASS's kernels are compiled here", compiler.remedy)
    machine = Machine(found, mutlass)
    unsuited = machine.unsuited(0)
    if not machine.usable and unsuited is not None:
        return Absent(unsuited.reason, unsuited.remedy)
    return machine


def ready(machine: Machine) -> Ready:
    """Return the devices, versions and features of ``machine``."""
    compiler = compilers.mcc(machine.musa.sdk)
    assert not isinstance(compiler, Refusal)
    version = (compilers.identity((str(compiler),)).strip().splitlines() or [""])[0]
    return Ready(
        machine.devices,
        {"mutlass": machine.mutlass.name, "mcc": version, **machine.musa.versions},
        (f"{machine.mutlass.name} from {machine.mutlass.home}", f"compiled by {compiler} ({version or 'no version'})"),
    )
