"""``gemmhub bench --roofline``: achieved rate over arithmetic intensity, with the ceilings of memory and arithmetic.

Arithmetic intensity is operations over bytes, where each operand is read once and the result written once: the
minimal traffic. A product cannot be faster than intensity times bandwidth, nor than the arithmetic. Both ceilings are
measured: the bandwidth of a large copy, and the best rate that any contender of the run reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log10
from pathlib import Path
from typing import Any

from gemmhub._base.units import number
from gemmhub.cli.figures import about, contenders, head, legend, place, save, sizes, style, title, wrapped
from gemmhub.cli.measurements import Case


def intensity(case: Case) -> float:
    """Arithmetic intensity of a case in operations a byte."""
    return case.flops / case.nbytes


def best_rate(cases: Sequence[Case]) -> float:
    """The highest median rate of any contender, in TFLOP/s."""
    return max(row.gflops or 0.0 for case in cases for row in case.timed) / 1e3


def draw(cases: Sequence[Case], bandwidth: float, machine: str, path: Path) -> None:
    """Write the plot of ``cases`` to ``path``; ``bandwidth`` in bytes a second. Raises Failure."""
    save(figure(cases, bandwidth, machine), path)


def figure(cases: Sequence[Case], bandwidth: float, machine: str) -> Any:
    """The plot of ``cases``; ``bandwidth`` in bytes a second."""
    from matplotlib.figure import Figure

    cases = [case for case in cases if case.timed]
    titles = list(dict.fromkeys(map(title, cases)))
    names = contenders(cases)
    drawn = Figure(figsize=(max(6.5, 5.5 * len(titles)), 5.5), layout="constrained")
    axes = drawn.subplots(1, len(titles), squeeze=False)[0]
    for axis, case_title in zip(axes, titles):
        _panel(axis, [case for case in cases if title(case) == case_title], names, bandwidth)
    axes[0].set_ylabel("throughput [TFLOP/s]")
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels())}
    legend(drawn, list(handles.values()), list(handles))
    head(drawn, about(cases, machine))
    for axis, case_title in zip(axes, titles):
        _name_slope(drawn, axis, bandwidth)
        fastest = [(case, case.timed[0].gflops or 0.0) for case in cases if title(case) == case_title]
        place(drawn, axis, [(intensity(c), rate / 1e3, sizes(c), "0.35") for c, rate in fastest], 7)
    return drawn


def _name_slope(drawn: Any, axis: Any, bandwidth: float) -> None:
    """Write the bandwidth beside the slope, where it covers no point."""
    x, y = axis.lines[-1].get_data()
    text = f"copy, {number(bandwidth / 1e9)} GB/s"
    for part in (0.5, 0.3, 0.7, 0.15, 0.85):
        at = x[0] * (x[1] / x[0]) ** part, y[0] * (y[1] / y[0]) ** part
        if place(drawn, axis, [(*at, text, "0.2")], 8):
            return
    axis.annotate(text, at, xytext=(6, -9), textcoords="offset points", fontsize=8, color="0.2")


def _panel(axis: Any, cases: Sequence[Case], names: Sequence[str], bandwidth: float) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    top, slope = best_rate(cases), bandwidth / 1e12
    for index, name in enumerate(names):
        points = [(intensity(c), (row.gflops or 0.0) / 1e3) for c in cases for row in c.timed if row.name == name]
        look = style(index, name, cases[0].baseline)
        axis.plot([x for x, _ in points], [y for _, y in points], linestyle="", alpha=0.85, **look)
    rates = [(row.gflops or 0.0) / 1e3 for case in cases for row in case.timed]
    intensities = [intensity(case) for case in cases]
    ridge = top / slope
    left, right = min(*intensities, ridge) / 3, max(*intensities, ridge) * 3
    bottom = min(*rates, left * slope) / 1.5
    axis.plot([left, ridge, right], [left * slope, top, top], color="0.2", linewidth=1.2, zorder=1)
    small = {"textcoords": "offset points", "fontsize": 8, "color": "0.2"}
    axis.annotate(f"best rate of this run, {number(top)} TFLOP/s", (right, top), xytext=(-4, 4), ha="right", **small)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(left, right)
    axis.set_ylim(bottom, 2 * top)
    axis.set_title(wrapped(title(cases[0]), 4.5, 11), fontsize=11)
    axis.set_xlabel("arithmetic intensity [FLOP/byte]")
    for which, decades in ((axis.xaxis, log10(right / left)), (axis.yaxis, log10(2 * top / bottom))):
        which.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
        which.set_major_formatter("{x:g}")
        which.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
