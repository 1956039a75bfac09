"""Arrays of matrix addresses in device memory, which the ...Batched functions read.

The addresses change with every call's operands, so they are copied to the device in order with the products that read
them. A table, leased for one call, is the memory on both sides of that copy. The host's side must not change before
the copy is done: where as many calls with other operands are under way as there are tables, a call waits for the
first of these.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from gemmhub_musa.array import Memory
from gemmhub_musa.runtime import TO_DEVICE, MusaError, Runtime

TABLES = 4
"""Tables of one kernel: as many calls with different operands may be under way without waiting."""
_WORD = 8
_Bases = tuple[int, int, int]


class _Table:
    """Memory for the addresses of one call, on the device and on the host; the event behind the call's work."""

    def __init__(self, runtime: Runtime, index: int, count: int) -> None:
        nbytes = 3 * count * _WORD
        self._memory = Memory(runtime, index, nbytes)
        self.address = self._memory.address
        self.source = runtime.malloc_host(nbytes)
        weakref.finalize(self, _free, runtime, index, self.source).atexit = False
        self.event = runtime.event_create()
        weakref.finalize(self, _destroy, runtime, index, self.event).atexit = False
        self.used = False
        self.holds: _Bases | None = None
        """The addresses of A, B and C that it was filled for."""


def _free(runtime: Runtime, index: int, address: int) -> None:
    with suppress(MusaError), runtime.device(index):
        runtime.synchronize()  # a copy from it may be pending
        runtime.free_host(address)


def _destroy(runtime: Runtime, index: int, event: int) -> None:
    with suppress(MusaError), runtime.device(index):  # a device that fails here has failed before
        runtime.event_destroy(event)


class Pointers:
    """Address arrays for products of matrices at fixed ``offsets`` (bytes, for A, B and C) from three addresses."""

    def __init__(self, runtime: Runtime, index: int, offsets: Sequence[_Bases]) -> None:
        """Device ``index`` must be current wherever this is used. Raises AllocationError without memory."""
        self._runtime, self._index = runtime, index
        self._offsets = tuple(zip(*offsets))
        self._count = len(offsets)
        # The longest unused first. Single operations on this list are atomic, so that it needs no lock.
        self._free = [self._new() for _ in range(TABLES)]

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return TABLES * 3 * self._count * _WORD

    @contextmanager
    def lease(self, bases: _Bases, stream: int) -> Iterator[_Bases]:
        """The addresses of the arrays of A, B and C, for a product that is put on ``stream`` before the lease ends.

        Raises MusaError; AllocationError only where all tables are leased to other calls.
        """
        table = self._taken(bases) or self._new()
        try:
            self._fill(table, bases, stream)
            size = self._count * _WORD
            yield table.address, table.address + size, table.address + 2 * size
        finally:
            # A table whose event could not be recorded is never leased again: work may still use it.
            self._runtime.event_record(table.event, stream)
            table.used = True
            self._free.append(table)

    def _taken(self, bases: _Bases) -> _Table | None:
        """Take a free table: one with these addresses, else an unused one, else the one unused for longest."""
        while True:
            free = tuple(self._free)
            ranks = [0 if table.holds == bases else 2 if table.used else 1 for table in free]
            if not free:
                return None
            best = free[ranks.index(min(ranks))]
            try:
                self._free.remove(best)
            except ValueError:  # another call has taken it meanwhile
                continue
            return best

    def _fill(self, table: _Table, bases: _Bases, stream: int) -> None:
        """Put the copy of new addresses on ``stream``; without new ones only wait for the table's last use."""
        if table.holds == bases:
            self._runtime.stream_wait(stream, table.event)
            return
        if table.used:
            self._runtime.event_synchronize(table.event)
        table.holds = None
        addresses = [base + offset for base, offsets in zip(bases, self._offsets) for offset in offsets]
        nbytes = 3 * self._count * _WORD
        self._runtime.write_host(table.source, struct.pack(f"={len(addresses)}Q", *addresses))
        self._runtime.memcpy_async(table.address, table.source, nbytes, TO_DEVICE, stream)
        table.holds = bases

    def _new(self) -> _Table:
        return _Table(self._runtime, self._index, self._count)
