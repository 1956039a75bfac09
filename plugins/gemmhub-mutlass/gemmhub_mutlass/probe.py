"""What the machine has: devices that MUTLASS has kernels for, the user's MUTLASS, mcc. Nothing is compiled here."""

from __future__ import annotations

from collections import Counter

from gemmhub_musa import compile as compilers
from gemmhub_musa import runtime as musa
from gemmhub_musa import workspace
from gemmhub_musa.workspace import Workspace

from gemmhub.capability import Absent, Device, Ready, Refusal
from gemmhub.kit import locks
from gemmhub_mutlass import installation
from gemmhub_mutlass.choose import ARCHITECTURES
from gemmhub_mutlass.installation import Mutlass
from gemmhub_mutlass.library import Kernels


class Machine:
    """Devices, compiled kernels, and the workspace of each device."""

    def __init__(self, found: musa.Machine, mutlass: Mutlass) -> None:
        self.musa, self.mutlass = found, mutlass
        self.runtime, self.count = found.runtime, found.count
        self.kernels = Kernels(found.sdk, mutlass)
        self.archs = tuple(found.arch_name(index) for index in range(found.count))
        self.pending: Counter[str] = Counter()
        """Errors that others had left in the runtime and that launches cleared, by name."""
        self._lock = locks.lock()

    def workspace(self, index: int) -> Workspace:
        """That of a device."""
        return workspace.of(self.runtime, index)

    def note_pending(self, code: int) -> None:
        """A launch cleared an error that was none of its own."""
        with self._lock:
            self.pending[self.runtime.words(code)[0]] += 1

    def unsuited(self, index: int) -> Refusal | None:
        """Why MUTLASS has nothing for a device."""
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
    """The machine, or what it lacks and what to do. Never raises."""
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
    refusals = [machine.unsuited(index) for index in range(machine.count)]
    if all(refusals) and refusals[0] is not None:
        return Absent(refusals[0].reason, refusals[0].remedy)
    return machine


def ready(machine: Machine) -> Ready:
    """What gemmhub keeps of it."""
    suited = [index for index in range(machine.count) if machine.unsuited(index) is None]
    compiler = compilers.mcc(machine.musa.sdk)
    assert not isinstance(compiler, Refusal)
    said = (compilers.identity((str(compiler),)).strip().splitlines() or [""])[0]
    return Ready(
        tuple(Device("musa", index) for index in suited),
        {"mutlass": machine.mutlass.name, "mcc": said, **machine.musa.versions},
        (f"{machine.mutlass.name} from {machine.mutlass.home}", f"compiled by {compiler} ({said or 'no version'})"),
    )
