"""Shared functions of the plots of ``gemmhub bench``: names, colours, and labels that fit.

Titles are wrapped to the available width. Labels at points are placed where they cover nothing and are inside their
axes, and are omitted where no position is free.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import click

from gemmhub._base import files, markup, printing
from gemmhub.cli.contenders import label
from gemmhub.cli.errors import Failure, unwritable
from gemmhub.cli.measurements import Case
from gemmhub.kit import install

_MARKERS = "osD^vP*X"
_CLOCKS = {"host": "the host", "device events": "device events"}
_EM = 0.62
"""Upper limit of the mean width of a character, over the size of its font, in long texts of the default font."""
_POSITIONS = (("left", "top"), ("left", "bottom"), ("right", "bottom"), ("right", "top"))
"""Alignments of a label: the side of the label that is at its point."""


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def require(option: str, path: str) -> None:
    """Raise Failure where the plot could not be drawn, before anything is measured."""
    if not available():
        raise Failure(f"{option} needs matplotlib: {install.command('gemmhub[plot]')}")
    import matplotlib
    from matplotlib.backend_bases import FigureCanvasBase

    formats = sorted(FigureCanvasBase.get_supported_filetypes())
    if Path(path).suffix.lstrip(".").lower() not in formats:
        raise Failure(f"{option} {path}: matplotlib {matplotlib.__version__} writes {', '.join(formats)}")


def contenders(cases: Sequence[Case]) -> list[str]:
    """The names of all timed contenders, the baseline last."""
    names = list(dict.fromkeys(row.name for case in cases for row in case.timed))
    return sorted(names, key=lambda name: name == cases[0].baseline)


def named(name: str) -> str:
    """A contender's name in plots."""
    return safe(label(name))


def safe(text: str) -> str:
    """``text`` without control characters, and with dollar signs escaped."""
    return printing.lines(text).replace("$", r"\$")


def style(number: int, name: str, baseline: str) -> dict[str, Any]:
    """Colour, marker and label of one contender, the same in every plot."""
    color = "0.45" if name == baseline else f"C{number}"
    return {"color": color, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 5, "label": named(name)}


def sizes(case: Case) -> str:
    """The sizes as text: "512" for a cube, else "512x256x1024"."""
    return f"{case.m}" if case.m == case.n == case.k else f"{case.m}x{case.n}x{case.k}"


def title(case: Case) -> str:
    """The dtypes of a case, and the storage orders where not all are row-major."""
    orders = "" if case.orders == "rrr" else f", {case.orders}"
    dtypes = case.dtype if case.out_dtype == case.dtype else f"{case.dtype}, {case.out_dtype} result"
    return dtypes + orders


def about(cases: Sequence[Case], machine: str) -> str:
    """The title of a plot: the source of its numbers."""
    rounds = max((len(row.samples) for case in cases for row in case.timed), default=0)
    clock = _CLOCKS[cases[0].clock]
    return f"{machine}\nmedian of {rounds} interleaved rounds, {cases[0].library} arrays, timed by {clock}"


def wrapped(text: str, inches: float, size: float) -> str:
    """``text`` wrapped to ``inches`` in a font of ``size`` points; its own line breaks are kept."""
    width = max(8, int(72 * inches / (_EM * size)))
    return "\n".join(line for part in safe(text).splitlines() for line in textwrap.wrap(part, width))


def head(figure: Any, text: str) -> None:
    """Write the title of a whole figure."""
    figure.suptitle(wrapped(text, figure.get_figwidth() - 0.2, 9), fontsize=9)


def legend(figure: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Write the names of the contenders below the axes, in as many columns as fit."""
    column = 0.6 + max(map(len, labels), default=0) * _EM * 10 / 72
    columns = max(1, min(4, len(labels), int(figure.get_figwidth() / column)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def extents(figure: Any, axis: Any) -> list[Any]:
    """The boxes, in pixels, of the texts of ``axis`` and of the points of its lines."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    taken = [text.get_window_extent() for text in axis.texts if text.get_text()]
    half = 3.5 * figure.dpi / 72
    for line in axis.lines:
        if line.get_marker() not in ("", "None", None):
            spots = axis.transData.transform(line.get_xydata())
            taken += [Bbox([(x - half, y - half), (x + half, y + half)]) for x, y in spots]
    return taken


def place(figure: Any, axis: Any, points: Iterable[tuple[float, float, str, str]], size: float) -> int:
    """Write labels, each (x, y, text, colour), beside their points; earlier ones choose their positions first.

    Returns the number of placed labels.
    """
    taken = extents(figure, axis)
    edge = axis.get_window_extent()
    count = 0
    for x, y, text, color in points:
        for side, end in _POSITIONS:
            offset = (5 if side == "left" else -5, -4 if end == "top" else 4)
            written = axis.annotate(
                text, (x, y), xytext=offset, textcoords="offset points", ha=side, va=end, fontsize=size, color=color
            )
            written.set_in_layout(False)
            if fits(written, edge, taken):
                count += 1
                break
            written.remove()
    return count


def fits(written: Any, edge: Any, taken: list[Any]) -> bool:
    """Whether a text is inside ``edge`` and covers none of ``taken``; if so, it is added to them."""
    box = written.get_window_extent()
    inside = edge.x0 <= box.x0 and box.x1 <= edge.x1 and edge.y0 <= box.y0 and box.y1 <= edge.y1
    if not inside or any(box.overlaps(other) for other in taken):
        return False
    taken.append(box)
    return True


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the suffix. Raises Failure."""
    try:
        with files.replacing(path) as stream:
            figure.savefig(stream, dpi=150, format=path.suffix.lstrip("."))
    except OSError as error:
        raise unwritable(click.format_filename(path), error) from None


def svg(figure: Any, name: str, text: str) -> str:
    """A figure as an SVG element for an HTML page: its ids begin with ``name``, ``text`` is for screen readers."""
    stream = StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    drawn = stream.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", drawn)
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{markup.text(text)}" ', 1)
