"""Floating-point modes for tests of backends: a thread that flushes subnormals, as callers' threads may."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_FLUSH = {"x86_64": (28, 0x8040), "aarch64": (0, 1 << 24)}
"""Index of the control word in a ``fenv_t``, and its bits that flush subnormals, by architecture."""


def known() -> bool:
    """Whether :func:`flushing` can change the mode here: on Linux, on x86_64 and aarch64."""
    return sys.platform.startswith("linux") and platform.machine() in _FLUSH


def _library() -> Any:
    library = ctypes.PyDLL(None)
    library.fegetenv.argtypes = library.fesetenv.argtypes = (ctypes.c_void_p,)
    return library


def control() -> int:
    """The control word of this thread: of x86_64 without the flags that arithmetic raises."""
    memory = ctypes.create_string_buffer(64)
    _library().fegetenv(memory)
    (word,) = struct.unpack_from("<I", memory.raw, _FLUSH[platform.machine()][0])
    return int(word) & (~0x3F if platform.machine() == "x86_64" else ~0)


@contextmanager
def flushing() -> Iterator[None]:
    """Subnormal operands and results are 0 in this thread, as after ``torch.set_flush_denormal(True)``."""
    library, before = _library(), ctypes.create_string_buffer(64)
    library.fegetenv(before)
    changed = ctypes.create_string_buffer(before.raw, 64)
    offset, bits = _FLUSH[platform.machine()]
    (word,) = struct.unpack_from("<I", before.raw, offset)
    struct.pack_into("<I", changed, offset, word | bits)
    library.fesetenv(changed)
    try:
        yield
    finally:
        library.fesetenv(before)
