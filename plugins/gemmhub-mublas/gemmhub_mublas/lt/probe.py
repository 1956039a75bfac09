"""Probes the machine for muBLASLt: devices, libmublasLt, its header, a compiler."""

from __future__ import annotations

from collections.abc import Callable

from gemmhub_musa import runtime as musa

from gemmhub.capability import Absent, Ready, Refusal
from gemmhub_mublas.library import status_words
from gemmhub_mublas.lt import library
from gemmhub_mublas.lt.library import Glue
from gemmhub_mublas.probe import BlasDevices, set_up


class Machine(BlasDevices):
    """The devices and libmublasLt."""

    def __init__(self, found: musa.Machine, glue: Glue) -> None:
        """Make a handle on the current device. Raises StatusError or MusaError where the library does not work."""
        super().__init__("mublaslt", found, glue.create)
        self.glue = glue
        self.handles.reserve(found.runtime.current_device)

    @property
    def version(self) -> str:
        """The SDK's version: the library does not report its own."""
        return self.musa.sdk.version or self.runtime.version


def look() -> Machine | Absent:
    """Return the machine, or what it lacks and the remedy. Never raises."""
    found = musa.machine()
    if isinstance(found, Absent):
        return found
    blas = found.sdk.load("mublas")
    words: Callable[[int], str] = status_words(None if isinstance(blas, Refusal) else blas)
    return set_up("muBLASLt", lambda: Machine(found, library.load(found.sdk, words)))


def ready(machine: Machine) -> Ready:
    """Return the devices, versions and features of ``machine``."""
    library = machine.musa.sdk.library("mublasLt")
    where = "" if isinstance(library, Refusal) else f" from {library.where}"
    has = machine.glue.has
    fused = [name.removeprefix("MUBLASLT_EPILOGUE_").lower() for name in sorted(has) if "_EPILOGUE_" in name]
    fused = [name for name in fused if not name.startswith("mublaslt")]
    features = [f"muBLASLt{where}", f"fused: {', '.join(fused) or 'nothing'}"]
    return Ready(machine.devices, {"mublasLt": machine.version, **machine.musa.versions}, tuple(features))
