"""The tables of docs/grouped.md and docs/torch.md, made of what benchmarks/run measured on a CPU."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

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


def few_rows() -> list[str]:
    """Return the times of loops and of torch over those of grouped products, for groups of a few rows."""
    record = results.load(results.FOLDER / "cpu" / "experts_1.json")
    body = []
    for x in record["rows"]:
        if x["what"] != "groups":
            continue
        groups, mean, n, k = x["sizes"]
        us = x["us"]
        cells = [f"{us[name] / us['grouped']:.2f}" for name in ("torch.mm", "torch._grouped_mm")]
        arrays = us.get("grouped of arrays")
        cells.append(f"{us['numpy.matmul'] / arrays:.2f}" if arrays else "")
        body.append((x["dtype"], f"{groups} groups of {mean} rows by {n} x {k}", f"{us['grouped']:.0f}", *cells))
    head = (
        "operands",
        "groups",
        "us",
        "torch.mm over it",
        "torch._grouped_mm over it",
        "numpy.matmul over it (arrays)",
    )
    return [*rows(head, body), "", _source(record)]


def experts() -> list[str]:
    """Return the times of the experts of transformers over those of gemmhub, on a CPU."""
    record = results.load(results.FOLDER / "cpu" / "experts_1.json")
    return [*_experts(record), "", _source(record)]


def experts_on_a_card() -> list[str]:
    """Return the same on an NVIDIA GPU."""
    record = results.load(results.FOLDER / "h100" / "experts.json.xz")
    return [*_experts(record), "", f"`{record['command']}` on an {record['device']}, torch {record['torch']}."]


def _experts(record: dict[str, Any]) -> list[str]:
    body = []
    for x in record["rows"]:
        if x["what"] == "groups":
            continue
        number, count, hidden, intermediate, tokens = x["sizes"]
        layer = f"{tokens} token{'s' * (tokens > 1)}, {count} of {number} experts, {hidden} x {intermediate}"
        us = x["us"]
        cells = [f"{us[name] / us['gemmhub']:.2f}" for name in ("eager", "grouped_mm")]
        step = "training" if "training" in x["what"] else "forward"
        body.append((x["dtype"], step, layer, f"{us['gemmhub'] / 1000:.2f}", *cells))
    return rows(("weights", "step", "layer", "ms", "eager over it", "grouped_mm over it"), body)


def _source(record: dict[str, Any]) -> str:
    host, threads = record["host"], record["threads"]
    libraries = f"torch {record['torch']}, transformers {record['transformers']}, NumPy {host['numpy']}"
    where = f"{host['cpu']}, {threads} thread{'s' * (threads > 1)}, {libraries}"
    return f"`{record['command']}` on {where}; other work ran beside it."
