"""Scratch memory that a thread keeps between calls."""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np

from gemmhub.dtypes import DType

Array = Any


class Scratch(threading.local):
    """One buffer a thread, kept between calls: fresh pages would cost more than the conversion they hold."""

    def __init__(self) -> None:
        self._buffer: Array = np.empty(0, np.uint8)
        self.used = 0

    def start(self, nbytes: int) -> None:
        """Begin a call that takes at most ``nbytes``."""
        if self._buffer.size < nbytes:
            self._buffer = np.empty(0, np.uint8)  # give the old one back first
            self._buffer = np.empty(nbytes, np.uint8)
        self.used = 0

    def take(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An uninitialised array of the current call, aligned to 64 bytes."""
        size = prod(shape) * dtype.itemsize
        begin = self.used
        self.used += -(-size // 64) * 64
        if self.used > self._buffer.size:
            return np.empty(shape, dtype)
        return self._buffer[begin : begin + size].view(dtype).reshape(shape)


scratch = Scratch()
"""The scratch memory of the blocked kernels."""
