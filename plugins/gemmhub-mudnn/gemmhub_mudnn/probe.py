"""Probes the machine for a MUSA installation, devices, and a muDNN against which the glue compiles and loads."""

from __future__ import annotations

from pathlib import Path

from gemmhub_musa import runtime
from gemmhub_musa.probe import Devices

from gemmhub.capability import Absent, Ready, Refusal
from gemmhub.kit import locks
from gemmhub_mudnn import library
from gemmhub_mudnn.engine import Engine
from gemmhub_mudnn.library import Library, MudnnError, files


class Machine(Devices):
    """The devices, the library, and an engine for each device, made when it is first needed."""

    def __init__(self, musa: runtime.Machine, library: Library) -> None:
        super().__init__(musa)
        self.library = library
        self.facts = tuple(files(musa.sdk, musa.arch_name(0)))
        self.arch = tuple(musa.runtime.arch(index) for index in range(musa.count))
        self._engines: dict[int, Engine] = {}
        self._lock = locks.lock()

    def on(self, found: runtime.Machine) -> Machine:
        """Return the same for the machine as a child process has it. Raises MudnnError where muDNN is not there."""
        glue = library.load(found.sdk, self.musa.arch_name(0))
        if isinstance(glue, Absent):
            raise MudnnError(glue.reason)
        return Machine(found, glue)

    def engine(self, index: int) -> Engine:
        """Return the engine of a device. Raises MudnnError where the library makes no handle for it."""
        with self._lock:
            if index not in self._engines:
                self._engines[index] = Engine(self.library, self.musa.runtime, index)
            return self._engines[index]


def look() -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    musa = runtime.machine()
    if isinstance(musa, Absent):
        return musa
    arch = musa.arch_name(0)

    def there(found: runtime.Machine) -> Refusal | None:
        glue = library.load(found.sdk, arch)
        return Refusal(glue.reason, glue.remedy, glue.traceback) if isinstance(glue, Absent) else None

    refusal = musa.first("muDNN, when it was loaded,", files(musa.sdk, arch), there)
    if refusal is not None:
        return Absent(refusal.reason, refusal.remedy, refusal.traceback)
    found = library.load(musa.sdk, arch)
    return found if isinstance(found, Absent) else Machine(musa, found)


def ready(machine: Machine) -> Ready:
    """Return the devices, versions and features of ``machine``."""
    musa, glue = machine.musa, machine.library
    where = Path(glue.where).name
    return Ready(
        machine.devices,
        {**musa.versions, "mudnn": f"{where}, {glue.generation.name}"},
        (f"muDNN's {glue.generation.name} by <{glue.generation.header}>, {glue.where}",),
    )
