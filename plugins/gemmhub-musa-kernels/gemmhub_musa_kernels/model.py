"""A cost model, to rank the kernels among other backends before anything is measured; tuning replaces it.

The rates are those that public measurements give for kernels of the same make on an MTT S4000; this project has
measured none. For other cards there are none, and no estimate.
"""

from __future__ import annotations

from gemmhub.problem import GemmProblem
from gemmhub_musa_kernels.choose import PIPELINED, SCALAR, WMMA

LAUNCH = 6.3e-6
"""Seconds for a launch, as published for the S5000."""
_RATE = {PIPELINED: 53.6e12, WMMA: 3.6e12, SCALAR: 0.5e12}
"""Operations a second on mp_22. That of the scalar kernel is a guess from what its reads of L2 can amount to."""
_BANDWIDTH = 768e9
"""Bytes a second."""


def seconds(problem: GemmProblem, arch: str, kernel: str, copied_bytes: int, launches: int) -> float | None:
    """A call with that many launches, which writes and reads ``copied_bytes`` besides; None where nothing is known."""
    if arch != "mp_22":
        return None
    traffic = problem.nbytes + 3.0 * copied_bytes
    return max(problem.flops / _RATE[kernel], traffic / _BANDWIDTH) + LAUNCH * launches
