"""Probes the machine for muBLASLt: devices, libmublasLt, its header, a compiler."""

from __future__ import annotations

from collections.abc import Callable

from gemmhub_musa import runtime as musa
from gemmhub_musa.sdk import Sdk

from gemmhub.capability import Absent, Ready, Refusal
from gemmhub_mublas.library import LibraryError, status_words
from gemmhub_mublas.lt import library
from gemmhub_mublas.lt.library import Glue
from gemmhub_mublas.probe import BlasDevices, first_look, set_up


class Machine(BlasDevices):
    """The devices and libmublasLt."""

    def __init__(self, found: musa.Machine, glue: Glue) -> None:
        """Make a handle on the current device. Raises StatusError or MusaError where the library does not work."""
        super().__init__("mublaslt", found, glue.create)
        self.glue = glue
        self.facts = (_file(found.sdk, glue.has),)
        self.handles.reserve(found.runtime.current_device)

    def on(self, found: musa.Machine) -> Machine:
        """Return the same for the machine as a child process has it. Raises as the constructor does."""
        return Machine(found, library.glue(found.sdk, self.glue.has, words(found.sdk)))

    @property
    def version(self) -> str:
        """The SDK's version: the library does not report its own."""
        return self.musa.sdk.version or self.runtime.version


def look() -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    found = musa.machine()
    if isinstance(found, Absent):
        return found
    return first_look("muBLASLt", found, _look, _file(found.sdk))


def _look(found: musa.Machine) -> Machine | Absent:
    return set_up("muBLASLt", lambda: Machine(found, library.load(found.sdk, words(found.sdk))))


def _file(sdk: Sdk, has: frozenset[str] | None = None) -> str:
    """Return the name of the glue's file, which its content decides; empty where there is none."""
    try:
        return library.file(sdk, has).name
    except LibraryError:
        return ""


def words(sdk: Sdk) -> Callable[[int], str]:
    """Return the function that formats a status: muBLAS's, as muBLASLt has none."""
    blas = sdk.load("mublas")
    return status_words(None if isinstance(blas, Refusal) else blas)


def ready(machine: Machine) -> Ready:
    """Return the devices, versions and features of ``machine``."""
    library = machine.musa.sdk.library("mublasLt")
    where = "" if isinstance(library, Refusal) else f" from {library.where}"
    has = machine.glue.has
    fused = [name.removeprefix("MUBLASLT_EPILOGUE_").lower() for name in sorted(has) if "_EPILOGUE_" in name]
    fused = [name for name in fused if not name.startswith("mublaslt")]
    features = [f"muBLASLt{where}", f"fused: {', '.join(fused) or 'nothing'}"]
    return Ready(machine.devices, {"mublasLt": machine.version, **machine.musa.versions}, tuple(features))
