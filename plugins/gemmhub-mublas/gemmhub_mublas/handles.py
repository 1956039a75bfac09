"""Leases library handles to one call at a time.

A handle holds device memory and settings (stream, pointer mode, math mode). So no two calls, nested ones included, may
use one at the same time, and the calls that one serves must run in one order: it stays with its stream. None is ever
destroyed: at exit the runtime may be gone before the library.
"""

from __future__ import annotations

from collections.abc import Callable

from gemmhub_musa.workspace import Key, key_of


class Handles:
    """The handles of one library. ``create`` makes a handle on the current device."""

    def __init__(self, create: Callable[[], int]) -> None:
        self._create = create
        # Single operations on these lists are atomic, so that they need no lock.
        self._spare: dict[int, list[int]] = {}
        self._free: dict[tuple[int, Key], list[int]] = {}

    def reserve(self, index: int) -> None:
        """Keep a spare handle for the next call on device ``index``, which must be the current device."""
        spare = self._spare.setdefault(index, [])
        if not spare:
            spare.append(self._create())

    def take(self, index: int, stream: int) -> int:
        """Return a handle for one call on a stream of device ``index``, the current one; :meth:`give` returns it.

        A new one is created only where none is free.
        """
        free = self._free.get((index, key_of(stream)), [])
        return self._popped(free) or self._popped(self._spare.get(index, [])) or self._create()

    def give(self, index: int, stream: int, handle: int) -> None:
        """End the lease of a handle."""
        self._free.setdefault((index, key_of(stream)), []).append(handle)

    @staticmethod
    def _popped(handles: list[int]) -> int | None:
        try:
            return handles.pop()
        except IndexError:
            return None
