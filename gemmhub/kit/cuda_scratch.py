"""Scratch memory on an NVIDIA device for kernels of a plugin, leased to one call at a time.

A call leases a buffer, puts its kernels on the stream, and gives the buffer back. Work on one stream runs in order,
so the next call on it may have the same buffer. A call that comes in between, on another thread or nested in this one
(by a signal handler, a profiler, a ``__del__``), finds that buffer gone and leases another: so no two calls share one,
and none waits for another. Two streams may run at once, and so may a replayed graph and eager work on the stream it
was captured from: each stream, and each stream of each capture, has buffers of its own.

Nothing that a stream or a graph may still use is given to others. A stream that is destroyed leaves its handle to a
later one, and perhaps work in flight: the driver's numbers of streams tell the two apart, and the earlier one's buffers
are freed, which waits for what uses them. What a graph had others get when it is gone.

A buffer begins with counters, which every kernel finds and leaves at zero; what else is in it is left undefined. A call
that fails between its kernels may leave counters that are not: its buffer is not used again.

There are no locks: lists and dictionaries change in one step each, also where Python has no global lock.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from gemmhub.kit.cuda import DriverError, Gpu
from gemmhub.kit.cuda_graph import GraphEnd

COUNTERS = 65536
"""Bytes of counters at the start of a buffer."""
MOST_COUNTERS = COUNTERS // 4
_PER_THREAD_STREAM = 2
"""CUDA's handle that means another stream in every thread."""

Place = tuple[int, int]
"""(bytes, address)."""


class _Owner:
    """A stream, or a stream of a capture, and its buffers that are not leased."""

    def __init__(self, identity: int) -> None:
        self.identity = identity
        """The driver's number of the stream."""
        self.free: list[Place] = []
        """The largest one last."""
        self.most = 0
        """Bytes of the largest one that it ever had."""

    def take(self, nbytes: int) -> Place | None:
        """A buffer of at least ``nbytes``, which is then nobody else's; None where there is none."""
        small = []
        try:
            while True:
                place = self.free.pop()
                if place[0] >= nbytes:
                    return place
                small.append(place)
        except IndexError:
            return None
        finally:
            if small:
                self.free[:0] = small


class Lease:
    """A buffer for the kernels of one call, until the ``with`` block ends: when they are on their way."""

    __slots__ = ("_captured", "_owner", "_place", "_scratch", "address", "nbytes")

    def __init__(self, owner: _Owner, place: Place, scratch: Scratch, captured: bool) -> None:
        self.nbytes, self.address = place
        self._owner, self._place, self._scratch, self._captured = owner, place, scratch, captured

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None or not self._scratch.zeroed:
            self._owner.free.append(self._place)
        elif not self._captured:  # a graph keeps it
            self._scratch.discard([self._place])


class Scratch:
    """The scratch memory of one device."""

    def __init__(self, gpu: Gpu, zeroed: bool = True) -> None:
        """``zeroed``: there are counters at the start."""
        self._gpu = gpu
        self.zeroed = zeroed
        self._owners: dict[tuple[int, ...], _Owner] = {}
        """By the stream's handle and the capture's number (0 for none); the per-thread stream's also by the thread."""
        self._captured: list[tuple[GraphEnd, tuple[int, ...]]] = []
        """The owners of captures whose graphs' ends we are told of."""
        self._ends: list[GraphEnd] = []
        """Those that have come, to be used again."""
        self._spare: list[Place] = []
        """What nobody owns."""
        self._dummy = 0

    def lease(self, stream: int, nbytes: int, limit: int) -> Lease:
        """A buffer for work on ``stream``, of at least ``nbytes``; to have room for later calls it may be larger, but
        not larger than ``limit``.

        Needs a context. Raises AllocationError when the device has no memory left; nothing is changed then.
        """
        number, graph, identity = self._gpu.driver.stream(stream)
        key: tuple[int, ...] = (stream, number)
        if stream == _PER_THREAD_STREAM:
            key += (threading.get_ident(),)
        owner = self._owners.get(key)
        if owner is None or owner.identity != identity:
            owner = self._renewed(key, graph, identity)
        place = owner.take(nbytes)
        if place is None:
            # At least doubled, so that all outgrown ones together are smaller than the largest.
            place = self._found(nbytes, max(nbytes, min(2 * owner.most * bool(owner.free), limit)))
            owner.most = max(owner.most, place[0])
        return Lease(owner, place, self, number != 0)

    def reserve(self, nbytes: int, limit: int) -> None:
        """Have memory for the next stream that asks for ``nbytes``, if none has as much: AllocationError comes here
        then, and not in a call.
        """
        streams = [owner.most for (_, number, *_), owner in list(self._owners.items()) if not number]
        if all(size < nbytes for size in streams):
            most = max([*streams, *(size for size, _ in list(self._spare))], default=0)
            self._spare.append(self._found(nbytes, max(nbytes, min(2 * most, limit))))

    def dummy(self) -> int:
        """The address of 256 bytes that may be read: a stand-in for operands, and those of a product without k."""
        if not self._dummy:
            self._dummy = self._gpu.allocate(256, zeroed=True)
        return self._dummy

    def discard(self, places: list[Place]) -> None:
        """Free them, which waits until the device is done with them."""
        for _, address in places:
            with suppress(DriverError):  # the context is lost, and its memory with it
                self._gpu.free(address)

    def _renewed(self, key: tuple[int, ...], graph: int, identity: int) -> _Owner:
        """The owner of a stream that has none yet, or that has the handle of one that was destroyed."""
        before = self._owners.pop(key, None)
        if before is not None and before.identity == identity:  # another thread has been here
            return self._owners.setdefault(key, before)
        if before is not None:
            self.discard(before.free)
        made = _Owner(identity)
        owner = self._owners.setdefault(key, made)
        if owner is made and key[1]:
            self._watch(graph, key)
        return owner

    def _found(self, least: int, wanted: int) -> Place:
        """The smallest spare memory of at least ``least``, else new memory of ``wanted``."""
        self._collect()
        for place in sorted(self._spare):
            if place[0] >= least:
                with suppress(ValueError):  # another thread has taken it
                    self._spare.remove(place)
                    return place
        return wanted, self._gpu.allocate(wanted, zeroed=self.zeroed)

    def _collect(self) -> None:
        """What graphs had that are gone."""
        for end, key in list(self._captured):
            if end.come():  # true once
                self._captured.remove((end, key))
                self._ends.append(end)
                self._spare.extend(self._owners.pop(key).free)

    def _watch(self, graph: int, key: tuple[int, ...]) -> None:
        """Where nobody tells of the graph's end its memory stays what it is."""
        try:
            end = self._ends.pop()
        except IndexError:
            try:
                end = GraphEnd()
            except (OSError, AttributeError):
                return
        if end.watch(self._gpu.driver, graph):
            self._captured.append((end, key))
