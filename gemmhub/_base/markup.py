"""HTML tables, for results in notebooks and for ``gemmhub bench --html``.

Every text is escaped, and without characters that reorder a line (:mod:`gemmhub._base.printing`). Styles are
attributes of the elements, because notebooks remove style sheets; they suit light and dark themes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from gemmhub._base import printing

_COLOURS = {
    "chosen": "#2da44e", "ready": "#2da44e", "right": "#2da44e", "ok": "#2da44e",
    "refused": "#bf8700", "cannot": "#bf8700", "failed": "#e5534b", "wrong": "#e5534b",
}  # fmt: skip
"""Colours of the verdicts in marked columns of :func:`table`: legible on white and on black."""
_CELL = "padding:2px 10px;vertical-align:top;text-align:"


def text(value: object) -> str:
    """``value`` as an element's content, with line breaks preserved."""
    return escape(printing.lines(str(value))).replace("\n", "<br>")


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    marked: Sequence[str] = (),
    empty: str = "none",
) -> str:
    """A table. Columns in ``right`` are aligned to the right; verdicts in the columns ``marked`` have a colour.

    Only the last column wraps lines. A table without rows has one cell with the text ``empty``.
    """
    sides = ["right" if name in right else "left" for name in header]
    sides[:-1] = [f"{side};white-space:nowrap" for side in sides[:-1]]
    head = "".join(f'<th style="{_CELL}{side}">{text(name)}</th>' for name, side in zip(header, sides))
    lines = []
    for row in rows:
        cells = ""
        for name, side, value in zip(header, sides, row):
            colour = _COLOURS.get(str(value)) if name in marked else None
            style = f"{_CELL}{side}" + (f";color:{colour};font-weight:bold" if colour else "")
            cells += f'<td style="{style}">{text(value)}</td>'
        lines.append(f"<tr>{cells}</tr>")
    if not lines:
        lines = [f'<tr><td colspan="{max(1, len(header))}" style="{_CELL}left"><i>{text(empty)}</i></td></tr>']
    return (
        f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    )


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """A table of labels and values, a row each; an empty string where there are none."""
    lines = [
        f'<tr><th scope="row" style="{_CELL}left">{text(label)}</th><td style="{_CELL}left">{text(value)}</td></tr>'
        for label, value in rows
    ]
    return f'<table style="border-collapse:collapse"><tbody>{"".join(lines)}</tbody></table>' if lines else ""
