"""Scratch memory of one device: a buffer for each stream, so that work of two streams never shares one.

Preparing a product reserves what the library says it needs: every buffer there is becomes large enough, and one is
kept spare for the next stream that comes. So a call allocates only on the second new stream after that, and where
the library wants more than it had said. Nothing is freed: work that uses an outgrown buffer may be in flight.
One thread at a time: the engine's lock is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from gemmhub.errors import AllocationError

_PER_THREAD_STREAM = 2
"""The runtime's handle that means another stream in every thread."""
_ALIGNMENT = 256


@dataclass
class Buffer:
    """Device memory; ``nbytes`` 0: none."""

    address: int = 0
    nbytes: int = 0


class Workspace:
    """``allocate(nbytes)`` gives the address of new device memory, or raises AllocationError."""

    def __init__(self, allocate: Callable[[int], int]) -> None:
        self._allocate = allocate
        self._buffers: dict[tuple[int, int], Buffer] = {}
        self._spare = Buffer()
        self._zeros = Buffer()

    def reserve(self, nbytes: int, limit: int) -> None:
        """Make room for products of ``nbytes`` on every stream known and on the next one to come."""
        for buffer in (*self._buffers.values(), self._spare):
            self._grow(buffer, nbytes, limit)

    def buffer(self, stream: int, nbytes: int, limit: int) -> Buffer:
        """The buffer for work on ``stream``, with at least ``nbytes``."""
        key = (stream, threading.get_ident() if stream == _PER_THREAD_STREAM else 0)
        buffer = self._buffers.get(key)
        if buffer is None:
            if not nbytes:
                return Buffer()
            buffer, self._spare = self._spare, Buffer()
            self._buffers[key] = buffer
        self._grow(buffer, nbytes, limit)
        return buffer

    def more(self, stream: int, nbytes: int, limit: int) -> int:
        """The address of ``nbytes`` besides those of the stream's buffer; from now on the buffer holds both.

        Raises AllocationError where both together are more than ``limit``.
        """
        before = self.buffer(stream, 0, limit).nbytes
        together = (before + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT + nbytes
        if together > limit:
            raise AllocationError(f"muDNN wants a workspace of {together} bytes, the limit is {limit}")
        return self.buffer(stream, together, limit).address

    def zeros(self, nbytes: int, clear: Callable[[int, int], None]) -> int:
        """The address of ``nbytes`` zero bytes, never to be written; ``clear(address, nbytes)`` zeroes new memory."""
        if self._zeros.nbytes < nbytes:
            address = self._allocate(nbytes)
            clear(address, nbytes)
            self._zeros = Buffer(address, nbytes)
        return self._zeros.address

    def _grow(self, buffer: Buffer, nbytes: int, limit: int) -> None:
        """At least doubled, so that all outgrown ones together are smaller than the one in use."""
        if buffer.nbytes < nbytes:
            grown = max(nbytes, min(2 * buffer.nbytes, limit))
            buffer.address, buffer.nbytes = self._allocate(grown), grown
