"""Reads the table that ``mutlass_profiler --output=FILE.csv`` writes, as times of this plugin's candidates.

A row of the profiler is one kernel on one product. It serves where the plugin compiles the same kernel for that
product: the tile, the alignment and the storage orders agree. Other rows are counted by their reason.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from gemmhub.backend import Imported
from gemmhub.capability import Device, Refusal
from gemmhub.dtypes import PRECISIONS, as_dtype, compute_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.operands import Operand, Operands
from gemmhub.problem import GemmProblem
from gemmhub_mutlass.variants import SIMT, TENSOR, TF32, Configuration

_DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "tf32": "float32", "s8": "int8", "s32": "int32",
}  # fmt: skip
_ORDERS = {"row": "row", "column": "col"}
_NUMBERS = ("m", "n", "k", "batch_count", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "cluster_k")
_COLUMNS = (
    "Provider", "OperationKind", "Operation", "Disposition", "Status", *_NUMBERS, "A", "B", "C", "D", "alpha", "beta",
    "op_class", "accum", "Runtime",
)  # fmt: skip
_ALIGNMENT = 256
"""Bytes: the profiler's operands are allocations of their own."""


class _Row(NamedTuple):
    problems: list[GemmProblem]
    """A problem for each precision that calls may allow."""
    candidate: str
    alignment: int
    """Elements in the wider load of a and b; 0 where the kernel's name lacks the number."""
    seconds: float


def read(
    path: Path, device: Device, arch: str, configurations: Callable[[GemmProblem], Sequence[Configuration]]
) -> Imported | Refusal:
    """Read ``path``, measured on a card of ``arch``; ``configurations`` gives the candidates of a problem."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as stream:
            table = csv.DictReader(stream)
            missing = [name for name in _COLUMNS if name not in (table.fieldnames or ())]
            if missing:
                return Refusal(
                    f"it has no column {', '.join(missing)}", "give a file that mutlass_profiler --output has written"
                )
            rows = list(table)
    except (OSError, csv.Error) as error:
        return Refusal(f"it cannot be read: {error}", "give a file that mutlass_profiler --output has written")
    best: dict[tuple[str, str], tuple[GemmProblem, str, float]] = {}
    skipped: Counter[str] = Counter()
    for row in rows:
        found = _row(row, device, arch)
        if isinstance(found, str):
            skipped[found] += 1
            continue
        served = [problem for problem in found.problems if _offered(found, configurations(problem))]
        skipped["the plugin has no such kernel for the problem"] += not served
        for problem in served:
            key = problem.key, found.candidate
            if found.seconds < best.get(key, (None, "", inf))[2]:
                best[key] = problem, found.candidate, found.seconds
    return Imported(tuple(best.values()), +skipped)


def _offered(row: _Row, configurations: Sequence[Configuration]) -> bool:
    return any(x.name == row.candidate and row.alignment in (0, max(x.alignments[:2])) for x in configurations)


def _row(row: Mapping[str, str], device: Device, arch: str) -> _Row | str:
    """Return the measurement in a row, or the reason why it serves no problem."""
    if row["Provider"] != "MUTLASS" or row["OperationKind"] != "gemm":
        return "not a product by MUTLASS's kernels"
    if row["Disposition"] not in ("passed", "not_verified") or row["Status"] != "success":
        return f"disposition {row['Disposition']}, status {row['Status']}"
    built = re.search(r"_mp(\d+)_", row["Operation"])
    if built is not None and f"mp_{built[1]}" != arch:
        return f"a kernel for mp_{built[1]}, the device is {arch}"
    try:
        m, n, k, batch_count, *shape = (int(row[name]) for name in _NUMBERS)
        seconds, alpha, beta = float(row["Runtime"]) / 1e3, float(row["alpha"]), float(row["beta"])
        (a, a_order), (b, b_order), (c, c_order), (d, d_order) = (row[name].split(":") for name in "ABCD")
    except (TypeError, ValueError):  # a line that was cut, or a second header
        return "malformed"
    if not 0 < seconds < inf or min(m, n, k, batch_count) < 1:
        return "no runtime, or an empty product"
    if (c_order, d_order) != ("row", "row"):
        return "the result or C is not row-major"
    if not {a_order, b_order} <= _ORDERS.keys() or not {a, b, c, d} <= _DTYPES.keys():
        return "a layout or dtype that the plugin does not have"
    if shape[3:] != [1, 1, 1]:
        return "a cluster of several blocks"
    batch = () if batch_count == 1 else (batch_count,)

    def operand(name: str, rows: int, cols: int, order: str) -> Operand:
        return Operand(as_dtype(_DTYPES[name]), MatrixLayout.contiguous(rows, cols, batch, _ORDERS[order]), _ALIGNMENT)

    first, second, out = operand(a, m, k, a_order), operand(b, k, n, b_order), operand(d, m, n, d_order)
    compute = compute_dtype(first.dtype, second.dtype, out.dtype)
    if _DTYPES.get(row["accum"]) != compute.name:
        return f"accumulates in {row['accum']}"
    single = first.dtype.name == "float32"
    operands = Operands({"c": operand(c, m, n, c_order) if beta else None})
    problems = [
        GemmProblem(
            m, n, k, first, second, out, compute, batch, operands, alpha_is_one=alpha == 1, precision=precision,
            device=device,
        )
        for precision in (PRECISIONS if single else ("ieee",))
    ]  # fmt: skip
    math = SIMT if row["op_class"] == "simt" else TF32 if single else TENSOR
    alignment = re.search(r"_align(\d+)$", row["Operation"])
    candidate = f"{math}_{'x'.join(map(str, shape[:3]))}"
    return _Row(problems, candidate, int(alignment[1]) if alignment else 0, seconds)
