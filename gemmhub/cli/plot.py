"""``gemmhub bench --plot``: throughput above, ratios as bars below, a column for each dtype and order."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

from gemmhub._base.units import multiple, rate_unit
from gemmhub.cli.figures import (
    about,
    contenders,
    extents,
    fits,
    head,
    legend,
    named,
    save,
    sizes,
    style,
    title,
    wrapped,
)
from gemmhub.cli.measurements import Case

_LOG_BEYOND = 30
"""Ratio of the largest to the smallest throughput beyond which the axis is logarithmic."""
_GROUP = 0.8
"""Total width of the bars of one product."""
_LEAST = 1.25
"""Least ratio at the end of the axis of ratios: noise must look like noise."""


def draw(cases: Sequence[Case], machine: str, path: Path) -> None:
    """Write the plot of ``cases`` to ``path``. Raises Failure."""
    save(figure(cases, machine), path)


def figure(cases: Sequence[Case], machine: str) -> Any:
    """The plot of ``cases``."""
    from matplotlib.figure import Figure

    titles = list(dict.fromkeys(map(title, cases)))
    names, baseline = contenders(cases), cases[0].baseline
    unit, scale = rate_unit(row.gflops for case in cases for row in case.timed)
    max_cases = max(sum(title(case) == case_title for case in cases) for case_title in titles)
    width = min(14.0, max(4.2, 0.3 * max_cases + 1.0))
    drawn = Figure(figsize=(max(5.5, width * len(titles) + 1), 7.0), layout="constrained")
    axes = drawn.subplots(2, len(titles), squeeze=False, sharex="col", height_ratios=(3, 2))
    for column, case_title in enumerate(titles):
        mine = [case for case in cases if title(case) == case_title]
        above, below = axes[0][column], axes[1][column]
        _rates(above, mine, names, baseline, scale)
        _ratios(below, mine, names, baseline)
        _name_cases(below, mine, width - 1.0)
        above.set_title(wrapped(case_title, width - 0.5, 11), fontsize=11)
        for axis in (above, below):
            axis.grid(True, which="major", color="0.9", linewidth=0.8)
            axis.set_axisbelow(True)
            axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel(f"throughput [{unit}]")
    axes[1][0].set_ylabel(f"speed relative to\n{named(baseline)}")
    legend(drawn, *axes[0][0].get_legend_handles_labels())
    head(drawn, f"{about(cases, machine)}; error bars from the slowest to the fastest round")
    for axis in axes[1]:
        _name_bars(drawn, axis)
    return drawn


def _rates(axis: Any, cases: Sequence[Case], names: Sequence[str], baseline: str, scale: float) -> None:
    cube = all(case.m == case.n == case.k for case in cases)
    rates: list[float] = []
    for number, name in enumerate(names):
        look = style(number, name, baseline)
        # Different shapes are not interpolated.
        look["linestyle"] = "" if not cube else "--" if name == baseline else "-"
        aside = 0.0 if cube else 0.08 * (number - (len(names) - 1) / 2)
        points = [(x, case, row) for x, case in enumerate(cases) for row in case.timed if row.name == name]
        speeds = [(row.gflops or 0.0) * scale for _, _, row in points]
        slowest = [case.flops / (row.maximum or 1.0) / 1e9 * scale for _, case, row in points]
        fastest = [case.flops / (row.minimum or 1.0) / 1e9 * scale for _, case, row in points]
        spread = [
            [max(0.0, s - low) for s, low in zip(speeds, slowest)],
            [max(0.0, high - s) for s, high in zip(speeds, fastest)],
        ]
        axis.errorbar([x + aside for x, _, _ in points], speeds, yerr=spread, capsize=3, elinewidth=1, **look)
        rates += [*fastest, *slowest]
    if rates and max(rates) > _LOG_BEYOND * min(rates):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.margins(y=0.2)
    else:
        axis.set_ylim(0, 1.25 * max(rates, default=1.0))


def _ratios(axis: Any, cases: Sequence[Case], names: Sequence[str], baseline: str) -> None:
    """Draw bars from 1, up for faster and down for slower, on a logarithmic axis: half and twice are equally far."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    others = [name for name in names if name != baseline]
    width = _GROUP / max(1, len(others))
    ratios = [1.0]
    for number, name in enumerate(others):
        drawn = [(x, row.ratio) for x, case in enumerate(cases) for row in case.timed if row.name == name and row.ratio]
        positions = [x + width * (number - (len(others) - 1) / 2) for x, _ in drawn]
        color = style(names.index(name), name, baseline)["color"]
        axis.bar(positions, [ratio - 1.0 for _, ratio in drawn], 0.9 * width, bottom=1.0, color=color)
        ratios += [ratio for _, ratio in drawn]
    low, high = min(*ratios, 1 / _LEAST), max(*ratios, _LEAST)
    axis.axhline(1.0, color="0.45", linestyle="--", linewidth=1.5)
    axis.set_yscale("log")
    room = (high / low) ** 0.15
    axis.set_ylim(low / room, high * room)
    spread = high / low
    few = MaxNLocator(5, steps=(1, 2, 5, 10))
    axis.yaxis.set_major_locator(few if spread < 8 else LogLocator(base=2 if spread < 300 else 10))
    axis.yaxis.set_major_formatter("{x:g}x")
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_formatter(NullFormatter())


def _name_bars(drawn: Any, axis: Any) -> None:
    """Write the ratio at the end of each bar, the largest first, where there is room."""
    taken = extents(drawn, axis) + [bar.get_window_extent() for bar in axis.patches]
    edge = axis.get_window_extent()
    bars = sorted(axis.patches, key=lambda bar: -abs(log(1.0 + bar.get_height())))
    for bar in bars:
        ratio = 1.0 + bar.get_height()
        up = ratio >= 1.0
        written = axis.annotate(
            multiple(ratio),
            (bar.get_x() + bar.get_width() / 2, ratio),
            xytext=(0, 2 if up else -2),
            textcoords="offset points",
            ha="center",
            va="bottom" if up else "top",
            fontsize=8,
        )
        written.set_in_layout(False)
        if not fits(written, edge, taken):
            written.set_rotation(90)
            if not fits(written, edge, taken):
                written.remove()


def _name_cases(axis: Any, cases: Sequence[Case], inches: float) -> None:
    """Name the cases below the axis, rotated as far as necessary to fit."""
    cube = all(case.m == case.n == case.k for case in cases)
    labels = [sizes(case) if cube else f"{case.m}x{case.n}x{case.k}" for case in cases]
    longest, spacing = max(map(len, labels)) * 0.085, inches / len(labels)
    turned = 0 if longest < spacing else 30 if spacing > 0.4 else 90
    axis.set_xticks(range(len(cases)), labels, rotation=turned, ha="right" if turned == 30 else "center", fontsize=9)
    if turned == 30:
        for text in axis.get_xticklabels():
            text.set_rotation_mode("anchor")
    axis.set_xlabel("m = n = k" if cube else "m x n x k")
    axis.set_xlim(-0.5, len(cases) - 0.5)
