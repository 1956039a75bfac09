"""One pool of threads for conversions and epilogues by NumPy; it sleeps between calls.

Pools that spin while they wait (OpenMP's by default) take the cores from the BLAS that runs next, and make it three to
fifteen times slower. Threads of a ThreadPoolExecutor wait on a lock instead. NumPy's copies release the GIL, so Python
threads are enough.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from gemmhub.kit import floats, locks
from gemmhub.numpy_backend.probe import cores

_lock = locks.lock()
_pool: ThreadPoolExecutor | None = None
_owner = 0
_inside = threading.local()


def _get() -> ThreadPoolExecutor:
    global _pool, _owner
    with _lock:
        if _pool is None or _owner != os.getpid():  # threads do not survive a fork
            # As many as any call may take: the calling thread's affinity is that of this moment.
            _pool = ThreadPoolExecutor(os.cpu_count() or 1, "gemmhub-cpu", _begin)
            _owner = os.getpid()
        return _pool


def _begin() -> None:
    """In a new thread of the pool, which has the floating-point mode of the thread that started it."""
    _inside.busy = True  # what calls from within a piece start runs alone
    floats.set_default()


def _after_fork() -> None:
    """In a child the threads of the pool are gone."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def each(work: Callable[[int, int], None], size: int, grain: int) -> None:
    """``work(start, stop)`` over ``range(size)`` in contiguous pieces of at least ``grain``, in parallel.

    There are several pieces a core, and each free thread takes the next: a core that is shared (with a BLAS
    thread that spins, say) then does less of the work, instead of keeping the others waiting. The calling
    thread takes part. Exceptions are raised here, when no other thread is at a piece any more. Calls from within a
    piece run alone, and so does a call that interrupts this one on its thread (in a signal handler, a ``__del__``):
    this thread may hold the locks of the pool.
    """
    pieces = split(size, grain)
    if len(pieces) <= 1 or getattr(_inside, "busy", False):
        for start, stop in pieces:
            work(start, stop)
        return
    left = deque(pieces)
    active: list[bool] = []
    try:
        _inside.busy = True
        helpers = _submitted(min(cores(), len(pieces)) - 1, work, left, active)
        _take(work, left)
        for helper in helpers:
            if not helper.cancel():  # one that has not started has nothing left to do
                helper.result()
    except BaseException:
        left.clear()
        _await_none(active)
        raise
    finally:
        _inside.busy = False


def _submitted(
    count: int, work: Callable[[int, int], None], left: deque[tuple[int, int]], active: list[bool]
) -> list[Future[None]]:
    """At most ``count`` helpers: fewer where no thread can be started (at exit, or under a limit of the system)."""
    helpers: list[Future[None]] = []
    where = affinity()
    try:
        pool = _get()
        for _ in range(count):
            helpers.append(pool.submit(_help, work, left, active, where))
    except RuntimeError:
        pass
    return helpers


def affinity() -> frozenset[int]:
    """The processors that the calling thread may run on; empty where the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def _help(
    work: Callable[[int, int], None], left: deque[tuple[int, int]], active: list[bool], where: frozenset[int]
) -> None:
    """Take part in a call from a thread that may run on the processors ``where``."""
    active.append(True)  # before the first piece is taken: who clears ``left`` then sees every thread at a piece
    try:
        if where != getattr(_inside, "where", None):
            with suppress(OSError):  # processors that were taken from the process meanwhile
                if where:
                    os.sched_setaffinity(0, where)
            _inside.where = where
        _take(work, left)
    finally:
        active.pop()


def _take(work: Callable[[int, int], None], left: deque[tuple[int, int]]) -> None:
    while True:
        try:
            piece = left.popleft()  # atomic
        except IndexError:
            return
        work(*piece)


def _await_none(active: list[bool]) -> None:
    """Return when ``active`` is empty, even if a second interrupt arrives: the operands belong to the caller then."""
    try:
        while active:
            time.sleep(0.001)
    except BaseException:
        _await_none(active)
        raise


def split(size: int, grain: int) -> Sequence[tuple[int, int]]:
    """At most eight pieces a core, each of at least ``grain`` (but for the only one), in multiples of 16."""
    count = max(1, min(8 * cores(), size // max(1, grain)))
    if cores() == 1:
        count = 1
    step = -(-size // count)
    step = -(-step // 16) * 16 if count > 1 else step
    return [(start, min(start + step, size)) for start in range(0, size, step)] if size else []
