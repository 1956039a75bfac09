"""Scratch memory on a device: zeros that all products share, and one buffer for each stream.

Work on one stream runs in order, so its products may share a buffer. Nothing is ever freed: work that uses an
outgrown buffer may be in flight.
"""

from __future__ import annotations

import threading

from gemmhub_musa.runtime import Runtime


class Buffer:
    """Device memory of one stream. Hold ``lock`` while a product that uses it is put on the stream."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.address = 0
        self.nbytes = 0


class Memory:
    """The scratch memory of the device that is current whenever a method is called."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._buffers: dict[int, Buffer] = {}
        self._zeros = (0, 0)

    def zeros(self, nbytes: int) -> int:
        """The address of ``nbytes`` zero bytes, never to be written. Raises AllocationError."""
        with self._lock:
            address, size = self._zeros
            if size < nbytes:
                address = self._runtime.malloc(nbytes)
                self._runtime.memset(address, 0, nbytes)
                self._runtime.synchronize()  # the products that read it may be on any stream
                self._zeros = (address, nbytes)
            return address

    def buffer(self, stream: int, nbytes: int, limit: int) -> Buffer:
        """The buffer for work on ``stream``, with at least ``nbytes``; it grows to ``limit`` bytes at most for that.

        Raises AllocationError when the device has no memory left; nothing is changed then.
        """
        with self._lock:
            buffer = self._buffers.setdefault(stream, Buffer())
        if buffer.nbytes < nbytes:
            with buffer.lock:
                if buffer.nbytes < nbytes:
                    # At least doubled, so that all outgrown ones together are smaller than the one in use.
                    grown = max(nbytes, min(2 * buffer.nbytes, limit))
                    buffer.address, buffer.nbytes = self._runtime.malloc(grown), grown
        return buffer
