"""Problems for tests: gemmhub.testing's, on a GPU."""

from __future__ import annotations

from gemmhub.capability import Device
from gemmhub.testing import problems
from gemmhub.testing.problems import bias, operand

__all__ = ["bias", "operand", "problem"]


def problem(m=64, n=64, k=64, dtype="bfloat16", *more, **changes):
    return problems.problem(m, n, k, dtype, *more, **{"device": Device("cuda"), **changes})
