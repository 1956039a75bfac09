"""What gemmhub's command line asks of these arrays: see :class:`gemmhub._arrays.by_name.ArrayLibrary`."""

from __future__ import annotations

from gemmhub.capability import Absent, Refusal
from gemmhub_musa import array, runtime

kind = "musa"


def count() -> int | Refusal:
    """How many MUSA devices there are."""
    found = runtime.machine()
    return found if isinstance(found, Absent) else found.count


def arrays(index: int) -> array.MusaArrays:
    """The library of the arrays on one device."""
    return array.arrays(index)


def device_name(index: int) -> str:
    """What the driver calls it, else its architecture."""
    found = runtime.machine()
    return "" if isinstance(found, Absent) else found.names[index] or found.arch_name(index)


def versions() -> dict[str, str]:
    """Of the runtime and the driver."""
    found = runtime.machine()
    return {} if isinstance(found, Absent) else found.versions
