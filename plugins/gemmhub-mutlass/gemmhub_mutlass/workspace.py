"""Scratch memory of one device: a buffer for each stream, so that work of two streams never shares one.

Preparing a product reserves what it needs: every buffer there is becomes large enough, and one is kept spare for the
next stream that comes. Nothing is freed: work that uses an outgrown buffer may be in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

_PER_THREAD_STREAM = 2
"""The runtime's handle that means another stream in every thread."""


@dataclass
class Buffer:
    """Device memory. Hold ``lock`` while work that uses it is put on the stream."""

    address: int = 0
    nbytes: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)


class Workspace:
    """``allocate(nbytes)`` gives the address of memory on the device, which is current whenever a method is called; it
    raises AllocationError.
    """

    def __init__(self, allocate: Callable[[int], int]) -> None:
        self._allocate = allocate
        self._buffers: dict[tuple[int, int], Buffer] = {}
        self._spare = Buffer()
        self._lock = threading.Lock()

    def reserve(self, nbytes: int) -> None:
        """Make room for ``nbytes`` on every stream known and on the next one to come."""
        with self._lock:
            for buffer in (*self._buffers.values(), self._spare):
                self._grow(buffer, nbytes)

    def buffer(self, stream: int, nbytes: int) -> Buffer:
        """The buffer for work on ``stream``, with at least ``nbytes``."""
        key = (stream, threading.get_ident() if stream == _PER_THREAD_STREAM else 0)
        with self._lock:
            buffer = self._buffers.get(key)
            if buffer is None:
                buffer, self._spare = self._spare, Buffer()
                self._buffers[key] = buffer
            self._grow(buffer, nbytes)
            return buffer

    def _grow(self, buffer: Buffer, nbytes: int) -> None:
        with buffer.lock:
            if buffer.nbytes < nbytes:
                buffer.address, buffer.nbytes = self._allocate(nbytes), nbytes
