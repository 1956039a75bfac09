"""The tables of docs/float32.md: float32 on an H100 over families of data, and over random sizes."""

from __future__ import annotations

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
