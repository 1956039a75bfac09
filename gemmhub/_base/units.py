"""Times, rates and ratios as text, with three significant digits and a unit; sizes of memory from text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from gemmhub.errors import InputError

_BYTES = {
    "": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
"""Bytes of each unit of memory."""


def number(value: float) -> str:
    """``value`` with three significant digits and no exponent."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def rate_unit(gflops: Iterable[float | None]) -> tuple[str, float]:
    """The unit for rates in GFLOP/s, and the factor to it."""
    large = max((rate for rate in gflops if rate is not None), default=0.0) >= 1e4
    return ("TFLOP/s", 1e-3) if large else ("GFLOP/s", 1.0)


def multiple(ratio: float | None) -> str:
    """A ratio: "0.97x", "12.3x", "312x"."""
    if ratio is None:
        return "-"
    return f"{ratio:.2f}x" if 0.1 <= ratio < 9.995 else f"{number(ratio)}x"


def duration(seconds: float | None) -> str:
    """Seconds with a fitting unit: "1.25 ms"."""
    if seconds is None:
        return "-"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= 0.9995 * scale:
            return f"{number(seconds / scale)} {unit}"
    return f"{number(seconds * 1e9)} ns"


def resolved(x: Any, bound: float) -> str:
    """``x`` with six digits, or as many as are needed to resolve a tenth of ``bound``."""
    if isinstance(x, int) or not 0 < bound < math.inf:  # exact numbers are shown as they are
        return str(x)
    size = abs(x)
    digits = math.ceil(math.log10(size) - math.log10(bound) + 2) if 0 < size < math.inf else 0
    return f"{x:.{min(max(6, digits), 17)}g}"


def memory(value: object, argument: str) -> int:
    """A number of bytes: a positive int, or text such as "1GiB" or "512 MB". InputError for others."""
    number: float | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str):
        parts = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
        unit = None if parts is None else _BYTES.get(parts[2])
        number = None if parts is None or unit is None else float(parts[1]) * unit
    if number is None or number < 1:
        units = ", ".join(unit for unit in _BYTES if unit)
        raise InputError(
            argument,
            f"{value!r:.80}",
            f"a positive number of bytes, or text with a unit: {units}",
            'for example "1GiB"',
        )
    return int(number)
