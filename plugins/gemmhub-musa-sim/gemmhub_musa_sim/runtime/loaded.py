"""The simulated libmusart that this process has loaded, whoever loaded it."""

from __future__ import annotations

import ctypes
from pathlib import Path


def loaded_runtime() -> ctypes.CDLL:
    """A handle on it; RuntimeError when none is loaded (load one from a simulated home's ``lib``)."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5] if line.count(" ") >= 5 and "/" in line else ""
        if "libmusart" in Path(path).name:
            library = ctypes.CDLL(path)
            if hasattr(library, "musaSimSetOption"):
                return library
    raise RuntimeError("no simulated libmusart is loaded: load one from the lib folder of a simulated home first")
