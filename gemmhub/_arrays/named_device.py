"""Devices by name: "cpu", "cuda:1"."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gemmhub._arrays.plugin_arrays import plugin_arrays
from gemmhub._base import device_types
from gemmhub.capability import CPU, Device
from gemmhub.errors import InputError


def parse_device(name: str, further: Iterable[str] = ()) -> Device:
    """The device called "cpu", "cuda", "cuda:1" or the like, of a registered type or one of ``further`` types.

    Raises InputError for other names.
    """
    if name == "cpu":
        return CPU
    plugin_arrays()
    types = tuple(dict.fromkeys((*device_types.names(), *further)))
    parts = re.fullmatch(r"([a-z_0-9]+)(?::(\d{1,4}))?", name)
    if parts is None or parts[1] not in types:
        allowed = ", ".join(("cpu", *(f"{known}, {known}:N" for known in types)))
        raise InputError("device", repr(name), allowed, "a device of another type needs the plugin that registers it")
    return Device(parts[1], int(parts[2] or 0))
