"""The clock of benchmarks on one thread: CPU time, in which other processes do not count."""

from __future__ import annotations

import time
from collections.abc import Callable

from gemmhub._base.timing import HostClock


class CpuClock(HostClock):
    """The CPU time of the calling thread, or what ``read`` returns in seconds."""

    def __init__(self, read: Callable[[], float] = time.thread_time) -> None:
        self._read = read

    def measure(self, call: Callable[[], object], repeats: int) -> float:
        start = self._read()
        for _ in range(repeats):
            call()
        return (self._read() - start) / repeats
