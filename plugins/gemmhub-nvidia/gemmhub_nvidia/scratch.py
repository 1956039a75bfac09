"""Scratch memory on an NVIDIA device for kernels of a plugin, leased to one call at a time.

A call leases a buffer, launches its kernels on the stream, and returns the buffer. Work on one stream runs in order,
so the next call on it may lease the same buffer. A call in between, on another thread or nested in this one (by a
signal handler, a profiler, a ``__del__``), does not find that buffer and leases another: so no two calls share one,
and none waits for another. Two streams may run at once, and so may a replayed graph and eager work on the stream it
was captured from: each stream, and each stream of each capture, has its own buffers.

No memory that a stream or a graph may still use is reused by others. The handle of a destroyed stream may be reused by
a later one, with work of the former in flight: the driver's unique numbers of streams distinguish the two, and the
buffers of the former are freed, which waits for that work. The memory of a graph is reused after the graph's end.

A buffer begins with counters, which every kernel finds and leaves at zero; the rest is undefined. A call that fails
between its kernels may leave other values: its buffer is not reused.

There are no locks: each change of a list or a dictionary is atomic, also in Python without a global lock.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from gemmhub_nvidia.driver import DriverError, Gpu
from gemmhub_nvidia.graph import GraphEnd

COUNTERS = 65536
"""Bytes of counters at the start of a buffer."""
MAX_COUNTERS = COUNTERS // 4
_PER_THREAD_STREAM = 2
"""CUDA's handle of the per-thread default stream."""

Buffer = tuple[int, int]
"""A buffer: (bytes, address)."""


class _Owner:
    """A stream, or a stream of a capture, with its free buffers."""

    def __init__(self, identity: int) -> None:
        self.identity = identity
        """Unique number of the stream by the driver."""
        self.free: list[Buffer] = []
        """Free buffers, the largest one last."""
        self.largest = 0
        """Size in bytes of its largest buffer so far."""

    def take(self, nbytes: int) -> Buffer | None:
        """Take a free buffer of at least ``nbytes``; None where there is none."""
        small = []
        try:
            while True:
                buffer = self.free.pop()
                if buffer[0] >= nbytes:
                    return buffer
                small.append(buffer)
        except IndexError:
            return None
        finally:
            if small:
                self.free[:0] = small


class Lease:
    """A buffer for the kernels of one call, until the end of the ``with`` block, after they are launched."""

    __slots__ = ("_buffer", "_captured", "_owner", "_scratch", "address", "nbytes")

    def __init__(self, owner: _Owner, buffer: Buffer, scratch: Scratch, captured: bool) -> None:
        self.nbytes, self.address = buffer
        self._owner, self._buffer, self._scratch, self._captured = owner, buffer, scratch, captured

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        if error_type is None or not self._scratch.zeroed:
            self._owner.free.append(self._buffer)
        elif not self._captured:  # a graph keeps it
            self._scratch.discard([self._buffer])


class Scratch:
    """The scratch memory of one device."""

    def __init__(self, gpu: Gpu, zeroed: bool = True) -> None:
        """Start without memory; ``zeroed`` buffers begin with counters."""
        self._gpu = gpu
        self.zeroed = zeroed
        self._owners: dict[tuple[int, ...], _Owner] = {}
        """Owners by stream handle and capture number (0 for none); of the per-thread stream also by thread."""
        self._captured: list[tuple[GraphEnd, tuple[int, ...]]] = []
        """Owners of captures, by the registered ends of their graphs."""
        self._ends: list[GraphEnd] = []
        """Ends that have come, for reuse."""
        self._spare: list[Buffer] = []
        """Buffers without an owner."""
        self._dummy = 0

    def lease(self, stream: int, nbytes: int, limit: int) -> Lease:
        """Lease a buffer for work on ``stream``, of at least ``nbytes`` and at most ``limit`` bytes.

        It may be larger than ``nbytes`` to serve later calls. Needs a context. Raises AllocationError where the device
        is out of memory; nothing is changed then.
        """
        number, graph, identity = self._gpu.driver.stream(stream)
        key: tuple[int, ...] = (stream, number)
        if stream == _PER_THREAD_STREAM:
            key += (threading.get_ident(),)
        owner = self._owners.get(key)
        if owner is None or owner.identity != identity:
            owner = self._renewed(key, graph, identity)
        buffer = owner.take(nbytes)
        if buffer is None:
            # At least doubled, so that all outgrown buffers together are smaller than the largest.
            buffer = self._allocated(nbytes, max(nbytes, min(2 * owner.largest * bool(owner.free), limit)))
            owner.largest = max(owner.largest, buffer[0])
        return Lease(owner, buffer, self, number != 0)

    def reserve(self, nbytes: int, limit: int) -> None:
        """Allocate a buffer of ``nbytes`` in advance where there is none.

        AllocationError is then raised here and not in a call.
        """
        streams = [owner.largest for (_, number, *_), owner in list(self._owners.items()) if not number]
        if all(size < nbytes for size in streams):
            largest = max([*streams, *(size for size, _ in list(self._spare))], default=0)
            self._spare.append(self._allocated(nbytes, max(nbytes, min(2 * largest, limit))))

    def dummy(self) -> int:
        """The address of 256 readable bytes, instead of operands that are absent or have no elements."""
        if not self._dummy:
            self._dummy = self._gpu.allocate(256, zeroed=True)
        return self._dummy

    def discard(self, buffers: list[Buffer]) -> None:
        """Free buffers, after waiting for the device."""
        for _, address in buffers:
            with suppress(DriverError):  # the context is lost, and its memory with it
                self._gpu.free(address)

    def _renewed(self, key: tuple[int, ...], graph: int, identity: int) -> _Owner:
        """A new owner for a stream without one, or with the handle of a destroyed stream."""
        before = self._owners.pop(key, None)
        if before is not None and before.identity == identity:  # another thread has renewed it
            return self._owners.setdefault(key, before)
        if before is not None:
            self.discard(before.free)
        renewed = _Owner(identity)
        owner = self._owners.setdefault(key, renewed)
        if owner is renewed and key[1]:
            self._watch(graph, key)
        return owner

    def _allocated(self, min_bytes: int, nbytes: int) -> Buffer:
        """The smallest spare buffer of at least ``min_bytes`` bytes, else a new one of ``nbytes`` bytes."""
        self._collect()
        for buffer in sorted(self._spare):
            if buffer[0] >= min_bytes:
                with suppress(ValueError):  # another thread has taken it
                    self._spare.remove(buffer)
                    return buffer
        return nbytes, self._gpu.allocate(nbytes, zeroed=self.zeroed)

    def _collect(self) -> None:
        """Reclaim the buffers of graphs that have ended."""
        for end, key in list(self._captured):
            if end.come():  # true once
                self._captured.remove((end, key))
                self._ends.append(end)
                self._spare.extend(self._owners.pop(key).free)

    def _watch(self, graph: int, key: tuple[int, ...]) -> None:
        """Register for the end of ``graph``; where that fails its memory is never reclaimed."""
        try:
            end = self._ends.pop()
        except IndexError:
            try:
                end = GraphEnd()
            except (OSError, AttributeError):
                return
        if end.watch(self._gpu.driver, graph):
            self._captured.append((end, key))
