"""The tables of docs/cublas.md, made of result files of an H200, and of an H100 for the emulation of float64."""

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


def float64_speed() -> list[str]:
    """Return the speed of emulated float64 products over native ones, and the workspace that they need."""
    body = []
    for x in _float64()["speeds"]:
        times = [f"{x[name] * 1e6:.0f}" for name in ("native", "emulated")]
        body.append((x["size"], f"{x['workspace'] / 2**20:.0f}", x["bits"], *times, f"{x['ratio']:.2f}"))
    return rows(("size", "workspace in MiB", "bits", "native, us", "emulated, us", "native / emulated"), body)


_DATA = {
    "normal": "normal",
    "uniform": "uniform",
    "exponents 8": "normal, times a power of two drawn for each element, 2^-4 to 2^3",
    "exponents 60": "the same, 2^-30 to 2^29",
    "undone 20": "columns of a scaled by 2^-10 to 2^9, rows of b by the inverse",
    "undone 60": "the same, 2^-30 to 2^29",
    "spread 60": "one element of each row of a times 2^60",
    "interleaved 8": "large elements of a meet small ones of b and the reverse, 2^8 apart",
    "interleaved 20": "the same, 2^20 apart",
    "interleaved 40": "the same, 2^40 apart",
    "digits": "the least favourable digits beside one large product",
    "digits 0/1": "the same, the large product among elements that are 0 in a, 1 in b",
    "lost": "small elements of a meet large ones of b, beside one product that counts",
    "zeros": "a zero",
    "an infinity": "one infinity",
    "a NaN": "one NaN",
    "huge": "elements near 10^152",
    "subnormal": "a of subnormal numbers",
}
_MOST_BITS = 79
"""The library computes natively where more bits are needed."""


def float64_errors() -> list[str]:
    """Return the largest errors of float64 products over families of data, as shares of the bound."""
    found, body = {x["data"]: x for x in _float64()["errors"]}, []
    for name, words in _DATA.items():
        bits = found[name]["emulated: bits"]
        ran = f"{bits}" if 0 <= bits <= _MOST_BITS else f"{bits}, native"
        body.append((words, ran, *(f"{found[name][x]:.4f}" for x in ("emulated", "native"))))
    return rows(("data", "bits reported", "error of the emulated call", "of the native one"), body)


def _float64() -> dict[str, Any]:
    record: dict[str, Any] = results.load(results.FOLDER / "h100" / "cublas_float64.json")
    return record
