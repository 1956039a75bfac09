"""The host's C++ compiler, and the processor extensions that it may use."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

_WANTED = {"f16c": "-mf16c", "avx2": "-mavx2", "fma": "-mfma"}


def cxx() -> str:
    """Return the C++ compiler: the environment's CXX, else g++, else c++; a name that the caller fails on if absent."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or "g++"


@functools.cache
def processor_flags() -> tuple[str, ...]:
    """Return the options for the vector instructions of simulated kernels, if this processor has them all."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    features: set[str] = set()
    for line in text.splitlines():
        if line.startswith("flags"):
            features = set(line.split(":", 1)[1].split())
            break
    return tuple(_WANTED.values()) if features >= set(_WANTED) else ()
