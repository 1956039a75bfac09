"""Registers the device type "musa" and these arrays: see :class:`gemmhub._arrays.plugin_arrays.PluginArrays`."""

from __future__ import annotations

from gemmhub.array_library import DeviceType
from gemmhub.capability import Absent, Refusal
from gemmhub_musa import array, runtime

device_type = DeviceType("musa", extension="torch_musa")


def count() -> int | Refusal:
    """Return the number of MUSA devices."""
    found = runtime.machine()
    return found if isinstance(found, Absent) else found.count


def arrays(index: int) -> array.MusaArrays:
    """Return the library of the arrays on one device."""
    return array.arrays(index)


def device_name(index: int) -> str:
    """Return the device's name by the driver, else its architecture."""
    found = runtime.machine()
    return "" if isinstance(found, Absent) else found.names[index] or found.arch_name(index)


def versions() -> dict[str, str]:
    """Return the versions of the runtime and the driver."""
    found = runtime.machine()
    return {} if isinstance(found, Absent) else found.versions
