"""Loading a shared library that was built."""

from __future__ import annotations

import ctypes
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.kit.native import cache


def load(path: Path, *, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL | Refusal:
    """The library at ``path``, or why the system does not load it.

    A file of the cache is compared with its digest first: the loader would be killed by one that is truncated.
    """
    if cache.holds(path):
        reason = cache.distrust(path.parent) or cache.doubt(path)
        if reason:
            return Refusal(f"loading {path.name} failed: {reason}", "start the program again: the file is made anew")
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        return Refusal(
            f"loading {path.name} failed: {error}",
            f"where its folder forbids execution (noexec), set {cache.VARIABLE} to one that does not; where a library "
            "is missing, install it or add its folder to LD_LIBRARY_PATH",
        )
