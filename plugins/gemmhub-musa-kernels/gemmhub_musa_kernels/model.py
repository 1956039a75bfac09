"""Estimates the time of a product, to rank the kernels among other backends; tuning replaces it.

The rates are those of public measurements of similar kernels on an MTT S4000; gemmhub has measured none. For other
cards there are no rates, and no estimate.
"""

from __future__ import annotations

from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels.sources import PIPELINED, SCALAR, WMMA

LAUNCH = 6.3e-6
"""Seconds for a launch, as published for the S5000."""
_RATE = {PIPELINED: 53.6e12, WMMA: 3.6e12, SCALAR: 0.5e12}
"""Operations a second on mp_22. The scalar kernel's rate is a guess from its reads of L2."""
_BANDWIDTH = 768e9
"""Memory bandwidth of mp_22 in bytes a second."""


def seconds(problem: GemmProblem, arch: str, kernel: str, copied_bytes: int, launches: int) -> float | None:
    """Return the seconds of a call with ``launches`` that also copies ``copied_bytes``; None without a known rate."""
    if arch != "mp_22":
        return None
    traffic = problem.nbytes + 3.0 * copied_bytes
    return max(problem.flops / _RATE[kernel], traffic / _BANDWIDTH) + LAUNCH * launches
