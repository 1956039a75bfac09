"""Estimates the time of a product: arithmetic or memory traffic, whichever takes longer, and the launches.

It ranks these backends among others before anything is measured; tuning replaces it. The rates are published
measurements of large products on one card of each architecture (MTT S4000 for mp_22, S5000 for mp_31), or the vendor's
peak where no measurement is published; gemmhub has measured none of them. Without a figure there is no estimate.
"""

from __future__ import annotations

from gemmhub.problem import GemmProblem

LAUNCH = 6.3e-6
"""Seconds for a launch, as published for the S5000."""

_RATE: dict[tuple[int, int], dict[str, float]] = {
    (2, 1): {"float32": 15.2e12},
    (2, 2): {
        "float16": 86.0e12, "bfloat16": 86.0e12, "tf32": 50e12, "float32": 13.8e12, "float64": 0.16e12, "int8": 200e12,
    },
    (3, 1): {"float16": 384.7e12, "bfloat16": 296.5e12, "tf32": 158.9e12, "float32": 24.4e12, "int8": 446.4e12},
}  # fmt: skip
"""Operations a second, by compute capability and kind of operands."""
_FP8 = {(3, 1): 713.5e12}
_BANDWIDTH = {(2, 1): 448e9, (2, 2): 768e9, (3, 1): 1422e9}
"""Memory bandwidth in bytes a second, by compute capability."""


def seconds(
    problem: GemmProblem, arch: tuple[int, int] | None, launches: int, extra_bytes: float = 0.0
) -> float | None:
    """Return the seconds of a call with ``launches`` that moves ``extra_bytes`` besides; None without a known rate."""
    rate = _rate(problem, arch) if arch else None
    if arch is None or rate is None:
        return None
    traffic = (problem.nbytes + extra_bytes) / _BANDWIDTH[arch]
    return max(problem.flops / rate, traffic) + LAUNCH * max(1, launches)


def _rate(problem: GemmProblem, arch: tuple[int, int]) -> float | None:
    rates = _RATE.get(arch)
    if rates is None:
        return None
    name = problem.a.dtype.name
    if name.startswith("float8"):
        return _FP8.get(arch)
    if name == "float32" and problem.permits_tf32:
        return rates.get("tf32", rates["float32"])
    return rates.get({"complex64": "float32", "complex128": "float64"}.get(name, name))
