"""Progress of long tasks: steps are reported to the function that watches in this context, if any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_watcher: ContextVar[Callable[[str], None] | None] = ContextVar("gemmhub_progress", default=None)


def report(step: str) -> None:
    """State the step that begins ("hopper 128x256x64")."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(step)


@contextmanager
def watched(watcher: Callable[[str], None]) -> Iterator[None]:
    """Call ``watcher`` with each step that begins within."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)
