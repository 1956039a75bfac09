"""Scratch memory on an NVIDIA device for kernels of a plugin: one buffer for each stream, one for each stream of each
graph capture.

Work on one stream runs in order, so its products may share a buffer. Two streams may run at once, and so may a
replayed graph and eager work on the stream it was captured from: those never share. Nothing is freed: work that uses an
outgrown buffer may be in flight, and a graph may be replayed at any time. What a graph had others get when it is gone.

A buffer begins with counters, which every kernel finds and leaves at zero; what else is in it is left undefined.
"""

from __future__ import annotations

import threading

from gemmhub.native.cuda import Gpu
from gemmhub.native.cuda_graph import GraphEnd

COUNTERS = 65536
"""Bytes of counters at the start of a buffer."""
MOST_COUNTERS = COUNTERS // 4
_PER_THREAD_STREAM = 2
"""CUDA's handle that means another stream in every thread."""


class Buffer:
    """Scratch memory of one stream. Two threads may use it: whoever puts kernels on the stream that find in the buffer
    what the ones before have left there holds ``lock`` until the last one is on its way.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.place = (0, 0)
        """(bytes, address)."""
        self.outgrown: list[tuple[int, int]] = []


class Scratch:
    """The scratch memory of one device."""

    def __init__(self, gpu: Gpu, zeroed: bool = True) -> None:
        """``zeroed``: there are counters at the start."""
        self._gpu = gpu
        self._zeroed = zeroed
        self._lock = threading.Lock()
        self._buffers: dict[tuple[int, ...], Buffer] = {}
        self._captured: list[tuple[GraphEnd, tuple[int, ...]]] = []
        """The buffers of captures whose graphs' ends we are told of."""
        self._ends: list[GraphEnd] = []
        """Those that have come, to be used again."""
        self._spare: list[tuple[int, int]] = []
        """(bytes, address) of what nobody uses."""
        self._dummy = 0

    def buffer(self, stream: int, nbytes: int, limit: int) -> Buffer:
        """The buffer for work on ``stream``, with at least ``nbytes``; for that it does not grow beyond ``limit``.

        Raises AllocationError when the device has no memory left; nothing is changed then.
        """
        number, graph = self._gpu.driver.capture(stream)
        key: tuple[int, ...] = (stream, number)
        if stream == _PER_THREAD_STREAM:
            key += (threading.get_ident(),)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.place[0] < nbytes:
            with self._lock:
                buffer = self._buffers.get(key) or Buffer()
                before = buffer.place
                if before[0] < nbytes:
                    # At least doubled, so that all outgrown ones together are smaller than the one in use.
                    buffer.place = self._found(nbytes, max(nbytes, min(2 * before[0], limit)))
                    buffer.outgrown += [before] if before[0] else []
                if key not in self._buffers:
                    self._buffers[key] = buffer
                    if number:
                        self._watch(graph, key)
        return buffer

    def reserve(self, nbytes: int, limit: int) -> None:
        """Have memory for the next stream that asks for ``nbytes``, if none has as much: AllocationError comes here
        then, and not in a call.
        """
        with self._lock:
            streams = [buffer.place for (_, number, *_), buffer in self._buffers.items() if not number]
            if all(size < nbytes for size, _ in streams):
                most, _ = max([*streams, *self._spare], default=(0, 0))
                self._spare.append(self._found(nbytes, max(nbytes, min(2 * most, limit))))

    def dummy(self) -> int:
        """The address of 256 bytes that may be read: a stand-in for operands, and those of a product without k."""
        with self._lock:
            if not self._dummy:
                self._dummy = self._gpu.allocate(256, zeroed=True)
            return self._dummy

    def _found(self, least: int, wanted: int) -> tuple[int, int]:
        """(bytes, address): the smallest spare memory of at least ``least``, else new memory of ``wanted``."""
        self._collect()
        enough = [x for x in self._spare if x[0] >= least]
        if enough:
            self._spare.remove(min(enough))
            return min(enough)
        return wanted, self._gpu.allocate(wanted, zeroed=self._zeroed)

    def _collect(self) -> None:
        """What graphs had that are gone."""
        for x in [x for x in self._captured if x[0].come()]:
            end, key = x
            self._captured.remove(x)
            self._ends.append(end)
            gone = self._buffers.pop(key)
            self._spare += [gone.place, *gone.outgrown]

    def _watch(self, graph: int, key: tuple[int, ...]) -> None:
        """Where nobody tells of the graph's end its memory stays what it is."""
        try:
            end = self._ends.pop() if self._ends else GraphEnd()
        except (OSError, AttributeError):
            return
        if end.watch(self._gpu.driver, graph):
            self._captured.append((end, key))
