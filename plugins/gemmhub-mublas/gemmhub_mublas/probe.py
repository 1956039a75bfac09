"""Probes the machine for muBLAS: devices, libmublas, and the numbers in its header."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gemmhub_musa import runtime as musa
from gemmhub_musa.compile import enumerators
from gemmhub_musa.guard import Guard
from gemmhub_musa.probe import Devices
from gemmhub_musa.runtime import MusaError
from gemmhub_musa.sdk import Sdk

from gemmhub.capability import Absent, Ready, Refusal
from gemmhub_mublas.enums import ATTESTED, Codes
from gemmhub_mublas.handles import Handles
from gemmhub_mublas.library import Library, LibraryError, StatusError

M = TypeVar("M")


class BlasDevices(Devices):
    """The devices, with the handles and the guard of one of this plugin's libraries."""

    def __init__(self, name: str, found: musa.Machine, create: Callable[[], int]) -> None:
        super().__init__(found)
        self.handles = Handles(create)
        self.guard = Guard(name, found.runtime)


class Machine(BlasDevices):
    """The devices and libmublas."""

    def __init__(self, found: musa.Machine, library: Library) -> None:
        """Make a handle on the current device. Raises StatusError or MusaError where the library does not work."""
        super().__init__("mublas", found, library.create)
        self.library = library
        self.facts = (sorted(library.codes.values.items()),)
        index = found.runtime.current_device
        handle = self.handles.take(index, 0)
        self.version = library.version(handle)
        self.handles.give(index, 0, handle)

    def on(self, found: musa.Machine) -> Machine:
        """Return the same for the machine as a child process has it. Raises as the constructor does."""
        return Machine(found, Library(found.sdk.load("mublas"), self.library.codes))


def codes(sdk: Sdk) -> Codes:
    """Return the numbers of the installed mublas.h; the public ones where it is missing or does not compile."""
    if not sdk.has_header("mublas.h"):
        return Codes.of(None, f"mublas.h is not in {sdk.include or 'any folder that was found'}")
    found = enumerators(sdk, "mublas.h", tuple(ATTESTED))
    if isinstance(found, Refusal):
        return Codes.of(None, f"mublas.h could not be compiled: {found.reason}")
    return Codes.of(found)


def look() -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    found = musa.machine()
    if isinstance(found, Absent):
        return found
    return first_look("muBLAS", found, _look)


def _look(found: musa.Machine) -> Machine | Absent:
    loaded = found.sdk.load("mublas")
    if isinstance(loaded, Refusal):
        return Absent(loaded.reason, loaded.remedy)
    return set_up("muBLAS", lambda: Machine(found, Library(loaded, codes(found.sdk))))


def first_look(
    library: str, found: musa.Machine, look: Callable[[musa.Machine], M | Absent], *facts: object
) -> M | Absent:
    """Return what ``look`` returns here, if it finds ``library`` in a child process first; else its report there."""

    def there(found: musa.Machine) -> Refusal | None:
        seen = look(found)
        return Refusal(seen.reason, seen.remedy, seen.traceback) if isinstance(seen, Absent) else None

    refusal = found.first(f"{library}, when it was set up,", facts, there)
    return look(found) if refusal is None else Absent(refusal.reason, refusal.remedy, refusal.traceback)


def set_up(library: str, make: Callable[[], M]) -> M | Absent:
    """Return the machine that ``make`` makes, or a report of what ``library`` lacks."""
    try:
        return make()
    except LibraryError as error:
        return Absent(error.reason, error.remedy)
    except (StatusError, MusaError) as error:
        return Absent(
            f"{library} cannot be set up: {error}",
            "check that the device has free memory, and that mthreads-gmi lists it",
        )


def ready(machine: Machine) -> Ready:
    """Return the devices, versions and features of ``machine``."""
    library = machine.library
    features = [f"muBLAS from {library.where}"]
    hows = sorted({found.how for found in library.functions.values()} - {"plain"})
    if hows:
        features.append(f"C++ symbols: {', '.join(hows)}")
    if library.codes.without_header is not None:
        features.append(f"public numbers only, as {library.codes.without_header}: no bfloat16, int8 or tf32")
    features += library.codes.surprises()
    return Ready(machine.devices, {"mublas": machine.version, **machine.musa.versions}, tuple(features))
