"""The table of grouped products in docs/hopper.md, from results of benchmarks/run/hopper_grouped.py."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from benchmarks.lib import results
from benchmarks.pages import tables

_ROWS = {"1 to 31": (1, 32), "32 to 255": (32, 256), "256 and more": (256, 2**20)}
"""Limits of the rows of a group, on average."""


def _load(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = results.load(results.FOLDER / "h100" / f"{name}.json.xz")["rows"]
    return found


def drawn() -> list[str]:
    """Return torch's time over gemmhub-hopper's for random products, by mixture and rows of a group."""
    body = []
    for mixture in ("even", "skewed"):
        for words, (least, end) in _ROWS.items():
            ratios = [
                x["ratio"] for x in _load("hopper_grouped") if x["mixture"] == mixture and least <= x["rows"] < end
            ]
            body.append((mixture, words, len(ratios), f"{geometric_mean(ratios):.2f} ({min(ratios):.2f})"))
    return tables.rows(("mixture", "rows of a group", "products", "torch's time over ours"), body)


def named() -> list[str]:
    """Return the speed of products of fixed sizes."""
    body = [
        (
            f"{x['groups']} x {x['rows']}", f"{x['n']} x {x['k']}", x["mixture"], "transposed" * (x["order"] == "t"),
            f"{x['torch_tflops']:.0f}", f"{x['tflops']:.0f}", f"{x['ratio']:.2f}",
        )
        for x in _load("hopper_grouped_named")
    ]  # fmt: skip
    head = ("groups x rows", "n x k", "mixture", "b", "torch, TFLOPS", "gemmhub, TFLOPS", "ratio")
    return tables.rows(head, body)
