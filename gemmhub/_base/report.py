"""Results that print: ``str()`` is what the command line prints, and ``repr()``, at the prompt, fits one screen."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from gemmhub._base import tables
from gemmhub._base.tables import Part


class Report:
    """A result that prints as its parts."""

    _cut = True
    """Whether ``repr()`` cuts the last column to one line and the rows to one screen, or wraps that column."""

    def _parts(self) -> Iterable[Part]:
        """Yield the facts and tables of this result, in reading order."""
        raise NotImplementedError

    def __str__(self) -> str:
        return tables.text(self._parts())

    def __repr__(self) -> str:
        colour, width = tables.terminal(sys.stdout)
        return tables.text(self._parts(), width=width or tables.WIDTH, colour=colour, cut=self._cut)

    def _repr_html_(self) -> str:
        """The HTML that notebooks display."""
        from gemmhub._base import markup

        return markup.parts(self._parts())
