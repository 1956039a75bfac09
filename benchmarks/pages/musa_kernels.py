"""The tables of docs/musa-kernels.md, made of what benchmarks/run/musa_kernels_counts.py counted on the simulator."""

from __future__ import annotations

from typing import Any

from benchmarks.lib import results
from benchmarks.pages.tables import rows

RESULT = results.FOLDER / "cpu" / "musa_kernels_counts.json"


def tables(data: dict[str, Any]) -> list[str]:
    """Return a table of memory traffic, one of estimates and one of registers."""
    head = (
        "product", "A, B, D", "code path", "read MB", "written MB", "spare lines", "bank conflicts", "barriers a step"
    )  # fmt: skip
    body = []
    for x in data["counts"]:
        path = x["way"].replace("as it lies", "in place")
        copied = f" + {x['copied_spare_lines']} of the copy" if x["copied_spare_lines"] else ""
        moved = [f"{x[name] / 1e6:.2f}" for name in ("read_bytes", "written_bytes")]
        spare = f"{x['spare_lines']}{copied}"
        body.append(
            (x["size"], ", ".join(x["orders"]), path, *moved, spare, x["bank_conflicts"], f"{x['barriers_per_step']:g}")
        )
    lines = rows(head, body)
    head = ("tile-warps", "cycles of shared memory", "cycles in all", "estimated TFLOPS")
    estimates = [(x["tile"], f"{x['moving']:g}", x["cycles"], f"{x['tflops']:.1f}") for x in data["estimates"]]
    lines += ["", *rows(head, estimates)]
    if isinstance(data["resources"], str):
        return [*lines, "", data["resources"]]
    head = ("kernel", "threads", "registers", "spilled bytes", "shared memory", "blocks")
    return [*lines, "", *rows(head, (tuple(x.values()) for x in data["resources"]))]


def counts() -> list[str]:
    """Return the tables of the documentation."""
    return tables(results.load(RESULT))
