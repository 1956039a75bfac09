"""The table of docs/bits.md: the cost of batch invariance on a card."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

from benchmarks.lib import results
from benchmarks.pages import tables

FILE = results.FOLDER / "h100" / "reproducible.json"
_PAIRS = (
    ("torch", "gemmhub batch"), ("torch without split-K", "gemmhub batch"), ("gemmhub", "gemmhub batch"),
    ("torch", "torch without split-K"),
)  # fmt: skip
"""The pairs of a row: the first one's time over the second one's."""


def cost() -> list[str]:
    """Return a row for each class: geometric means and the lowest of the ratios of times."""
    file = results.load(FILE)
    head = ["class", "products", "torch", "torch without split-K", "gemmhub without a promise", "torch without split-K"]
    body = []
    rows: Sequence[dict[str, Any]] = file["rows"]
    for name in (*dict.fromkeys(row["class"] for row in rows), ""):
        some = [row["us"] for row in rows if name in ("", row["class"])]
        cells = []
        for x, y in _PAIRS:
            ratios = [us[x] / us[y] for us in some]
            cells.append(f"{geometric_mean(ratios):.2f} ({min(ratios):.2f})")
        body.append([name or "all", len(some), *cells])
    head[2:5] = [f"{x} / batch" for x in head[2:5]]
    head[5] = "torch / torch without split-K"
    return tables.rows(head, body)
