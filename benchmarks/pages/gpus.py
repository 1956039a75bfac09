"""The tables of several GPUs in docs/many-devices.md, made of what benchmarks/gpus measured. Needs no card.

    python -m benchmarks.pages.gpus FILE ...   # prints the tables of such result files
    python -m benchmarks.pages.gpus            # puts those of benchmarks/results/*/gpus.json into the page

A ratio is torch's time over gemmhub's. "Predicted" is predicted over measured seconds. "Hidden" is the share of the
communication that runs beside the products: (products alone + transfers alone - together) / transfers alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib import results

PAGE = results.ROOT / "docs" / "many-devices.md"
START, END = "<!-- table: gpus.measured -->", "<!-- end of table -->"


def rows(head: Sequence[object], body: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table, and an empty one."""
    first, *others = [f"| {' | '.join(map(str, line))} |" for line in (head, *body)]
    return [first, "|---" * len(head) + "|", *others, ""]


def over(row: dict[str, Any], above: str, below: str) -> str:
    """A ratio of two measured seconds."""
    return f"{row[above] / row[below]:.2f}" if row.get(above) and row.get(below) else "-"


def hidden(row: dict[str, Any], together: str, compute: str, communication: str) -> float | None:
    """The share of the communication that is hidden."""
    if not all(name in row for name in (together, compute, communication)):
        return None
    return float((row[compute] + row[communication] - row[together]) / row[communication])


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def ended(row: dict[str, Any]) -> str | None:
    """Why a row has no measurement."""
    return row.get("failed") or row.get("skipped")


def tables(file: dict[str, Any]) -> list[str]:
    """Lines of Markdown for one result file."""
    device = file.get("device", "CPU")
    nccl = f", NCCL {file['nccl']}" if "nccl" in file else ""
    lines = [f"**{file.get('ranks', '?')} x {device}** (torch {file.get('torch', '?')}{nccl})", ""]
    for part in (links, large, layers, symmetric, pairs, killed):
        found = file.get(part.__name__, [])
        if found:
            lines += part([row for row in found if not ended(row)])
            lines += [f"Not measured: {row['what']}: {ended(row)}" for row in found if ended(row)]
            lines += [""] if lines[-1] else []
    return lines[:-1]


def links(found: list[dict[str, Any]]) -> list[str]:
    body = [
        (x["what"], f"{x['rate'] / 1e12:.4g}", f"{x['bandwidth'] / 1e9:.4g}", f"{x['latency'] * 1e6:.3g}")
        for x in found
    ]
    return rows(("measured speeds", "TFLOPS of a device", "GB/s received", "us of a collective"), body)


def large(found: list[dict[str, Any]]) -> list[str]:
    """The square product beyond one GPU's memory."""
    theirs = {x["what"]: x for x in found if x["what"].endswith(", torch")}
    body = []
    for x in found:
        if x["what"] in theirs:
            continue
        other = theirs.get(f"{x['what']}, torch", {})
        body.append(
            (
                f"{x['size']} cubed, {x['what']}", f"{x['bytes'] / 2**30:.3g} GiB", x["algorithm"],
                f"{x['gemmhub']:.3g} s", f"{x['rate'] / 1e12:.4g}", f"{x['efficiency']:.3f}",
                over({**x, **other}, "torch", "gemmhub"), over(x, "predicted", "gemmhub"), f"{x['worst']:.3g}",
            )
        )  # fmt: skip
    head = (
        "product", "operands and result", "algorithm", "time", "TFLOPS", "share of linear", "ratio", "predicted",
        "error / bound",
    )  # fmt: skip
    return rows(head, body)


def layers(found: list[dict[str, Any]]) -> list[str]:
    """The pair of linear layers."""
    body = []
    for x in found:
        ours = hidden(x, "gemmhub", "compute", "communication")
        theirs = hidden(x, "torch", "torch compute", "torch communication")
        body.append(
            (
                x["what"], f"{x['gemmhub'] * 1e3:.4g} ms", over(x, "torch", "gemmhub"),
                f"{x['communication'] * 1e3:.3g} ms", share(ours), share(theirs), over(x, "predicted", "gemmhub"),
            )
        )  # fmt: skip
    head = ("pair of layers", "time", "ratio", "transfers alone", "hidden", "hidden by torch", "predicted")
    return rows(head, body)


def symmetric(found: list[dict[str, Any]]) -> list[str]:
    """Asynchronous tensor parallelism."""
    names = {"fused": "torch's fused operators", "copies": "gemmhub, transfers by copy engines"}
    body = [
        (
            f"{names[x['what']]}, {x['rows']} rows", f"{x['seconds'] * 1e3:.4g} ms",
            share(hidden(x, "seconds", "compute", "communication")),
        )
        for x in found
    ]  # fmt: skip
    return rows(("sequence parallel pair over symmetric memory", "time", "hidden"), body) if body else []


def pairs(found: list[dict[str, Any]]) -> list[str]:
    """Placements by placements, a column for each size."""
    sizes = list(dict.fromkeys(x["what"].split(",")[0] for x in found))
    by = {x["what"]: x for x in found}
    names = list(dict.fromkeys(x["what"].split(", ", 1)[1] for x in found))
    body = []
    for name in names:
        cells: list[str] = []
        for size in sizes:
            x = by.get(f"{size}, {name}")
            cells += ["-"] * 3 if x is None else [
                f"{over(x, 'torch', 'gemmhub')}", f"{x['gemmhub'] * 1e6:.4g}", over(x, "predicted", "gemmhub")
            ]  # fmt: skip
        body.append((name, *cells))
    head = ["placements", *(f"{size}: {x}" for size in sizes for x in ("ratio", "us", "predicted"))]
    worst, different = max((x["worst"] for x in found), default=0.0), sum(x["different"] for x in found)
    return [
        *rows(head, body),
        f"Largest error over its bound: {worst:.3g}. Products whose bits differ from run to run with "
        f'`reproducible="run"`: {different} of {len(found)}.', "",
    ]  # fmt: skip


def killed(found: list[dict[str, Any]]) -> list[str]:
    body = [(x["what"], f"{x['seconds']:.1f} s", x["error"].split("\n")[0].replace("|", "/")[:110]) for x in found]
    return rows(("a killed rank, as others see it", "after", "what"), body)


def measured() -> list[str]:
    """Return the tables of every result file."""
    files = sorted(results.FOLDER.glob("*/gpus.json"))
    if not files:
        return ["Not measured yet on several GPUs."]
    lines: list[str] = []
    for path in files:
        lines += [*tables(results.load(path)), ""]
    return lines[:-1]


def filled(page: str) -> str:
    """Return the page with new tables."""
    before, rest = page.split(START)
    text = "\n".join(measured())
    return f"{before}{START}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    if sys.argv[1:]:
        print("\n".join(line for name in sys.argv[1:] for line in tables(results.load(Path(name)))))
    else:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
