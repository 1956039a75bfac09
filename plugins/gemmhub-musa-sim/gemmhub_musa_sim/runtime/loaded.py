"""Finds the simulated libmusart that this process has loaded."""

from __future__ import annotations

import ctypes
from pathlib import Path


def loaded_runtime() -> ctypes.CDLL:
    """Return the loaded library, with its own functions (musaSim...).

    Raises RuntimeError where none is loaded: load one from a simulated home's ``lib``.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5] if line.count(" ") >= 5 and "/" in line else ""
        if "libmusart" in Path(path).name:
            library = ctypes.CDLL(path)
            if hasattr(library, "musaSimSetOption"):
                library.musaSimMessage.restype = ctypes.c_char_p
                library.musaSimLive.restype = ctypes.c_size_t
                library.musaSimLimit.argtypes = [ctypes.c_size_t]
                return library
    raise RuntimeError("no simulated libmusart is loaded: load one from the lib folder of a simulated home first")
