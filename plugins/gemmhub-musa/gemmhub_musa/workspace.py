"""Workspace: device memory that kernels need, leased for one call.

A lease belongs to one call from its first launch to its last: a call that begins before the lease ends (in another
thread, or in this one, as in a signal handler) gets other memory. The memory of an ended lease serves the next call,
on whatever stream: work on that stream first waits for the work of the lease before, by an event. So it does not
matter what a stream's handle means: the handle of a destroyed stream may come again, and the per-thread stream's
handle is the same in every thread.

No lock is held during a lease, nor while one is taken: a nested call never waits for the call that it interrupts.
"""

from __future__ import annotations

import threading
from functools import cache
from types import TracebackType

from gemmhub_musa.runtime import Runtime

PER_THREAD_STREAM = 2
"""The handle of the per-thread stream: in each thread it means that thread's own stream."""
RESERVED = 2
"""Blocks that :meth:`Workspace.reserve` keeps: for a call, and for one nested in it or in another thread."""
Key = tuple[int, int]


def key_of(stream: int) -> Key:
    """Return the key of a stream; equal for calls whose work runs in one order, as long as no stream is destroyed."""
    return stream, threading.get_ident() if stream == PER_THREAD_STREAM else 0


class Block:
    """Device memory, and the event behind the work of its last lease."""

    __slots__ = ("address", "event", "key", "nbytes")

    def __init__(self, address: int, nbytes: int, event: int) -> None:
        self.address, self.nbytes, self.event = address, nbytes, event
        self.key: Key | None = None
        """The key of the stream that it was last used on; None before its first lease."""


class Lease:
    """A block for the calls that a ``with`` statement puts on ``stream``; ``as`` binds the block."""

    __slots__ = ("_block", "_stream", "_workspace")

    def __init__(self, workspace: Workspace, block: Block, stream: int) -> None:
        self._workspace, self._block, self._stream = workspace, block, stream

    def __enter__(self) -> Block:
        return self._block

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workspace.end(self._block, self._stream)


class Workspace:
    """The workspace of one device, which must be the current one wherever a method is called.

    Nothing is freed: work that uses an outgrown block may be under way.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._blocks: list[Block] = []
        # Single operations on this list are atomic, so that it needs no lock.
        self._free: list[Block] = []
        self._zeros = (0, 0)

    def reserve(self, nbytes: int, limit: int) -> None:
        """Keep RESERVED blocks of at least ``nbytes``, so that calls which need as much allocate nothing.

        New blocks are at least twice as large as those before (but not larger than ``limit`` for that): all outgrown
        ones together are smaller than the largest. Raises AllocationError without memory.
        """
        if nbytes:
            largest = max((block.nbytes for block in self._blocks), default=0)
            missing = RESERVED - sum(block.nbytes >= nbytes for block in self._blocks)
            for _ in range(missing):
                self._free.append(self._new(max(nbytes, min(2 * largest, limit))))

    def lease(self, stream: int, nbytes: int) -> Lease:
        """Lease at least ``nbytes`` for work on ``stream``: its last block, a new one, or one of another stream.

        Allocates only where all that was reserved is leased to other calls; raises AllocationError without memory.
        """
        block = self._taken(key_of(stream), nbytes) or self._new(nbytes)
        if block.key is not None:
            try:
                self._runtime.stream_wait(stream, block.event)
            except BaseException:
                self._free.append(block)
                raise
        return Lease(self, block, stream)

    def end(self, block: Block, stream: int) -> None:
        """End a lease. A block whose event could not be recorded is never leased again: work may still use it."""
        self._runtime.event_record(block.event, stream)
        block.key = key_of(stream)
        self._free.append(block)

    def zeros(self, nbytes: int) -> int:
        """Return the address of ``nbytes`` zero bytes that all calls share and none writes. Raises AllocationError."""
        address, size = self._zeros
        if size < nbytes:
            address = self._runtime.malloc(nbytes)
            self._runtime.memset(address, 0, nbytes)
            self._runtime.synchronize()  # work on any stream may read them first
            self._zeros = (address, nbytes)
        return address

    def _taken(self, key: Key, nbytes: int) -> Block | None:
        """Return a free block, now taken; None where none is large enough."""
        while True:
            best, best_rank = None, (3, 0)
            for block in tuple(self._free):
                rank = (0 if block.key == key else 1 if block.key is None else 2, block.nbytes)
                if block.nbytes >= nbytes and rank < best_rank:
                    best, best_rank = block, rank
            if best is None:
                return None
            try:
                self._free.remove(best)
            except ValueError:  # another call has taken it meanwhile
                continue
            return best

    def _new(self, nbytes: int) -> Block:
        address = self._runtime.malloc(nbytes)
        try:
            block = Block(address, nbytes, self._runtime.event_create())
        except BaseException:
            self._runtime.free(address)
            raise
        self._blocks.append(block)
        return block


@cache
def of(runtime: Runtime, index: int) -> Workspace:
    """Return the workspace of device ``index``, which all backends share."""
    return Workspace(runtime)
