"""Labelled facts and tables as text: plain, or with colours in terminals.

The last column takes what the terminal leaves. Elsewhere lines are as long as they have to be, so that scripts can read
them. ``NO_COLOR`` and ``FORCE_COLOR`` are honoured.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple

from gemmhub._base import printing

STYLES = {
    "chosen": ("1;32", "#2da44e"), "ready": ("32", "#2da44e"), "passed": ("32", "#2da44e"),
    "refused": ("33", "#bf8700"), "failed": ("1;31", "#e5534b"),
    "absent": ("2", ""), "not installed": ("2", ""),
}  # fmt: skip
"""Colours of verdicts and states: the ANSI code, and the HTML colour, which is legible on white and on black."""

_GAP, _DIM, _BOLD = "  ", "2", "1"
_BAR = 10
_NARROW, _STACKED = 20, 4
"""Minimum width of the last column. Where a terminal is narrower, it stands below the others, indented by that much."""
WIDTH = 100
"""Columns of text that has to be cut, where standard output is no terminal."""
_MAX_ROWS = 20
"""Rows of a table that is cut."""


class Bar(float):
    """A cell that is drawn as a bar: the part of the full length, from 0 to 1."""

    def __str__(self) -> str:
        return "#" * max(1, round(_BAR * self))


@dataclass(frozen=True)
class Facts:
    """Labels and values, a row each. Values of ``marked`` labels begin with a verdict, which has its colour."""

    rows: Iterable[tuple[str, object]]
    marked: Collection[str] = ()


@dataclass(frozen=True)
class Table:
    """A table. Columns in ``right`` are aligned to the right; cells of the columns ``marked`` are verdicts."""

    header: Sequence[str]
    rows: Iterable[Sequence[object]]
    right: Collection[str] = ()
    marked: Collection[str] = ()


Part = Facts | Table | str


def terminal(stream: IO[str] | None) -> tuple[bool, int | None]:
    """Return whether text for ``stream`` is coloured, and the columns of its terminal; None where it is none."""
    try:
        attached = stream is not None and stream.isatty()
    except (ValueError, AttributeError):  # a closed stream, or a stand-in
        attached = False
    coloured = attached and os.environ.get("TERM") != "dumb"
    colour = not os.environ.get("NO_COLOR") and (coloured or bool(os.environ.get("FORCE_COLOR")))
    if not attached:
        return colour, None
    from shutil import get_terminal_size  # not at the import of decisions

    return colour, get_terminal_size((WIDTH, 24)).columns


def bars(values: Sequence[float | None]) -> list[Bar | str]:
    """Bars of ``values``, the largest in full length; empty texts for None, and where there is nothing to compare."""
    known = [x for x in values if x is not None]
    if len(known) < 2:
        return [""] * len(values)
    longest = max(known) or 1.0
    return ["" if x is None else Bar(x / longest) for x in values]


def folded(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """``rows`` where those that are equal but for the name in their first cell are one, with the names in its last."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, *others in rows:
        groups.setdefault(tuple(others), []).append(name)
    return [
        (names[0], *others)
        if len(names) == 1
        else (f"{len(names)} backends", *others[:-1], ": ".join(filter(None, (", ".join(names), others[-1]))))
        for others, names in groups.items()
    ]


def verdict(value: str) -> str:
    """The verdict that ``value`` begins with; empty where there is none."""
    return next((word for word in STYLES if value == word or value.startswith(f"{word} ")), "")


def text(parts: Iterable[Part], *, width: int | None = None, colour: bool = False, cut: bool = False) -> str:
    """Return ``parts`` as text, with an empty line between them and none at the end.

    The last column has what ``width`` leaves: it is wrapped, or with ``cut`` ends in "..." after one line.
    """
    return "\n\n".join(filter(None, ("\n".join(_lines(part, width, colour, cut)) for part in parts)))


class _Cell(NamedTuple):
    text: str
    word: str = ""
    """The beginning of the text that has a colour."""
    code: str = ""

    def __str__(self) -> str:
        return self.text


