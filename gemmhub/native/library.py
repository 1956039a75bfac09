"""Loading a shared library that was built."""

from __future__ import annotations

import ctypes
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.native.cache import VARIABLE


def load(path: Path, *, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL | Refusal:
    """The library at ``path``, or why the system does not load it."""
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        return Refusal(
            f"loading {path.name} failed: {error}",
            f"where its folder forbids execution (noexec), set {VARIABLE} to one that does not; where a library is "
            "missing, install it or add its folder to LD_LIBRARY_PATH",
        )
