"""The table of docs/grouped.md, made of what benchmarks/run/grouped.py measured on a CPU."""

from __future__ import annotations

from statistics import geometric_mean

from benchmarks.lib import results
from benchmarks.pages.tables import rows


def cpu() -> list[str]:
    """Return the times of single calls and of torch over those of grouped products, by dtype and mixture."""
    record = results.load(results.FOLDER / "cpu" / "grouped_1.json")
    body = []
    for dtype, mixture in dict.fromkeys((x["dtype"], x["mixture"]) for x in record["rows"]):
        found = [x["ratios"] for x in record["rows"] if (x["dtype"], x["mixture"]) == (dtype, mixture)]
        cells = []
        for name in ("single", "torch"):
            values = [x[name] for x in found]
            cells.append(f"{geometric_mean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        body.append((dtype, mixture, *cells))
    host = record["host"]
    where = f"{host['cpu']}, {record['threads']} thread, torch {record['torch']}, NumPy {host['numpy']}"
    head = ("operands", "mixture", "single calls over grouped", "torch._grouped_mm over grouped")
    return [*rows(head, body), "", f"`{record['command']}` on {where}."]
