"""HTML of printed results (:mod:`gemmhub._base.tables`), for notebooks and for ``gemmhub bench --html``.

Every text is escaped, and without characters that reorder a line (:mod:`gemmhub._base.printing`). Styles are
attributes of the elements, because notebooks remove style sheets; they suit light and dark themes.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from gemmhub._base import printing
from gemmhub._base.tables import STYLES, Bar, Facts, Part, Table, verdict

_CELL = "padding:2px 10px;vertical-align:top;text-align:"
_TABLE = '<table style="border-collapse:collapse">'


def text(value: object) -> str:
    """``value`` as an element's content, with line breaks preserved."""
    return escape(printing.lines(str(value))).replace("\n", "<br>")


def parts(shown: Iterable[Part]) -> str:
    """The parts of a result."""
    return "".join(
        facts(x) if isinstance(x, Facts) else table(x) if isinstance(x, Table) else f"<pre>{text(x)}</pre>"
        for x in shown
    )


def table(part: Table, *, empty: str = "none") -> str:
    """A table. Only the last column wraps lines. One without rows has a single cell with the text ``empty``."""
    sides = ["right" if name in part.right else "left" for name in part.header]
    sides[:-1] = [f"{side};white-space:nowrap" for side in sides[:-1]]
    head = "".join(f'<th style="{_CELL}{side}">{text(name)}</th>' for name, side in zip(part.header, sides))
    lines = []
    for row in part.rows:
        cells = "".join(
            f'<td style="{_CELL}{side}">{_content(value, name in part.marked)}</td>'
            for name, side, value in zip(part.header, sides, row)
        )
        lines.append(f"<tr>{cells}</tr>")
    if not lines:
        lines = [f'<tr><td colspan="{max(1, len(part.header))}" style="{_CELL}left"><i>{text(empty)}</i></td></tr>']
    return f"{_TABLE}<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def facts(part: Facts) -> str:
    """A table of labels and values, a row each; an empty string where there are none."""
    lines = [
        f'<tr><th scope="row" style="{_CELL}left">{text(label)}</th>'
        f'<td style="{_CELL}left">{_content(value, label in part.marked)}</td></tr>'
        for label, value in part.rows
    ]
    return f"{_TABLE}<tbody>{''.join(lines)}</tbody></table>" if lines else ""


def _content(value: object, marked: bool) -> str:
    if isinstance(value, Bar):
        return f'<div style="background:#57a;height:0.8em;margin-top:0.3em;width:{max(2, round(100 * value))}px"></div>'
    word = verdict(str(value)) if marked else ""
    colour = STYLES[word][1] if word else ""
    if not colour:
        return text(value)
    return f'<span style="color:{colour};font-weight:bold">{text(word)}</span>{text(str(value)[len(word) :])}'
