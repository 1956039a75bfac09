"""Relative timing of calls: interleaved rounds, medians, ratios of one run.

Machines drift (clocks, other processes, temperature), so absolute times of different moments are not comparable.
Every routine here times all candidates in each round, in turn, and reports medians over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Timing:
    """Seconds a call: median, extremes and samples over several rounds."""

    median: float
    minimum: float
    maximum: float
    samples: tuple[float, ...]


class Clock(Protocol):
    """The interface of a clock that times a stretch of calls."""

    cache_bytes: float
    """The size of the cache: operands rotate through more than this, so that none is in the cache."""

    def measure(self, call: Callable[[], object], repeats: int) -> float:
        """Seconds a call, measured over ``repeats`` calls in a row."""


class HostClock:
    """The host's clock, for calls that return when their work is done."""

    cache_bytes = 64.0 * 2**20

    def measure(self, call: Callable[[], object], repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats


CLOCK = HostClock()


def interleave(
    calls: Sequence[Callable[[], object]],
    *,
    clock: Clock = CLOCK,
    rounds: int = 7,
    min_time: float = 2e-3,
    warmup: int = 1,
    iterations: int | None = None,
    progress: Callable[[], None] | None = None,
) -> list[Timing]:
    """Time each of ``calls`` in every one of ``rounds`` rounds.

    Each call first runs ``warmup`` times, untimed. Within a round it is then repeated ``iterations`` times, or, by
    default, until ``min_time`` seconds have passed, so that the clock's resolution and the loop are negligible. The
    order rotates from round to round, so that no call always follows the same other call. ``progress`` is called
    after each round.
    """
    repeats = []
    for call in calls:
        for _ in range(warmup):
            call()
        repeats.append(iterations or _calibrate(call, clock, min_time))
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds):
        for offset in range(len(calls)):
            index = (turn + offset) % len(calls)
            samples[index].append(clock.measure(calls[index], repeats[index]))
        if progress is not None:
            progress()
    return [Timing(statistics.median(s), min(s), max(s), tuple(s)) for s in samples]


def _calibrate(call: Callable[[], object], clock: Clock, min_time: float) -> int:
    once = clock.measure(call, 1)
    return max(1, min(100_000, int(min_time / max(once, 1e-9))))


def host_times(
    calls: Sequence[Callable[[], object]],
    *,
    synchronize: Callable[[], None] = lambda: None,
    batch: int = 50,
    batches: int = 20,
    longest: float = 20e-3,
) -> list[float]:
    """Seconds until each of ``calls`` returns: the minimum of the means over ``batches``, taken in turn.

    ``synchronize`` waits for the device between batches and never within one: a device's queue holds 50 calls. A batch
    has fewer calls where they would occupy the device for more than ``longest`` seconds.
    """
    counts = []
    for call in calls:
        call()
        synchronize()
        start = time.perf_counter()
        call()
        synchronize()
        counts.append(max(1, min(batch, int(longest / max(time.perf_counter() - start, 1e-9)))))
    best = [float("inf")] * len(calls)
    for _ in range(batches):
        for index, (call, count) in enumerate(zip(calls, counts)):
            repeats = range(count)
            start = time.perf_counter()
            for _ in repeats:
                call()
            best[index] = min(best[index], (time.perf_counter() - start) / count)
            synchronize()
    return best


def rotation(nbytes: float, cache: float = CLOCK.cache_bytes, limit: int = 32) -> int:
    """The number of sets of operands of ``nbytes`` to rotate through so that none is in the cache."""
    return max(1, min(limit, int(-(-cache // max(nbytes, 1)))))
