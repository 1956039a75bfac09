"""The tables of docs/hopper.md and docs/cuda.md on the kernels that wheels carry, from estimates."""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks.lib import results
from benchmarks.pages import tables

_HEAD = ("operands", "estimates for", "products", "fastest in the wheel", "within 1.15", "mean", "worst", "compiled")
_WORDS = {"bfloat16": "bfloat16; float16 likewise", "grouped": "groups of bfloat16"}


def hopper() -> list[str]:
    """Return what the kernels of gemmhub-hopper's wheel cost random products."""
    return tables.rows(_HEAD, _rows("hopper_shipped.json"))


def cuda() -> list[str]:
    """Return what the kernels of gemmhub-cuda's wheel cost random products."""
    return tables.rows(_HEAD, _rows("cuda_shipped.json"))


def _rows(name: str) -> Iterator[tuple[object, ...]]:
    report = json.loads((results.FOLDER / "cpu" / name).read_text())
    for kind, cards in report.items():
        if kind in ("command", "kernels"):
            continue
        for card, x in cards.items():
            shares = (f"{100 * x[name]:.1f} %" for name in ("fastest", "within_1.15"))
            worst = f"{x['worst']:.2f}" if x["within_limit"] == 1 else "-"
            compiled = f"{100 * (1 - x['within_limit']):.2f} %"
            yield _WORDS.get(kind, kind), card, x["products"], *shares, f"{x['mean']:.3f}", worst, compiled
