"""The tables of docs/cublas.md, made of result files of an H200."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from benchmarks.lib import results
from benchmarks.lib.drawn import LARGE
from benchmarks.pages.tables import rows


def _load(name: str) -> dict[str, Any]:
    record: dict[str, Any] = results.load(results.FOLDER / "h200" / name)
    return record


def parts() -> list[str]:
    """Return how many split-K algorithms leave out a K remainder, and how many products torch.matmul gets wrong."""
    columns = ("right, taken", "wrong, not taken", "right, not taken", "torch.matmul wrong")
    files = {
        "bfloat16": "cublas_parts_bfloat16.json.xz", "float16": "cublas_parts_float16.json.xz",
        "float32": "cublas_parts_float32.json.xz", "tf32": "cublas_parts_tf32.json.xz",
    }  # fmt: skip
    body = []
    for dtype, name in files.items():
        counts = _load(name)["counts"]
        assert set(counts) <= {"products", *columns}  # none is wrong and taken
        body.append((dtype, counts["products"], *(counts.get(column, 0) for column in columns)))
    return rows(
        ("dtype", "products", "algorithms right, taken", "wrong, refused", "right, refused", "products wrong in torch"),
        body,
    )


def tuning() -> list[str]:
    """Return the speed over torch.matmul of the library's first choice and of the fastest candidate."""
    found = _load("cublas_grid.json.xz")["rows"]
    groups = {
        "all": found,
        "large, from 1e10 operations on": [x for x in found if 2 * x["m"] * x["n"] * x["k"] >= LARGE],
        "small": [x for x in found if 2 * x["m"] * x["n"] * x["k"] < LARGE],
    }
    body = []
    for words, some in groups.items():
        speeds = [geometric_mean([x["torch_us"] / x[name] for x in some]) for name in ("first_us", "best_us")]
        body.append((words, len(some), *(f"{x:.3f}" for x in speeds)))
    return rows(("products", "number", "first choice", "fastest candidate"), body)


def first() -> list[str]:
    """Return in how many products torch.matmul runs the library's first choice."""
    found = _load("cublas_first.json.xz")["rows"]
    same = sum(x["torch_kernels"] == x["first_kernels"] for x in found)
    return rows(("random bfloat16 products", "with the same kernels as `torch.matmul`"), [(len(found), same)])
