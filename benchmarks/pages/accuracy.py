"""The tables of docs/accuracy.md: the bounds of gemmhub.accuracy, and how often spot_check finds a planted error."""

from __future__ import annotations

import math
import re

from benchmarks.lib import results
from benchmarks.pages.tables import rows
from gemmhub.accuracy import error_model
from gemmhub.dtypes import as_dtype

_SIZES = (64, 1024, 16384)
_CASES = (
    ("float64", "float64", "float64", "float64", "ieee"),
    ("float32, ieee", "float32", "float32", "float32", "ieee"),
    ("float32, bf16x3", "float32", "float32", "float32", "bf16x3"),
    ("float32, tf32", "float32", "float32", "float32", "tf32"),
    ("float32, bf16", "float32", "float32", "float32", "bf16"),
    ("float16 -> float32", "float16", "float32", "float32", "ieee"),
    ("float16", "float16", "float16", "float32", "ieee"),
    ("bfloat16", "bfloat16", "bfloat16", "float32", "ieee"),
    ("float8 by float8 -> float16", "float8_e4m3fn", "float16", "float32", "ieee"),
    ("complex64, ieee", "complex64", "complex64", "complex64", "ieee"),
    ("int8 -> int32", "int8", "int32", "int32", "ieee"),
)
"""What is shown, the operands' dtype, the result's, the accumulator's, and precision."""


def _power(x: float) -> str:
    """A power of 2, or 2.5 times one, as the derivation writes it; products of two roundings are within 1 % of one."""
    for factor, words in ((1.0, ""), (2.5, "2.5 * ")):
        exponent = math.log2(x / factor) if x else 0.0
        if x and abs(exponent - round(exponent)) < 0.01:
            return f"{words}2^{round(exponent)}"
    return f"{x:.2g}" if x else ""


def bounds() -> list[str]:
    """Return the constants of the contract, and relative(k) for a few k."""
    body = []
    for words, operand, result, compute, precision in _CASES:
        dtypes = (as_dtype(operand), as_dtype(operand), as_dtype(result), as_dtype(compute))
        model = error_model(*dtypes, precision=precision)
        constants = ("exact", "", "") if model.exact else map(_power, (model.accumulate, model.input, model.output))
        body.append((words, *constants, *(f"{model.relative(k):.1e}" if model.relative(k) else "0" for k in _SIZES)))
    return rows(("operands -> result, precision", "u", "input", "u_out", *(f"relative({k})" for k in _SIZES)), body)


def power() -> list[str]:
    """Return how many planted errors spot_check found, by the size of the error in bounds of its element."""
    text = (results.FOLDER / "cpu" / "spot_check_power.txt").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for dtype, line in re.findall(r"^(\w+) +1024 positions, errors in bounds: (.*)$", text, re.MULTILINE):
        found[dtype] = dict(re.findall(r"([\d.]+): ([\d.]+%) \(", line))
    sizes = next(iter(found.values()))
    head = ("error planted, in bounds of its element", *found)
    return rows(head, ((size, *(found[dtype][size] for dtype in found)) for size in reversed(sizes)))
