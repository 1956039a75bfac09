"""Timing on a device: events on the current stream, with the caches flushed and the launches queued up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any


class DeviceClock:
    """Times calls by the device's own events, as a :class:`gemmhub.timing.Clock`.

    Before a stretch of calls the device gets work that keeps it busy: a memory fill larger than its L2 cache,
    as often as it takes until the host has launched the calls. So the cache holds none of their operands at the
    start, and no call waits for the host: what the events measure is the device's time alone.
    """

    _most = 64
    """Calls in a stretch: what a stream queues without making the host wait."""

    def __init__(
        self,
        event: Callable[[], Any],
        elapsed: Callable[[Any, Any], float],
        fill: Callable[[], object],
        cache_bytes: int,
        on: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.cache_bytes = 2.0 * cache_bytes
        self._start, self._end = event(), event()
        self._elapsed = elapsed  # milliseconds between two events
        self._fill = fill
        self._on = on  # makes the device current: events belong to one, and are recorded on its current stream
        self._fill_seconds = 0.0

    def measure(self, call: Callable[[], object], repeats: int) -> float:
        """Seconds a call, of ``repeats`` in a row (of 64, if that is less)."""
        with self._on():
            return self._measured(call, min(repeats, self._most))

    def _measured(self, call: Callable[[], object], repeats: int) -> float:
        if not self._fill_seconds:
            self._fill()
            self._fill_seconds = max(1e-6, self._stretch(self._fill, 8, 0) / 8)
        start = perf_counter()
        call()
        host = perf_counter() - start
        fills = 1 + min(512, int(1.5 * repeats * min(host, 1e-4) / self._fill_seconds))
        return self._stretch(call, repeats, fills) / repeats

    def _stretch(self, call: Callable[[], object], repeats: int, fills: int) -> float:
        for _ in range(fills):
            self._fill()
        self._start.record()
        for _ in range(repeats):
            call()
        self._end.record()
        self._end.synchronize()
        return self._elapsed(self._start, self._end) * 1e-3
