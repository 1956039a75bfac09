"""The parts of k that a wrong result lacks or has wrong: the product of one block of k at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gemmhub._audit.check import multiply, prepared, runs
from gemmhub._audit.implementation import Implementation, Refused
from gemmhub._audit.judge import Wrong, judge
from gemmhub.testing.case import Case

_BLOCKS = 32
"""Blocks of k at most."""


class Block(NamedTuple):
    """A block of k, [low, high), and whether the product is wrong where a is 0 outside of it."""

    low: int
    high: int
    wrong: bool


def blocks(implementation: Implementation, case: Case) -> list[Block]:
    """Multiply with an a that is 0 outside one block of k, for each block; empty where that cannot be tested."""
    if case.k < 2:
        return []
    found = []
    edges = np.unique(np.linspace(0, case.k, min(case.k, _BLOCKS) + 1).astype(int)).tolist()
    for low, high in pairwise(edges):
        operands = prepared(implementation, case)
        values = np.zeros_like(operands.a.values)
        values[..., low:high] = operands.a.values[..., low:high]
        operands.a.fill(values, None)
        wrong = False
        try:
            for run in runs(implementation, operands):
                operands.poison(case.seed)
                judge(operands, multiply(run), run.label)
        except Wrong:
            wrong = True
        except Refused:
            return []
        found.append(Block(low, high, wrong))
    return found
