"""The tables of docs/float32.md: float32 on an H100 over families of data, and over random sizes."""

from __future__ import annotations

from statistics import geometric_mean

from benchmarks.lib import results
from benchmarks.pages import tables

_FOLDER = results.FOLDER / "h100"


def families() -> list[str]:
    """Return time and error over families of data, beside torch's float32."""
    found = results.load(_FOLDER / "float32_data.json")["products"]
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
        rows = results.load(_FOLDER / file)["rows"]
        planes = [x for x in rows if "h" in x["chosen"].split("/")[0]]
        others = [x for x in rows if x not in planes and "gemv" not in x["chosen"]]
        vectors = [x for x in rows if "gemv" in x["chosen"]]
        for words, some in (("float16 planes", planes), ("bfloat16 planes", others), ("vectors", vectors)):
            if some:
                ratios = [x["ratio"] for x in some]
                body.append((name, words, len(some), f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f}"))
    return tables.rows(("operations", "computed by", "products", "torch / gemmhub", "worst"), body)


def kinds() -> list[str]:
    """Return complex64, and bfloat16 by float32, beside torch."""
    found = results.load(_FOLDER / "float32_kinds.json")["products"]
    body = [
        (x["what"], " x ".join(map(str, x["sizes"])), f"{x['us']:.0f}", f"{x['ratio']:.2f}", f"{x['error']:.1e}",
         f"{x['torch_error']:.1e}")
        for x in found
    ]  # fmt: skip
    return tables.rows(("operands", "m x n x k", "us", "torch / gemmhub", "error", "torch"), body)
