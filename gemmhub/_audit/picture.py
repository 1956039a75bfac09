"""Pictures of faults as inline SVG: where in the result the errors are, and which blocks of k are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log10

from gemmhub._audit.result import Fault

_CELL, _GAP = 8, 14
_RIGHT, _NAN = "#d9dee5", "#7b3fbf"


def svg(fault: Fault) -> str:
    """The picture of a fault; "" where there is nothing to show."""
    if not fault.grid:
        return ""
    rows, columns = len(fault.grid), len(fault.grid[0])
    width, height = max(columns * _CELL, 160), rows * _CELL
    parts = [_grid(fault.grid)]
    title = f"Errors over the {fault.shape[0]} x {fault.shape[1]} result"
    if fault.blocks:
        parts.append(_bar(fault.blocks, width, height + _GAP))
        title += ", and blocks of k"
        height += _GAP + _CELL
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><title>{title}</title>{"".join(parts)}</svg>'
    )


def _grid(grid: Sequence[Sequence[float]]) -> str:
    return "".join(
        f'<rect x="{j * _CELL}" y="{i * _CELL}" width="{_CELL}" height="{_CELL}" fill="{_colour(ratio)}"/>'
        for i, row in enumerate(grid)
        for j, ratio in enumerate(row)
    )


def _colour(ratio: float) -> str:
    """Grey within the bound, yellow to red above it, violet where there is no number."""
    if ratio <= 1.0:
        return _RIGHT
    if not isfinite(ratio):
        return _NAN
    return f"hsl({max(0, 50 - round(10 * log10(ratio)))} 90% 50%)"


def _bar(blocks: Sequence[tuple[int, int, bool]], width: int, top: int) -> str:
    """Blocks of k from left to right."""
    size = blocks[-1][1]
    return "".join(
        f'<rect x="{width * low / size:.1f}" y="{top}" width="{width * (high - low) / size:.1f}" height="{_CELL}" '
        f'fill="{"hsl(0 90% 50%)" if wrong else _RIGHT}"><title>k {low} to {high - 1}</title></rect>'
        for low, high, wrong in blocks
    )
