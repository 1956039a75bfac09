"""Scratch memory on a device: one buffer for each stream, one for each stream of each graph capture.

Work on one stream runs in order, so its products may share a buffer. Two streams may run at once, and so may a
replayed graph and eager work on the stream it was captured from: those never share. Nothing is freed: work that
uses an outgrown buffer may be in flight, and a graph may be replayed at any time.
"""

from __future__ import annotations

import threading

from gemmhub.native.cuda import Gpu

_PER_THREAD_STREAM = 2
"""CUDA's handle that means another stream in every thread."""


class Buffer:
    """Device memory of one stream. Hold ``lock`` while a product is put on the stream: the library launches several
    kernels for one product, and those of another thread must not come in between.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.address = 0
        self.nbytes = 0


class Workspace:
    """The scratch memory of one device."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._buffers: dict[tuple[int, ...], Buffer] = {}
        self._zeros = (0, 0)

    def buffer(self, stream: int, nbytes: int, limit: int) -> Buffer:
        """The buffer for work on ``stream``, with at least ``nbytes``; it never grows beyond ``limit`` for that.

        Raises AllocationError when the device has no memory left; nothing is changed then.
        """
        key: tuple[int, ...] = (stream, self._gpu.driver.capture(stream))
        if stream == _PER_THREAD_STREAM:
            key += (threading.get_ident(),)
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers.setdefault(key, Buffer())
        if buffer.nbytes < nbytes:
            with buffer.lock:
                if buffer.nbytes < nbytes:
                    # At least doubled, so that all outgrown ones together are smaller than the one in use.
                    grown = max(nbytes, min(2 * buffer.nbytes, limit))
                    buffer.address, buffer.nbytes = self._gpu.allocate(grown), grown
        return buffer

    def zeros(self, nbytes: int) -> int:
        """The address of ``nbytes`` zero bytes, never to be written."""
        with self._lock:
            address, size = self._zeros
            if size < nbytes:
                address = self._gpu.allocate(nbytes, zeroed=True)
                self._zeros = (address, nbytes)
            return address
