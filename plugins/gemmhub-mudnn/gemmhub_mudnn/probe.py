"""What the machine has: a MUSA installation, devices, and a muDNN that the glue compiles and loads against."""

from __future__ import annotations

from pathlib import Path

from gemmhub_musa import runtime

from gemmhub.capability import Absent, Device, Ready
from gemmhub.kit import locks
from gemmhub_mudnn import library
from gemmhub_mudnn.engine import Engine
from gemmhub_mudnn.library import Library


class Machine:
    """The runtime, the library, and for each device an engine, made when first needed."""

    def __init__(self, musa: runtime.Machine, library: Library) -> None:
        self.musa, self.library = musa, library
        self.arch = tuple(musa.runtime.arch(index) for index in range(musa.count))
        self._engines: dict[int, Engine] = {}
        self._lock = locks.lock()

    def engine(self, index: int) -> Engine:
        """That of a device. MudnnError where the library makes no handle for it."""
        with self._lock:
            if index not in self._engines:
                self._engines[index] = Engine(self.library, self.musa.runtime, index)
            return self._engines[index]


def look() -> Machine | Absent:
    """The machine, or what it lacks and what to do. Never raises."""
    musa = runtime.machine()
    if isinstance(musa, Absent):
        return musa
    found = library.load(musa.sdk, musa.arch_name(0))
    return found if isinstance(found, Absent) else Machine(musa, found)


def ready(machine: Machine) -> Ready:
    """What gemmhub keeps of it."""
    musa, glue = machine.musa, machine.library
    where = Path(glue.where).name
    return Ready(
        tuple(Device("musa", index) for index in range(musa.count)),
        {**musa.versions, "mudnn": f"{where}, {glue.generation.name}"},
        (f"muDNN's {glue.generation.name} by <{glue.generation.header}>, {glue.where}",),
    )
