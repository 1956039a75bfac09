"""One pool of threads for conversions and kernels; it sleeps between calls.

Pools that spin while they wait (OpenMP's by default, numkong's own) take the cores from the BLAS that runs
next, and make it three to fifteen times slower. Threads of a ThreadPoolExecutor wait on a lock instead.
NumPy's copies and numkong's products release the GIL, so Python threads are enough.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gemmhub.numpy_backend.probe import cores

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_owner = 0
_inside = threading.local()


def _get() -> ThreadPoolExecutor:
    global _pool, _owner
    with _lock:
        if _pool is None or _owner != os.getpid():  # threads do not survive a fork
            _pool = ThreadPoolExecutor(max(1, cores()), thread_name_prefix="gemmhub-cpu")
            _owner = os.getpid()
        return _pool


def _after_fork() -> None:
    """In a child: a lock held by a thread of the parent would never be released."""
    global _lock, _pool
    _lock = threading.Lock()
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def each(work: Callable[[int, int], None], size: int, grain: int) -> None:
    """``work(start, stop)`` over ``range(size)`` in contiguous pieces of at least ``grain``, in parallel.

    There are several pieces a core, and whoever is free takes the next: a core that is shared (with a BLAS
    thread that spins, say) then does less of the work, instead of keeping the others waiting. The calling
    thread takes part. Exceptions are raised here. Calls from within a piece run alone.
    """
    pieces = split(size, grain)
    if len(pieces) <= 1 or getattr(_inside, "busy", False):
        for start, stop in pieces:
            work(start, stop)
        return
    left = deque(pieces)
    helpers = min(cores(), len(pieces)) - 1
    futures = [_get().submit(_take, work, left) for _ in range(helpers)]
    try:
        _take(work, left)
    finally:
        left.clear()  # after an exception nobody need go on
        errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error


def _take(work: Callable[[int, int], None], left: deque[tuple[int, int]]) -> None:
    _inside.busy = True
    try:
        while True:
            try:
                piece = left.popleft()  # atomic
            except IndexError:
                return
            work(*piece)
    finally:
        _inside.busy = False


def split(size: int, grain: int) -> Sequence[tuple[int, int]]:
    """At most eight pieces a core, each of at least ``grain`` (but for the only one), in multiples of 16."""
    count = max(1, min(8 * cores(), size // max(1, grain)))
    if cores() == 1:
        count = 1
    step = -(-size // count)
    step = -(-step // 16) * 16 if count > 1 else step
    return [(start, min(start + step, size)) for start in range(0, size, step)] if size else []
