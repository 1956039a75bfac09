"""Timing on a device: events on the current stream, with the caches flushed and the launches queued up."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, NamedTuple

_AHEAD = 4
"""Calls that the host could launch while the first fills run: it launches those fills, and a first call, meanwhile."""
_LONGER = 1.2
"""So many times as long as the host must the device take for calls, or it may have waited for the host."""


class _Stretch(NamedTuple):
    """Calls in a row, after fills. Seconds."""

    seconds: float
    """That the device took for the calls."""
    fills: int
    filling: float
    """And for those."""
    first: float
    """Until the host had launched the first call."""
    launched: float
    """Until it had launched all."""

    @property
    def fill(self) -> float:
        """One of them; no less than a microsecond, for what is divided by it."""
        return max(1e-6, self.filling / self.fills)

    @property
    def without_waiting(self) -> bool:
        """The device has never waited for the host."""
        if self.filling >= self.launched:
            return True
        return self.filling >= self.first and self.seconds > _LONGER * (self.launched - self.first)


class DeviceClock:
    """Times calls by the device's own events, as a :class:`gemmhub._base.timing.Clock`.

    Before a stretch of calls the device gets work that keeps it busy: a memory fill larger than its L2 cache,
    as often as it takes until the host has launched the first call, or all calls where the host takes longer than
    the device for one. So the cache holds none of their operands at the start, and no call waits for the host: what
    the events measure is the device's time alone. There are no more fills than that, as fills let a card cool that
    calls had heated: it would time them at a clock that it does not keep. Where a stretch turns out to have had too
    few, as the host was busy with something else or the card had woken up, it is measured again with more of them.
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
            self._fill_seconds = self._stretch(self._fill, 1, 8).fill
        start = perf_counter()
        call()
        fills = self._lasting(_AHEAD * min(perf_counter() - start, 1e-4))
        for _ in range(self._tries):
            stretch = self._stretch(call, repeats, fills)
            self._fill_seconds = stretch.fill
            if stretch.without_waiting or fills == self._most_fills:
                break
            fills = self._lasting(stretch.launched)
        return stretch.seconds / repeats

    def _lasting(self, seconds: float) -> int:
        """Fills that take the device so long, and half as long again."""
        return min(self._most_fills, 1 + int(1.5 * seconds / self._fill_seconds))

    def _stretch(self, call: Callable[[], object], repeats: int, fills: int) -> _Stretch:
        begun = perf_counter()
        self._before.record()
        for _ in range(fills):
            self._fill()
        self._start.record()
        call()
        first = perf_counter() - begun
        for _ in range(repeats - 1):
            call()
        self._end.record()
        launched = perf_counter() - begun
        self._end.synchronize()
        filling = self._elapsed(self._before, self._start) * 1e-3
        return _Stretch(self._elapsed(self._start, self._end) * 1e-3, fills, filling, first, launched)
