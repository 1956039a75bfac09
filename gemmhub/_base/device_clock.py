"""Timing on a device: events on the current stream, with the caches flushed and the launches queued."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, NamedTuple

_AHEAD = 4
"""Calls whose launches the first fills must cover: the host launches those fills and a first call meanwhile."""
_LONGER = 1.2
"""Least ratio of the device's time to the host's at which the device cannot have waited for the host."""


class _Stretch(NamedTuple):
    """Times of one stretch of calls after fills, in seconds."""

    seconds: float
    """Device time of the calls."""
    fills: int
    filling: float
    """Device time of the fills."""
    first: float
    """Host time until the first call was launched."""
    launched: float
    """Host time until all calls were launched."""

    @property
    def fill(self) -> float:
        """Device time of one fill; at least a microsecond, because it serves as a divisor."""
        return max(1e-6, self.filling / self.fills)

    @property
    def without_waiting(self) -> bool:
        """Whether the device never waited for the host."""
        if self.filling >= self.launched:
            return True
        return self.filling >= self.first and self.seconds > _LONGER * (self.launched - self.first)


class DeviceClock:
    """Times calls by the device's own events, as a :class:`gemmhub._base.timing.Clock`.

    Before a stretch of calls the device runs memory fills larger than its L2 cache: enough to keep it busy until the
    host has launched the first call, or all calls where a launch takes longer than a call. The cache then holds none
    of the operands at the start, and no call waits for the host: the events measure device time alone. There are no
    more fills than needed, because a card cools during fills and would then run the calls at a clock that it cannot
    sustain. Where a stretch had too few fills, because the host was busy or the card left an idle state, it is
    measured again with more.
    """

    _most = 64
    """Calls in a stretch: as many as a stream queues without blocking the host."""
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
        """Seconds a call, measured over ``repeats`` calls in a row (at most 64)."""
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
        """The number of fills that keep the device busy for 1.5 times ``seconds``."""
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
