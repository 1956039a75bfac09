"""The tables of docs/quantization.md, made from :mod:`gemmhub.scale_layouts`."""

from __future__ import annotations

from benchmarks.pages.tables import rows
from gemmhub.scale_layouts import LAYOUTS, REFUSED


def layouts() -> list[str]:
    """Return one row for each layout that is converted."""

    def shape(dimensions: tuple[str, ...] | None) -> str:
        if dimensions is None:
            return ""
        return f"({', '.join(dimensions)}{',' * (len(dimensions) == 1)})" if dimensions else "one element"

    body = [(f"`{name}`", shape(x.a), shape(x.b)) for name, x in LAYOUTS.items()]
    return rows(("layout", "scale of a", "scale of b"), body)


def refused() -> list[str]:
    """Return one row for each reason, with the layouts that are refused for it."""
    reasons = dict.fromkeys(REFUSED.values())
    return rows(
        ("refused", "reason"),
        ((", ".join(f"`{name}`" for name, x in REFUSED.items() if x == reason), reason) for reason in reasons),
    )
