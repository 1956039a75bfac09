"""Problems for tests: gemmhub.testing's, on a GPU."""

from __future__ import annotations

from gemmhub_hopper.cost.model import Card

from gemmhub.capability import Device
from gemmhub.testing import problems
from gemmhub.testing.problems import bias, operand

__all__ = ["H200", "LIMIT", "bias", "operand", "problem"]

H200 = Card(sms=132, clock=1.98e9, bandwidth=4.8e12)
LIMIT = 64 * 2**20
"""Bytes of workspace."""


def problem(m=64, n=64, k=64, dtype="bfloat16", *more, **changes):
    return problems.problem(m, n, k, dtype, *more, **{"device": Device("cuda"), **changes})
