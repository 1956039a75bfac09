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
    start, and no call waits for the host: what the events measure is the device's time alone. Where the host took
    longer than the fills did, being busy with something else or the card having woken up since the last ones, it is
    measured again with more of them.
    """

    _most = 64
    """Calls in a stretch: what a stream queues without making the host wait."""
    _most_fills = 512
    _tries = 3

    def __init__(
        self,
        event: Callable[[], Any],
        elapsed: Callable[[Any, Any], float],
        fill: Callable[[], object],
        cache_bytes: int,
        on: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.cache_bytes = 2.0 * cache_bytes
        self._before, self._start, self._end = event(), event(), event()
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
            self._stretch(self._fill, 1, 8)
        start = perf_counter()
        call()
        fills = self._lasting(repeats * min(perf_counter() - start, 1e-4))
        for _ in range(self._tries):
            seconds, launching = self._stretch(call, repeats, fills)
            if launching <= fills * self._fill_seconds or fills == self._most_fills:
                break
            fills = self._lasting(launching)
        return seconds / repeats

    def _lasting(self, seconds: float) -> int:
        """Fills that take the device so long, and half as long again."""
        return min(self._most_fills, 1 + int(1.5 * seconds / self._fill_seconds))

    def _stretch(self, call: Callable[[], object], repeats: int, fills: int) -> tuple[float, float]:
        """(seconds of the calls, what the host took to launch everything). Notes what a fill takes."""
        begun = perf_counter()
        self._before.record()
        for _ in range(fills):
            self._fill()
        self._start.record()
        for _ in range(repeats):
            call()
        self._end.record()
        launching = perf_counter() - begun
        self._end.synchronize()
        self._fill_seconds = max(1e-6, self._elapsed(self._before, self._start) * 1e-3 / fills)
        return self._elapsed(self._start, self._end) * 1e-3, launching
