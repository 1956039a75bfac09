"""The tables of docs/cuda.md, from results of benchmarks/run/cuda_torch.py on an H200.

"Chosen" is the choice of the present cost model, where that candidate was measured; a record names an older choice.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from gemmhub_cuda.cost import model

from benchmarks.fit import cuda_model
from benchmarks.lib import results
from benchmarks.pages import tables

ROOT = Path(__file__).resolve().parents[2]
RECORDS = {
    "float32, without tensor cores": ROOT / "benchmarks" / "results" / "h200" / "cuda_f32.json",
    "bfloat16, mma.sync": ROOT / "benchmarks" / "results" / "h200" / "cuda_bf16.json",
}


def chosen(row: dict[str, Any], timed: cuda_model.Row) -> tuple[str, bool]:
    """Return the model's choice among the measured candidates, and whether that is its choice among all."""
    name = model.choices(timed[0][0].lowering, cuda_model.H200, 2**26)[0][1].name
    return (name, True) if name in row["us"] else (row["chosen"], False)


def table(record: dict[str, Any]) -> list[str]:
    triton = any("triton" in row for row in record["rows"])
    lines = [
        "| m, n, k | cuBLAS, TFLOPS | chosen | of cuBLAS | fastest | of cuBLAS |" + " of Triton |" * triton,
        "|---|---|---|---|---|---|" + "---|" * triton,
    ]
    others = False
    for row, timed in zip(record["rows"], cuda_model.rows(record)):
        m, n, k, reference = row["m"], row["n"], row["k"], row["torch_us"]
        name, present = chosen(row, timed)
        others = others or not present
        best = min(row["us"], key=lambda x: row["us"][x])
        order = "" if row["order"] == "nn" else f", {row['order']}"
        line = (
            f"| {m}, {n}, {k}{order} | {2e-6 * m * n * k / reference:.1f} "
            f"| `{name}`{'' if present else '*'} | {reference / row['us'][name]:.3f} "
            f"| `{best}` | {reference / row['us'][best]:.3f} |"
        )
        if triton:
            compared = row.get("triton")
            line += f" {compared['us'][compared['best']] / row['us'][name]:.3f} |" if compared else " - |"
        lines.append(line)
    if others:
        lines += ["", "\\* What the model now chooses was not measured; it chose this one when it was not yet fitted."]
    return lines


def measured() -> list[str]:
    """Return the tables of both kernels, each under a line that names its card and versions."""
    lines: list[str] = []
    for title, path in RECORDS.items():
        record = json.loads(path.read_text())
        versions = f"{record['device']}, torch {record['torch']}, NVRTC {record['versions']['nvrtc']}"
        if record.get("triton"):
            versions += f", Triton {record['triton']} on mma.sync"
        lines += [f"**{title}** ({versions}; `benchmarks/results/h200/{path.name}`)", "", *table(record), ""]
    return lines[:-1]


def batches() -> list[str]:
    """Return batches beside torch: geometric means by kind and dtype."""
    record = results.load(results.FOLDER / "h100" / "batches.json.xz")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in record["products"]:
        groups.setdefault((row["kind"], row["dtype"]), []).append(row)
    body = []
    for (kind, dtype), rows in groups.items():
        mean = geometric_mean(row["ratio"] for row in rows)
        least = min(rows, key=lambda row: row["ratio"])
        sizes = " x ".join(map(str, least["sizes"]))
        own = sum(row["chosen"] == "cuda" for row in rows)
        body.append((kind, dtype, len(rows), own, f"{mean:.2f}", f"{least['ratio']:.2f} ({sizes})"))
    return tables.rows(
        ("products", "dtype", "number", "by gemmhub-cuda", "torch / gemmhub", "least (batch x m x n x k)"), body
    )


def squares() -> list[str]:
    """Return batches of square matrices, one by one."""
    record = results.load(results.FOLDER / "h100" / "batches.json.xz")
    body = [
        (row["dtype"], f"{row['sizes'][0]} of {row['sizes'][1]} x {row['sizes'][1]}", f"{row['us']:.1f}",
         f"{row['ratio']:.2f}", row["chosen"])
        for row in record["products"]
        if row["kind"] in ("squares", "int8") and row["orders"] == "nn" and row["dtype"] != "float16"
    ]  # fmt: skip
    return tables.rows(("dtype", "batch", "us", "torch / gemmhub", "by"), body)


def cards() -> list[str]:
    """Return published peak rates of cards, those that estimates assume, and the estimates of a large product."""
    report = json.loads((results.FOLDER / "cpu" / "cuda_cards.json").read_text())
    names = {"float32": "float32", "half": "16 bits", "int8": "int8", "float8": "float8"}
    body = [
        (f"{card} ({rows['capability']})", names[kind], x["published"], x["peak"],
         x.get("estimate", "-"), f"`{x['candidate']}`" if "candidate" in x else "-")
        for card, rows in report["cards"].items()
        for kind, x in rows.items()
        if kind in names
    ]  # fmt: skip
    return tables.rows(("card", "operands", "published", "assumed", "estimate", "candidate"), body)
