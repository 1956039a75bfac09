"""Scratch memory that a thread keeps between calls and leases to one call at a time."""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np

from gemmhub.dtypes import DType

Array = Any

_ALIGNMENT = 64
"""Size of a cache line in bytes."""


_NOTHING = np.empty(0, np.uint8)


class Lease:
    """The scratch memory of one call, in a ``with`` statement. No other call uses it before that ends."""

    __slots__ = ("_buffer", "_kept", "used")

    def __init__(self, kept: list[Array], nbytes: int) -> None:
        """Lease ``nbytes``, of the last buffer in ``kept`` where it is large enough."""
        self._kept = kept
        self.used = 0
        """Bytes taken so far. Resetting it to an earlier value releases the arrays taken since."""
        try:
            self._buffer = kept.pop()
        except IndexError:
            self._buffer = _NOTHING
        if self._buffer.size < nbytes:
            self._buffer = _NOTHING  # frees the old buffer first
            self._buffer = _aligned(nbytes)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, cls: object, error: object, traceback: object) -> None:
        # After an exception a traceback, or a thread that was not waited for, may still refer to parts of the buffer:
        # it is freed with the last reference.
        if cls is None:
            self._kept.append(self._buffer)
            del self._kept[:-1]

    def take(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An uninitialised array, aligned to 64 bytes; newly allocated where the lease is exhausted."""
        size = prod(shape) * dtype.itemsize
        begin = self.used
        self.used += -(-size // _ALIGNMENT) * _ALIGNMENT
        if begin + size > self._buffer.size:
            return np.empty(shape, dtype)
        return self._buffer[begin : begin + size].view(dtype).reshape(shape)


def unleased() -> Lease:
    """An empty lease, whose arrays are all newly allocated."""
    return Lease([], 0)


class Scratch(threading.local):
    """At most one buffer per thread, kept between calls: page faults would cost more than the conversion.

    A lease removes the buffer from the thread, and its end returns it. A call that starts before (in a signal handler,
    a profiler, a ``__del__``, an operand's own code) finds none and allocates its own; of several, the buffer of the
    call that ended last is kept. Both steps are atomic operations of a list: after an exception in between,
    asynchronous or not, a buffer may be garbage-collected but is never leased twice.
    """

    def __init__(self) -> None:
        self.kept: list[Array] = []
        """The free buffer of this thread, in a list of at most one."""

    def lease(self, nbytes: int) -> Lease:
        """Lease memory for the current call: ``with scratch.lease(nbytes) as lease``."""
        return Lease(self.kept, nbytes)


def _aligned(nbytes: int) -> Array:
    memory = np.empty(nbytes + _ALIGNMENT - 1, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes]


scratch = Scratch()
"""The scratch memory of the blocked kernels."""
