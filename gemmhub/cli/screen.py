"""Output of commands: facts, tables and JSON on stdout; plain text unless stdout is a terminal.

On a terminal rich wraps and colours (it honours NO_COLOR). Anywhere else lines are not wrapped and have no escapes, so
that scripts can read them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemmhub._base import printing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gemmhub.verdict import Decision

_UNWRAPPED = 100_000
"""Width of a console that is not a terminal: nothing wraps."""

STYLES = {
    "chosen": "bold green", "ready": "green", "right": "green", "ok": "green",
    "refused": "yellow", "absent": "dim", "not installed": "dim", "eligible": "",
    "failed": "bold red", "wrong": "bold red",
}  # fmt: skip


def console(*, stderr: bool = False) -> Console:
    """A console of the current stdout or stderr."""
    stream = sys.stderr if stderr else sys.stdout
    probe = Console(file=stream)
    width = None if probe.is_terminal else _UNWRAPPED
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def show(*parts: RenderableType | None) -> None:
    """Print ``parts``, with an empty line between them; None is left out."""
    screen = console()
    for number, part in enumerate(part for part in parts if part is not None):
        with screen.capture() as captured:
            screen.print(_safe(part) if isinstance(part, (str, Text)) else part)
        text = captured.get()
        if not screen.is_terminal:
            text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        click.echo(("\n" if number else "") + text, nl=False, color=screen.is_terminal)


def facts(rows: Iterable[tuple[str, str | Text] | None]) -> Table:
    """Labels and values, aligned; None rows are left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        if row is not None:
            grid.add_row(*map(_safe, row))
    return grid


def table(header: Sequence[str], rows: Iterable[Sequence[str | Text]], *, right: Sequence[str] = ()) -> Table:
    """A table without lines; the columns named in ``right`` are aligned to the right."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for position, name in enumerate(header):
        last = position == len(header) - 1
        grid.add_column(
            printing.line(name),
            justify="right" if name in right else "left",
            no_wrap=not last,
            overflow="fold" if last else "ellipsis",
        )
    for row in rows:
        grid.add_row(*map(_safe, row))
    return grid


def _safe(cell: str | Text) -> str | Text:
    """A cell without characters that a terminal interprets; coloured text with such characters loses its colour."""
    if isinstance(cell, str):
        return printing.lines(cell)
    safe = printing.lines(cell.plain)
    return cell if safe == cell.plain else safe


def styled(word: str) -> Text:
    """A verdict or state in its colour."""
    return Text(word, style=STYLES.get(word, ""))


def decision_parts(decision: Decision) -> tuple[Table, Table]:
    """A decision as a table of facts and a table of backends."""
    head: list[tuple[str, str | Text]] = [
        ("problem", str(decision.problem)),
        ("chosen", Text.assemble((decision.chosen or "none", "bold"), f" ({decision.why})")),
    ]
    head += [("setting", f"{key} from {where}") for key, where in decision.settings.items()]
    head += [("copy", str(copy)) for copy in decision.copies]
    rows = [(name, styled(verdict), time, remarks) for name, verdict, time, remarks in decision.rows()]
    return facts(head), table(("backend", "verdict", "time", "remarks"), rows)


def print_json(data: object) -> None:
    """Print one JSON document on stdout."""
    click.echo(as_json(data))


def as_json(data: object) -> str:
    return json.dumps(plain(data), indent=2, allow_nan=False)


def plain(value: object) -> Any:
    """``value`` in JSON's types. NaN and infinities, which JSON lacks, become the strings "nan", "inf", "-inf"."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, Path):
        return str(value)
    return value


def shape(sizes: Sequence[int]) -> str:
    """A shape as text: "512 x 256"; "scalar" for no dimensions."""
    return " x ".join(map(str, sizes)) or "scalar"
