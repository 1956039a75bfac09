"""Estimates the time of a product: arithmetic or memory traffic, whichever takes longer, and a launch.

The estimate ranks muDNN among other backends before anything is measured; tuning replaces it. gemmhub has not measured
muDNN on a card: the rates are those that public sources give for the cards of each architecture.
"""

from __future__ import annotations

from gemmhub.problem import GemmProblem

LAUNCH = 1.2e-5
"""Seconds for a product without work, host time included."""
_EFFICIENCY = 0.6
"""The fraction of the published rate that large products reach."""

_RATES = {
    # Cards of the architecture: operations a second of tensor cores (float16, bfloat16), as TF32, of float32; bytes/s.
    (2, 1): (15e12, 15e12, 15e12, 448e9),  # S80, S3000
    (2, 2): (100e12, 50e12, 25e12, 768e9),  # S4000
    (3, 1): (384e12, 159e12, 24e12, 1600e9),  # S5000
}
_UNKNOWN = _RATES[2, 2]


def seconds(problem: GemmProblem, arch: tuple[int, int] | None, launches: int) -> float:
    """Return the seconds for a call with ``launches`` products on a device of compute capability ``arch``."""
    half, tf32, single, bandwidth = _RATES.get(arch or (0, 0), _UNKNOWN)
    rate = half if problem.a.dtype.itemsize == 2 else tf32 if problem.permits_tf32 else single
    return max(problem.flops / (_EFFICIENCY * rate), problem.nbytes / bandwidth) + LAUNCH * max(1, launches)
