"""The pluggy hook that a plugin implements; it is called once a process.

A distribution names its plugin module in the entry-point group ``gemmhub``::

    [project.entry-points.gemmhub]
    mine = "gemmhub_mine.plugin"

and that module defines::

    from gemmhub import hookimpl

    @hookimpl
    def gemmhub_backends():
        return [BackendDescription(...)]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from gemmhub.backend import BackendDescription

GROUP = "gemmhub"
"""The entry-point group, and the name of the pluggy project."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def gemmhub_backends() -> Iterable[BackendDescription]:  # type: ignore[empty-body]
    """Describe the backends of this plugin. Import nothing heavy: ``load`` does that later."""
