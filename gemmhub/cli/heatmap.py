"""``gemmhub bench --heatmap``: ratios to the baseline over two of the sizes m, n and k.

There is a panel for each contender, dtype and order. Colours diverge from 1 on a logarithmic scale, so that twice as
fast is as far from white as half as fast; every cell has its ratio as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from gemmhub._base.units import multiple
from gemmhub.cli.contenders import label
from gemmhub.cli.errors import Failure, Undone
from gemmhub.cli.figures import about, contenders, head, named, save, title, wrapped
from gemmhub.cli.measurements import Case

_LEAST, _MAX_ENTRIES = 1.25, 4.0
"""Least and greatest ratio at the end of the colour scale: noise must look like noise, and one large ratio must not
make all others pale."""


def possible(cases: Sequence[Case]) -> bool:
    """Whether a map can be drawn: ratios over one or two sizes that differ."""
    sizes = list(zip(*((case.m, case.n, case.k) for case in cases)))
    varying = sum(len(set(each)) > 1 for each in sizes)
    baseline = cases[0].baseline
    return varying in (1, 2) and any(row.ratio and row.name != baseline for case in cases for row in case.timed)


def axes(shapes: Sequence[tuple[int, int, int]]) -> tuple[str, str]:
    """The two sizes that differ among (m, n, k), in this order; Failure where all three do."""
    varying = [name for name, sizes in zip("mnk", zip(*shapes)) if len(set(sizes)) > 1]
    if len(varying) > 2:
        raise Failure(
            "--heatmap draws two sizes, but m, n and k all differ among the shapes; "
            "hold one, as in --shape 256,1024x256,1024x4096"
        )
    first, second = sorted((varying + [name for name in "mnk" if name not in varying])[:2], key="mnk".index)
    return first, second


def draw(cases: Sequence[Case], machine: str, path: Path) -> None:
    """Write the plot of ``cases`` to ``path``. Raises Failure, also when nothing has a ratio."""
    save(figure(cases, machine), path)


def figure(cases: Sequence[Case], machine: str) -> Any:
    """The plot of ``cases``. Raises Failure when nothing has a ratio."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    names = [name for name in contenders(cases) if name != cases[0].baseline]
    titles = list(dict.fromkeys(map(title, cases)))
    ratios = [row.ratio for case in cases for row in case.timed if row.name in names and row.ratio is not None]
    if not ratios:
        raise Undone(f"--heatmap: no contender has a ratio to {cases[0].baseline}; the remarks have the reasons")
    down, across = axes([(case.m, case.n, case.k) for case in cases])
    rows, columns = (sorted({getattr(case, name) for case in cases}) for name in (down, across))
    furthest = max(abs(log2(ratio)) for ratio in ratios)
    limit = min(max(furthest, log2(_LEAST)), log2(_MAX_ENTRIES))
    width, height = max(3.2, 0.75 * len(columns) + 1.2), max(1.8, 0.42 * len(rows) + 1.0)
    drawn = Figure(figsize=(width * len(titles) + 1.4, max(2.6, height * len(names)) + 0.9), layout="constrained")
    panels = drawn.subplots(len(names), len(titles), squeeze=False)
    for name, line in zip(names, panels):
        for case_title, axis in zip(titles, line):
            mine = [case for case in cases if title(case) == case_title]
            grid = np.full((len(rows), len(columns)), np.nan)
            for case in mine:
                cell = rows.index(getattr(case, down)), columns.index(getattr(case, across))
                grid[cell] = next((row.ratio for row in case.timed if row.name == name and row.ratio), np.nan)
            _panel(axis, grid, limit)
            axis.set_title(wrapped(f"{label(name)}, {case_title}", width - 0.4, 10), fontsize=10)
            axis.set_xticks(range(len(columns)), columns)
            axis.set_yticks(range(len(rows)), rows)
            axis.set_xlabel(across)
            axis.set_ylabel(down)
    scale = ScalarMappable(Normalize(-limit, limit), "RdBu")
    bar = drawn.colorbar(scale, ax=panels, shrink=0.9, extend="both" if furthest > limit else "neither")
    ticks = [-limit, -limit / 2, 0.0, limit / 2, limit]
    bar.set_ticks(ticks, labels=[f"{2.0**tick:.2f}" for tick in ticks])
    bar.set_label(f"speed relative to\n{named(cases[0].baseline)}")
    held = next(name for name in "mnk" if name not in (down, across))
    head(drawn, f"{about(cases, machine)}; {held} = {getattr(cases[0], held)}")
    return drawn


def _panel(axis: Any, grid: Any, limit: float) -> None:
    axis.set_facecolor("0.85")  # the colour of cells without a ratio
    axis.imshow(np.log2(grid), cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    for (row, column), ratio in np.ndenumerate(grid):
        missing = np.isnan(ratio)
        dark = not missing and abs(log2(ratio)) > 0.6 * limit
        axis.text(
            column, row, "-" if missing else multiple(ratio).removesuffix("x"),
            ha="center", va="center", fontsize=9, color="white" if dark else "black",
        )  # fmt: skip
    axis.spines[:].set_visible(False)
