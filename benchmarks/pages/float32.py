"""The tables of docs/float32.md: float32 over families of data, over random sizes, and at each precision."""

from __future__ import annotations

import re
from statistics import geometric_mean

from benchmarks.lib import results
from benchmarks.pages import tables

_FOLDER = results.FOLDER / "h100"


def families() -> list[str]:
    """Return time and error over families of data, beside torch's float32."""
    return _families("float32_data.json")


def families_by_rows() -> list[str]:
    """Return the same for a product with a short side."""
    return _families("float32_data_rows.json")


def _families(file: str) -> list[str]:
    found = results.load(_FOLDER / file)["products"]
    body = [
        (x["data"], f"{x['ms']:.2f}", f"{x['of_normal']:.2f}", f"{x['ratio']:.2f}", f"{x['error']:.1e}",
         f"{x['cublas_error']:.1e}")
        for x in found
    ]  # fmt: skip
    return tables.rows(("data", "ms", "over normal data", "torch / gemmhub", "error", "cuBLAS"), body)


def sizes() -> list[str]:
    """Return the geometric mean of torch's time over gemmhub's for products of random sizes, by their larger sides."""
    body = []
    for name, file in (("large", "hopper_float32_large.json.xz"), ("small", "hopper_float32_small.json.xz")):
        for card in ("h100", "h200"):
            by_scheme: dict[str, list[float]] = {}
            for row in results.load(results.FOLDER / card / file)["rows"]:
                for words in (_scheme(row["chosen"]), "all"):
                    by_scheme.setdefault(words, []).append(row["ratio"])
            for words, ratios in sorted(by_scheme.items(), key=lambda x: _SCHEMES.index(x[0])):
                cells = f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"
                body.append((name, card.upper(), words, len(ratios), *cells))
    return tables.rows(("operations", "card", "computed by", "products", "torch / gemmhub", "worst"), body)


_SCHEMES = ("float16 planes", "float16 planes, in registers", "bfloat16 planes", "vectors", "all")


def _scheme(candidate: str) -> str:
    """Return the words for what computes a product."""
    if "gemv" in candidate:
        return "vectors"
    return _SCHEMES[1 if "hr" in candidate else 0 if "h" in candidate else 2]


def precisions() -> list[str]:
    """Return float32's time at ``"ieee"`` over that at ``"bf16x3"``, and the errors of all precisions."""
    body = []
    for name in ("large", "small"):
        for card in ("h100", "h200"):
            every = results.load(results.FOLDER / card / "float32_precisions.json.xz")["rows"]
            rows = [row for row in every if row["class"] == f"float32 {name}"]
            by_planes = [row for row in rows if _TWO_PLANES.search(row["chosen"]["bf16x3"])]
            means = [
                f"{geometric_mean(row['us'][over] / row['us']['bf16x3'] for row in some):.2f}" if some else "-"
                for some, over in ((by_planes, "ieee"), (by_planes, "torch"), (rows, "ieee"))
            ]
            errors = [
                f"{max(row['errors'][data][x] for row in by_planes or rows):.1e}"
                for x in ("ieee", "bf16x3", "tf32") for data in ("normal", "positive")
            ]  # fmt: skip
            body.append((name, card.upper(), len(rows), len(by_planes), *means, *errors))
    return tables.rows(
        ("operations", "card", "products", "by two planes", "ieee / bf16x3", "torch / bf16x3", "ieee / bf16x3, all",
         "error, ieee", "positive", "bf16x3", "positive", "tf32", "positive"),
        body,
    )  # fmt: skip


_TWO_PLANES = re.compile(r"xt?(/\d+)?$")
"""The end of a candidate of gemmhub-hopper with the letter of two bfloat16 planes."""


def kinds() -> list[str]:
    """Return complex64, and bfloat16 by float32, beside torch: timed by CUDA graphs, and as calls."""
    cards = [results.load(results.FOLDER / card / "float32_kinds.json")["products"] for card in ("h100", "h200")]
    body = []
    for found in zip(*cards):
        cells = [cell for x in found for cell in (f"{x['us']:.0f}", f"{x['ratio']:.2f}", f"{x['call_ratio']:.2f}")]
        errors = [f"{max(x[name] for x in found):.1e}" for name in ("error", "torch_error")]
        body.append((found[0]["what"], " x ".join(map(str, found[0]["sizes"])), *cells, *errors))
    return tables.rows(
        ("operands", "m x n x k", "H100, us", "torch / gemmhub", "as calls", "H200, us", "torch / gemmhub", "as calls",
         "error", "torch"),
        body,
    )  # fmt: skip
