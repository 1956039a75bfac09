"""Output of commands: facts, tables and JSON on stdout; plain text unless stdout is a terminal.

On a terminal lines are wrapped and coloured (:mod:`gemmhub._base.tables`). Anywhere else lines are not wrapped and have
no escapes, so that scripts can read them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import click

from gemmhub._base import tables
from gemmhub._base.report import Report
from gemmhub._base.tables import Part


def show(*parts: Part | Report | None) -> None:
    """Print ``parts``, with an empty line between them; None is left out."""
    colour, width = tables.terminal(sys.stdout)
    shown: list[Part] = []
    for part in parts:
        if part is not None:
            shown += part._parts() if isinstance(part, Report) else (part,)
    click.echo(tables.text(shown, width=width, colour=colour), color=colour)


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
