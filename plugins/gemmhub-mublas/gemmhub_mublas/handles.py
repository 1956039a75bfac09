"""Library handles: one for each device and thread, made when first needed.

A handle holds device memory and settings (stream, pointer mode, math mode), so threads must not share one, and it is
not made before it is used. One whose thread has ended is given to the next thread that needs one. None is ever
destroyed: at exit the runtime may be gone before the library.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class _OfThread:
    """The handles of one thread; they go back to the pool when the thread ends."""

    def __init__(self, pool: dict[int, list[int]]) -> None:
        self.handles: dict[int, int] = {}
        self._pool = pool

    def __del__(self) -> None:
        for index, handle in self.handles.items():
            self._pool.setdefault(index, []).append(handle)


class Handles:
    """``create`` makes a handle on the current device."""

    def __init__(self, create: Callable[[], int]) -> None:
        self._create = create
        self._local = threading.local()
        self._pool: dict[int, list[int]] = {}

    def get(self, index: int) -> int:
        """This thread's handle for device ``index``, which must be the current one."""
        mine = getattr(self._local, "mine", None)
        if mine is None:
            mine = self._local.mine = _OfThread(self._pool)
        handle: int | None = mine.handles.get(index)
        if handle is None:
            try:
                handle = self._pool[index].pop()
            except (KeyError, IndexError):
                handle = self._create()
            mine.handles[index] = handle
        return handle
