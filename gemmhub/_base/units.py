"""Formatting of times, rates and ratios: three significant digits with a unit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


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
