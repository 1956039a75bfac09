"""Device types and arrays that plugins provide, by the entry-point group ``gemmhub.arrays``.

A plugin names a module in that group, under the ``name`` of its arrays: see :class:`PluginArrays`. The group is read
once, at the first device that is not known.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol

from gemmhub._base import guard
from gemmhub._base.device_types import DeviceType, of_torch, register_device_type
from gemmhub.array_library import ArrayLibrary
from gemmhub.capability import Refusal

_log = logging.getLogger("gemmhub")

GROUP = "gemmhub.arrays"
"""The entry-point group for device types and arrays of plugins."""


class PluginArrays(Protocol):
    """The module that a plugin registers. One that only makes tensors of torch operands has ``device_type`` alone."""

    device_type: DeviceType
    """The type of the devices, which is registered when the module is loaded."""

    def count(self) -> int | Refusal:
        """The number of devices; a Refusal instead of 0."""

    def arrays(self, index: int) -> ArrayLibrary:
        """The library's arrays on one device."""

    def device_name(self, index: int) -> str:
        """The model name of one device."""

    def versions(self) -> dict[str, str]:
        """Versions of the library and of its runtime, by name."""


@cache
def plugin_arrays() -> dict[str, PluginArrays]:
    """Register the device types of plugins; return the arrays of those that have some, by name.

    One that fails to load is logged and skipped: its backends report the reason.
    """
    loaded: dict[str, PluginArrays] = {}
    for point in entry_points(group=GROUP):
        try:
            with guard.neutral():
                module = point.load()
                register_device_type(module.device_type)
        except Exception as error:  # a plugin's code
            _log.warning("arrays of the plugin %s: %s", point.name, guard.words(error))
            continue
        if hasattr(module, "arrays"):
            loaded[point.name] = module
    return loaded


def torch_type(name: str, torch: Any) -> DeviceType | None:
    """The type of devices that torch calls ``name``, by a plugin where need be; None where none is registered."""
    known = of_torch(name, torch)
    if known is None:
        plugin_arrays()
        known = of_torch(name, torch)
    return known