def _lines(part: Part, width: int | None, colour: bool, cut: bool) -> Iterator[str]:
    if isinstance(part, str):
        yield printing.lines(part)
        return
    if isinstance(part, Facts):
        rows = [[_Cell(label, label, _DIM), _marked(value, label in part.marked)] for label, value in part.rows]
        yield from _grid(rows, [False, False], width, colour, cut)
        return
    rows = [[_marked(value, name in part.marked) for name, value in zip(part.header, row)] for row in part.rows]
    more = len(rows) - _MAX_ROWS if cut else 0
    header = [_Cell(name, name, _BOLD) for name in part.header]
    shown = rows[:_MAX_ROWS] if more > 0 else rows
    if width is not None and rows and not any(row[-1].text for row in rows):
        header[-1] = _Cell("")  # of an empty column, which takes no room of a narrow terminal
    yield from _grid([header, *shown], [name in part.right for name in part.header], width, colour, cut)
    if more > 0:
        yield f"... and {more} more; print() has all"


def _marked(value: object, marked: bool) -> _Cell:
    word = verdict(str(value)) if marked else ""
    return _Cell(str(value), word, STYLES[word][0] if word else "")


def _grid(
    rows: Sequence[Sequence[_Cell]], right: Sequence[bool], width: int | None, colour: bool, cut: bool
) -> Iterator[str]:
    """Yield the lines of aligned rows. Only cells of the last column may have several lines."""
    if not rows:
        return
    widths = [max(_columns(printing.line(row[i].text)) for row in rows) for i in range(len(right) - 1)]
    indent = sum(widths) + len(_GAP) * len(widths)
    stacked = width is not None and not cut and width - indent < _NARROW
    indent = _STACKED if stacked else indent
    room = None if width is None else max(_NARROW // 2, width - indent)
    last = [_fitted(printing.lines(row[-1].text), room, cut) for row in rows]
    if right[-1]:
        widest = max(_columns(line) for lines in last for line in lines)
        last = [[_padded(line, widest, True) for line in lines] for lines in last]
    for row, lines in zip(rows, last):
        lead = ""
        for cell, size, side in zip(row, widths, right):
            lead += _padded(printing.line(cell.text), size, side, cell if colour else None) + _GAP
        first = _painted(lines[0], row[-1] if colour else None)
        if not stacked:
            yield (lead + first).rstrip()
        else:
            yield lead.rstrip()
            yield from [" " * indent + first] if first.strip() else []
        yield from ((" " * indent + line).rstrip() for line in lines[1:])


def _fitted(value: str, room: int | None, cut: bool) -> list[str]:
    """The lines of a cell."""
    lines = value.expandtabs().split("\n")
    if room is None:
        return lines
    if not cut:
        return [part for line in lines for part in _wrapped(line, room)]
    if len(lines) == 1 and _columns(value) <= room:
        return lines
    first = lines[0]
    while _columns(first) > room - 3:
        first = first[:-1]
    return [f"{first.rstrip()}..."]


def _wrapped(line: str, room: int) -> Iterator[str]:
    if _columns(line) <= room:
        yield line
        return
    current = ""
    for word in line.split(" "):
        if current and _columns(f"{current} {word}") > room:
            yield current
            current = ""
        current = f"{current} {word}" if current else word
        while _columns(current) > room:  # a word that is longer than a line
            size = next(i for i in range(len(current), 0, -1) if i == 1 or _columns(current[:i]) <= room)
            yield current[:size]
            current = current[size:]
    yield current


def _padded(value: str, size: int, right: bool, cell: _Cell | None = None) -> str:
    space = " " * (size - _columns(value))
    return space + _painted(value, cell) if right else _painted(value, cell) + space


def _painted(value: str, cell: _Cell | None) -> str:
    """``value`` with the colour of its cell at its beginning."""
    if cell is None or not cell.word or not value.startswith(cell.word):
        return value
    return f"\x1b[{cell.code}m{cell.word}\x1b[0m{value[len(cell.word) :]}"


def _columns(value: str) -> int:
    """The columns of a terminal that ``value`` takes."""
    if value.isascii():
        return len(value)
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(x) in "WF" else not unicodedata.combining(x) for x in value)
