"""The tables of epilogues and of symmetric products on a card, in docs/hopper.md."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from benchmarks.lib import results
from benchmarks.pages import tables

_CARD = results.FOLDER / "h100"


def fused() -> list[str]:
    """Return torch's time over gemmhub's for products with an epilogue, by epilogue and size."""
    every: list[dict[str, Any]] = results.load(_CARD / "epilogues.json.xz")["rows"]
    body = []
    for kind in dict.fromkeys(x["class"].split(maxsplit=1)[1] for x in every if not x["class"].startswith("swiglu")):
        cells = []
        for size in ("small", "large"):
            ratios = [x["torch_us"] / x["us"]["gemmhub"] for x in every if x["class"] == f"{size} {kind}"]
            cells.append(f"{geometric_mean(ratios):.2f} ({min(ratios):.2f})")
        body.append((kind, *cells))
    return tables.rows(("epilogue", "below 1e10 operations", "from 1e10 on"), body)


def gated() -> list[str]:
    """Return the times of a gated product by torch over gemmhub's, by rows."""
    body = []
    for x in results.load(_CARD / "epilogues.json.xz")["rows"]:
        if x["class"].startswith("swiglu"):
            us = x["us"]["gemmhub"]
            ratios = (f"{t / us:.2f}" for t in (x["torch_us"], x["us"]["torch.compile"]))
            body.append((x["m"], f"{us:.0f}", *ratios))
    return tables.rows(("rows", "us", "torch over it", "torch.compile over it"), body)


def symmetric() -> list[str]:
    """Return torch's time over that of symmetric products, by dtype and size."""
    every = results.load(_CARD / "symmetric.json.xz")["rows"]
    sizes = list(dict.fromkeys(x["n"] for x in every))
    body = []
    for dtype in dict.fromkeys(x["dtype"] for x in every):
        mine = {x["n"]: x for x in every if x["dtype"] == dtype}
        body.append((dtype, *(f"{mine[n]['ratio']:.2f}, {mine[n]['ratio with c']:.2f}" for n in sizes)))
    return tables.rows(("operands", *(f"n = {n}" for n in sizes)), body)
