"""``gemmhub bench --plot``: throughput above, ratios to the baseline below, a column for each dtype.

:func:`require`, :func:`style` and :func:`save` serve the other plots too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gemmhub._base import files
from gemmhub._base.units import multiple, rate_unit
from gemmhub._measure.bench import Case
from gemmhub.cli.errors import Failure, unwritable
from gemmhub.kit import install

_LOG_BEYOND = 30
"""Throughputs that spread by more than this factor are drawn on a logarithmic axis."""
_MARKERS = "osD^vP*X"
_CLOCKS = {"host": "the host", "device events": "device events"}


def require(option: str, path: str) -> None:
    """Raise Failure where the plot could not be drawn, before anything is measured."""
    try:
        import matplotlib
    except ImportError:
        raise Failure(f"{option} needs matplotlib: {install.command('gemmhub[plot]')}") from None
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = sorted(FigureCanvasBase.get_supported_filetypes())
    if Path(path).suffix.lstrip(".").lower() not in kinds:
        raise Failure(f"{option} {path}: matplotlib {matplotlib.__version__} writes {', '.join(kinds)}")


def contenders(cases: Sequence[Case]) -> list[str]:
    """The names of all that were timed, the baseline last."""
    names = list(dict.fromkeys(row.name for case in cases for row in case.timed))
    return sorted(names, key=lambda name: name == cases[0].baseline)


def style(number: int, name: str, baseline: str) -> dict[str, Any]:
    """Colour, marker and label of one contender, the same in every plot."""
    color = "0.45" if name == baseline else f"C{number}"
    return {"color": color, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 5, "label": name}


def title(case: Case) -> str:
    """The dtypes of a case, and the orders where not all are by rows."""
    orders = "" if case.orders == "rrr" else f", {case.orders}"
    dtypes = case.dtype if case.out_dtype == case.dtype else f"{case.dtype}, {case.out_dtype} result"
    return dtypes + orders


def about(cases: Sequence[Case], machine: str) -> str:
    """What stands above a plot: where its numbers come from."""
    rounds = max((len(row.samples) for case in cases for row in case.timed), default=0)
    clock = _CLOCKS[cases[0].clock]
    return f"{machine}\nmedian of {rounds} interleaved rounds, {cases[0].library} arrays, timed by {clock}"


def save(figure: Any, path: Path) -> None:
    """Write a figure; the suffix says the format. Raises Failure."""
    try:
        with files.replacing(path) as stream:
            figure.savefig(stream, dpi=150, format=path.suffix.lstrip("."))
    except OSError as error:
        raise unwritable(click.format_filename(path), error) from None


def draw(cases: Sequence[Case], machine: str, path: Path) -> None:
    """Write the plot of ``cases`` to ``path``. Raises Failure."""
    from matplotlib.figure import Figure

    dtypes = list(dict.fromkeys(case.dtype for case in cases))
    names, baseline = contenders(cases), cases[0].baseline
    unit, scale = rate_unit(row.gflops for case in cases for row in case.timed)
    figure = Figure(figsize=(max(5.5, 4.2 * len(dtypes) + 1), 6.5), layout="constrained")
    axes = figure.subplots(2, len(dtypes), squeeze=False, sharex="col", height_ratios=(3, 2))
    for column, dtype in enumerate(dtypes):
        mine = [case for case in cases if case.dtype == dtype]
        _column(axes[0][column], axes[1][column], mine, names, baseline, scale)
        axes[0][column].set_title(title(mine[0]), fontsize=11)
    axes[0][0].set_ylabel(f"throughput [{unit}]")
    axes[1][0].set_ylabel(f"speed relative to\n{baseline}")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False)
    figure.suptitle(f"{about(cases, machine)}; bars from the slowest to the fastest", fontsize=9)
    save(figure, path)


def _column(above: Any, below: Any, cases: Sequence[Case], names: Sequence[str], baseline: str, scale: float) -> None:
    cube = all(case.m == case.n == case.k for case in cases)
    rates: list[float] = []
    best: dict[int, tuple[float, float, str]] = {}
    below.axhline(1.0, color="0.45", linestyle="--", linewidth=1.5)
    for number, name in enumerate(names):
        look = style(number, name, baseline)
        # Between unlike shapes there is nothing to interpolate.
        look["linestyle"] = "" if not cube else "--" if name == baseline else "-"
        aside = 0.0 if cube else 0.08 * (number - (len(names) - 1) / 2)
        points = [(x, case, row) for x, case in enumerate(cases) for row in case.timed if row.name == name]
        speeds = [(row.gflops or 0.0) * scale for _, _, row in points]
        slowest = [case.flops / (row.maximum or 1.0) / 1e9 * scale for _, case, row in points]
        fastest = [case.flops / (row.minimum or 1.0) / 1e9 * scale for _, case, row in points]
        spread = [[s - low for s, low in zip(speeds, slowest)], [high - s for s, high in zip(speeds, fastest)]]
        above.errorbar([x + aside for x, _, _ in points], speeds, yerr=spread, capsize=3, elinewidth=1, **look)
        rates += [*fastest, *slowest]
        related = [(x, row.ratio) for x, _, row in points if row.ratio is not None and name != baseline]
        below.plot([x + aside for x, _ in related], [ratio for _, ratio in related], **look)
        for x, ratio in related:
            best[x] = max(best.get(x, (0.0, 0.0, "")), (ratio, x + aside, look["color"]))
    for ratio, place, color in best.values():
        below.annotate(
            multiple(ratio),
            (place, ratio),
            textcoords="offset points",
            xytext=(0, 7),
            ha="center",
            fontsize=8,
            color=color,
        )
    ratios = [row.ratio for case in cases for row in case.timed if row.ratio is not None]
    _scale(above, rates)
    _scale(below, ratios)
    labels = [str(case.m) if cube else f"{case.m}x{case.n}x{case.k}" for case in cases]
    crowded = sum(map(len, labels)) > 30
    below.set_xticks(range(len(cases)), labels, rotation=30 if crowded else 0, ha="right" if crowded else "center")
    below.set_xlabel("m = n = k" if cube else "m x n x k")
    above.set_xlim(-0.4, len(cases) - 0.6)
    for axis in (above, below):
        axis.grid(True, which="major", color="0.9", linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)


def _scale(axis: Any, values: Sequence[float]) -> None:
    """Logarithmic where values spread widely, else from zero."""
    if values and max(values) > _LOG_BEYOND * min(values):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.margins(y=0.2)
    else:
        axis.set_ylim(0, 1.25 * max(values, default=1.0))
