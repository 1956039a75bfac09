"""Scratch memory on an NVIDIA device for kernels of a plugin: one buffer for each stream, one for each stream of each
graph capture.

Work on one stream runs in order, so its products may share a buffer. Two streams may run at once, and so may a
replayed graph and eager work on the stream it was captured from: those never share. Nothing is freed: work that
uses an outgrown buffer may be in flight, and a graph may be replayed at any time.

A buffer begins with counters, which every kernel finds and leaves at zero; what else is in it is left undefined.
"""

from __future__ import annotations

import threading

from gemmhub.native.cuda import Gpu

COUNTERS = 65536
"""Bytes of counters at the start of a buffer."""
MOST_COUNTERS = COUNTERS // 4
_PER_THREAD_STREAM = 2
"""CUDA's handle that means another stream in every thread."""


class Scratch:
    """The scratch memory of one device."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._buffers: dict[tuple[int, ...], tuple[int, int]] = {}
        self._dummy = 0

    def buffer(self, stream: int, nbytes: int, limit: int) -> int:
        """The address of at least ``nbytes`` for work on ``stream``; a buffer does not grow beyond ``limit``.

        Raises AllocationError when the device has no memory left; nothing is changed then.
        """
        key: tuple[int, ...] = (stream, self._gpu.driver.capture(stream))
        if stream == _PER_THREAD_STREAM:
            key += (threading.get_ident(),)
        address, size = self._buffers.get(key, (0, 0))
        if size < nbytes:
            with self._lock:
                address, size = self._buffers.get(key, (0, 0))
                if size < nbytes:
                    # At least doubled, so that all outgrown ones together are smaller than the one in use.
                    size = max(nbytes, min(2 * size, limit))
                    address = self._gpu.allocate(size, zeroed=True)
                    self._buffers[key] = (address, size)
        return address

    def dummy(self) -> int:
        """The address of 256 bytes that may be read: a stand-in for operands, and those of a product without k."""
        with self._lock:
            if not self._dummy:
                self._dummy = self._gpu.allocate(256, zeroed=True)
            return self._dummy
