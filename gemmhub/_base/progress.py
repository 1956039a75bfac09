"""Progress of long tasks: a bar on stderr where that is a terminal, else nothing.

Steps are reported to the function that watches in this context, if any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gemmhub._base import printing, tables

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


@contextmanager
def bar(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A bar of ``total`` steps: a function that names the current step, and one that counts a step.

    What :func:`report` states is shown after that name.
    """
    if tables.terminal(sys.stderr)[1] is None:
        yield (lambda title: None), (lambda: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # Drawn between steps only: a drawing thread would disturb the measurement.
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as shown:
        task = shown.add_task("", total=total)
        current = ""

        def begin(title: str) -> None:
            nonlocal current
            current = printing.line(title)
            shown.update(task, description=current, refresh=True)

        def detail(step: str) -> None:
            shown.update(task, description=f"{current}: {printing.line(step)}", refresh=True)

        with watched(detail):
            yield begin, (lambda: shown.update(task, advance=1, refresh=True))
