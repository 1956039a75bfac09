"""Loading of built shared libraries."""

from __future__ import annotations

import ctypes
from pathlib import Path

from gemmhub.capability import Refusal
from gemmhub.kit.native import cache


def load(path: Path, *, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL | Refusal:
    """Load the library at ``path``; a Refusal where the system does not.

    A file of the cache is compared with its digest first: a truncated one would kill the process in the loader.
    """
    if cache.holds(path):
        reason = cache.distrust(path.parent) or cache.doubt(path)
        if reason:
            return Refusal(f"loading {path.name} failed: {reason}", "start the program again: the file is rebuilt")
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        return Refusal(
            f"loading {path.name} failed: {error}",
            f"where its folder forbids execution (noexec), set {cache.VARIABLE} to one that does not; where a library "
            "is missing, install it or add its folder to LD_LIBRARY_PATH",
        )
