"""The tables of docs/musa-kernels.md, made of what benchmarks/run/musa_kernels_counts.py counted on the simulator."""

from __future__ import annotations

from typing import Any

from benchmarks.lib import results
from benchmarks.pages.tables import rows

RESULT = results.FOLDER / "cpu" / "musa_kernels_counts.json"


def tables(data: dict[str, Any]) -> list[str]:
    """Return a table of memory traffic and one of registers."""
    copied = [f" + {x['copied_spare_lines']} of the copy" * bool(x["copied_spare_lines"]) for x in data["counts"]]
    lines = rows(
        ("product", "A, B, D", "way", "read MB", "written MB", "spare lines", "bank conflicts", "barriers a step"),
        (
            (
                x["size"], ", ".join(x["orders"]), x["way"], f"{x['read_bytes'] / 1e6:.2f}",
                f"{x['written_bytes'] / 1e6:.2f}",
                f"{x['spare_lines']}{more}", x["bank_conflicts"], f"{x['barriers_per_step']:g}",
            )
            for x, more in zip(data["counts"], copied)
        ),
    )  # fmt: skip
    if isinstance(data["resources"], str):
        return [*lines, "", data["resources"]]
    head = ("kernel", "threads", "registers", "spilled bytes", "shared memory", "blocks")
    return [*lines, "", *rows(head, (tuple(x.values()) for x in data["resources"]))]


def counts() -> list[str]:
    """Return the tables of the documentation."""
    return tables(results.load(RESULT))
