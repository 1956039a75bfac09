"""The tables of docs/quantization.md, made from :mod:`gemmhub.scale_layouts` and from what backends take."""

from __future__ import annotations

import importlib
from statistics import geometric_mean

from benchmarks.lib import results
from benchmarks.pages.tables import rows
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.scale_layouts import LAYOUTS, REFUSED

_BACKENDS = {
    "gemmhub-cpu": "gemmhub_cpu.backend:CpuBackend",
    "gemmhub-cublas": "gemmhub_cublas.backend:CublasBackend",
    "gemmhub-cuda": "gemmhub_cuda.backend:CudaBackend",
    "gemmhub-hopper": "gemmhub_hopper.backend:HopperBackend",
}
"""The plugins that multiply float8 or int8 operands, with their backends."""
_COLUMNS = {
    "tensor": ("tensor", "tensor"), "row by column": ("row", "column"), "1x128 by 128x128": ("1x128", "128x128"),
    "1x128 by 128x1": ("1x128", "128x1"), "batch": ("batch row", "batch column"),
}  # fmt: skip
"""Pairs of granularities of a and b, as :attr:`gemmhub.backend.Backend.takes` names them."""


def layouts() -> list[str]:
    """Return one row for each layout that is converted."""

    def shape(dimensions: tuple[str, ...] | None) -> str:
        if dimensions is None:
            return ""
        return f"({', '.join(dimensions)}{',' * (len(dimensions) == 1)})" if dimensions else "one element"

    body = [(f"`{name}`", shape(x.a), shape(x.b)) for name, x in LAYOUTS.items()]
    return rows(("layout", "scale of a", "scale of b"), body)


def refused() -> list[str]:
    """Return one row for each reason, with the layouts that are refused for it."""
    reasons = dict.fromkeys(REFUSED.values())
    return rows(
        ("refused", "reason"),
        ((", ".join(f"`{name}`" for name, x in REFUSED.items() if x == reason), reason) for reason in reasons),
    )


def backends() -> list[str]:
    """Return which backend takes which granularity, by what each declares."""
    takers = {"built in (NumPy)": NumpyBackend.takes}
    for plugin, where in _BACKENDS.items():
        module, _, name = where.partition(":")
        takers[plugin] = getattr(importlib.import_module(module), name).takes

    def taken(takes: dict[str, frozenset[str] | None], operand: str, form: str) -> bool:
        forms = takes.get(operand, frozenset())
        return forms is None or form in forms

    body = []
    for words, takes in takers.items():
        pairs = (taken(takes, "scale_a", a) and taken(takes, "scale_b", b) for a, b in _COLUMNS.values())
        of_result = (taken(takes, name, "tensor") for name in ("scale_out", "amax"))
        body.append((words, *("yes" if x else "" for x in (*pairs, *of_result))))
    return rows(("backend", *_COLUMNS, "`scale_out`", "`amax`"), body)


def on_a_card() -> list[str]:
    """Return the times of torch over gemmhub's by granularity and rows, on an H100."""
    found = results.load(results.FOLDER / "h100" / "scaled.json.xz")["rows"]
    body = []
    for granularity, size in dict.fromkeys((row["granularity"], row["rows"]) for row in found):
        mine = [row["us"] for row in found if (row["granularity"], row["rows"]) == (granularity, size)]
        cells = []
        for name in ("torch", "torch fast"):
            ratios = [us[name] / us["gemmhub"] for us in mine if name in us]
            cells.append(f"{geometric_mean(ratios):.2f} ({min(ratios):.2f})" if ratios else "refused")
        body.append((granularity, size, len(mine), *cells))
    return rows(("scales", "rows", "products", "torch, slow accumulation", "torch, fast accumulation"), sorted(body))


def fast_accumulation() -> list[str]:
    """Return the largest errors over the bound by k, of torch's two accumulations and of gemmhub, on an H100."""
    found = results.load(results.FOLDER / "h100" / "fast_accumulation.json.xz")["rows"]
    names = ("torch fast", "torch", "gemmhub")
    body = [
        (row["k"], *(f"{row['of_bound'][name]:.2g}" for name in names))
        for row in found
        if row["data"] == "uniform" and row["k"].bit_length() % 2 == 1
    ]
    return rows(("k", "torch, fast accumulation", "torch, slow accumulation", "gemmhub"), body)


def models_on_a_card() -> list[str]:
    """Return the times of a model in bfloat16 by torch over those of quantized ones, on an H100."""
    found = results.load(results.FOLDER / "h100" / "quantized_model.json.xz")["rows"]
    calls = list(dict.fromkeys((row["call"], row["size"]) for row in found))
    kinds = [kind for kind in dict.fromkeys(row["kind"] for row in found) if kind != "torch bfloat16"]
    times = {(row["kind"], (row["call"], row["size"])): 1 / row["of_torch"] for row in found}
    body = [(kind, *(f"{times[kind, call]:.2f}" for call in calls)) for kind in kinds]
    return rows(("layers", *(f"{call}, {size}" for call, size in calls)), body)


def kernels_on_a_card() -> list[str]:
    """Return how quantization by kernels compares with a copy and with torch's operations, on an H100."""
    found = results.load(results.FOLDER / "h100" / "quantize.json.xz")["rows"]
    body = []
    for words, large in (("2^25 and more", True), ("2^20 to 2^25", False)):
        some = [row for row in found if (row["rows"] * row["columns"] >= 2**25) == large]
        for granularity in sorted({row["granularity"] for row in some}):
            mine = [row["us"] for row in some if row["granularity"] == granularity]
            cells = []
            for name in ("copy", "torch"):
                ratios = [us[name] / us["gemmhub"] for us in mine]
                cells.append(f"{geometric_mean(ratios):.2f} ({min(ratios):.2f})")
            body.append((granularity, words, len(mine), *cells))
    return rows(("granularity", "elements", "arrays", "copy", "torch's operations"), body)
