"""Locks that are safe in forked children and in nested calls.

A forked child has only the thread that forked: a lock that another thread held would never be released. The locks of
this module are free in the child, and a fork waits briefly while other threads are :data:`deciding`.

They are re-entrant, because a signal handler, a finaliser, or a plugin that is being imported may call matmul while
its own thread holds one. So the state that a lock guards is changed in one assignment: a nested call, or a child, finds
the state before it or after it.
"""

from __future__ import annotations

import logging  # noqa: F401  (its own hook holds its lock during a fork: imported first, it is called after ours)
import os
import threading
import time
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()
_PATIENCE = 5.0
"""Maximum seconds that a fork waits for other threads to decide."""


def lock() -> threading.RLock:
    """Return a re-entrant lock that is free in a forked child, unless the thread that forked holds it."""
    new_lock = threading.RLock()
    _locks.add(new_lock)
    return new_lock


class Busy(threading.local):
    """Whether this thread is inside a ``with busy: ...`` block.

    A forked child is inside only where the thread that forked was.
    """

    now = False

    def __enter__(self) -> None:
        self.now = True

    def __exit__(self, *_: object) -> None:
        self.now = False


def _renew() -> None:
    for held in list(_locks):
        if held.acquire(blocking=False):  # free, or held by this thread, which survives and releases it
            held.release()
        else:
            held._at_fork_reinit()


class Section:
    """Code that forks of other threads wait for: ``with section: ...``. Any number of threads may be inside.

    In a child, an import that another thread had begun never ends, and threads that need the module wait forever.
    """

    def __init__(self) -> None:
        self._inside: dict[int, int] = {}
        """Number of entries of each thread."""
        self._forking: int | None = None

    def __enter__(self) -> None:
        me = threading.get_ident()
        while me not in self._inside and self._forking not in (None, me):
            time.sleep(1e-3)
        self._inside[me] = self._inside.get(me, 0) + 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        if self._inside[me] > 1:
            self._inside[me] -= 1
        else:
            del self._inside[me]

    def before_fork(self) -> None:
        """Wait until no other thread is inside, for a limited time: one may be waiting for this thread.

        A module that such a thread imports may register hooks of its own, to hold a lock during forks. Of those that
        are registered once a fork has begun, Python calls only the second half, which releases the lock: the first half
        is called here.
        """
        me = self._forking = threading.get_ident()
        end = time.monotonic() + _PATIENCE
        register, late = os.register_at_fork, []

        def watched(**hooks: Any) -> None:
            register(**hooks)
            late.append(hooks.get("before"))

        os.register_at_fork = watched
        try:
            while any(thread != me for thread in list(self._inside)) and time.monotonic() < end:
                time.sleep(1e-3)
        finally:
            os.register_at_fork = register
        for hook in filter(None, reversed(late)):
            hook()

    def after_fork(self) -> None:
        """Admit other threads again."""
        self._forking = None

    def after_fork_in_child(self) -> None:
        """Remove the threads that a child does not have."""
        me = threading.get_ident()
        self._inside = {thread: count for thread, count in self._inside.items() if thread == me}
        self._forking = None


deciding = Section()
"""The work of the first call of a signature before its product: imports, discovery, probing, preparing."""


def survive_forks() -> None:
    """Register the handlers that keep these locks safe across forks. To be called once."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=deciding.before_fork, after_in_parent=deciding.after_fork)
        os.register_at_fork(after_in_child=deciding.after_fork_in_child)
        os.register_at_fork(after_in_child=_renew)
