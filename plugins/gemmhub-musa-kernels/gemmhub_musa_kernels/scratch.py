"""Device memory that a prepared product copies operands to. One block of it, whatever streams calls come on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gemmhub_musa.array import Memory
from gemmhub_musa.runtime import MusaError, Runtime


class Scratch:
    """``nbytes`` on device ``index``, which must be current wherever it is used. AllocationError without memory."""

    def __init__(self, runtime: Runtime, index: int, nbytes: int) -> None:
        self._runtime = runtime
        self._memory = Memory(runtime, index, nbytes)
        self._lock = threading.Lock()
        self._used = False
        self._event = runtime.event_create()
        weakref.finalize(self, _destroy, runtime, index, self._event).atexit = False

    @contextmanager
    def on(self, stream: int) -> Iterator[int]:
        """Its address, for work that the block puts on ``stream``: that waits for the work before, on any stream."""
        with self._lock:
            if self._used:  # also where it seems to be the same stream: handles of destroyed ones come again
                self._runtime.stream_wait(stream, self._event)
            try:
                yield self._memory.address
            finally:
                self._used = True
                self._runtime.event_record(self._event, stream)


def _destroy(runtime: Runtime, index: int, event: int) -> None:
    with suppress(MusaError), runtime.device(index):  # a device that fails here has failed before
        runtime.event_destroy(event)
