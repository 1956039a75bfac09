"""Every kernel for quantization compiles without spills, on cards with and without the instructions of float8."""

from __future__ import annotations

from itertools import cycle

import pytest
from compilations import one_of, sample
from gemmhub_cuda.quantize import BLOCKS, CONVERT, GIVEN, MAXIMA, ROWS, SIDE, Variant
from quantizing import INPUTS, TARGETS

pytestmark = pytest.mark.compiler

CARDS = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
GROUPS = {
    BLOCKS: [(1, SIDE), (SIDE, 1), (SIDE, SIDE)], ROWS: [(1, 0)], MAXIMA: [(0, 0), (0, 1)],
    CONVERT: [(0, 0), (0, 1)], GIVEN: [(0, 0), (1, 0), (0, 1), (1, SIDE), (SIDE, 1), (SIDE, SIDE)],
}  # fmt: skip
"""The groups of each step."""


def cases():
    """(variant, capability): each step and group for all dtypes, the cards in turn."""
    cards, found = cycle(CARDS), []
    for step, groups in GROUPS.items():
        for group in groups:
            for name in INPUTS:
                for target in TARGETS:
                    teams = (32, 128, 512) if step == ROWS else (0,)
                    found += [(Variant(step, group, name, target, team), next(cards)) for team in teams]
    return found


def words(case):
    variant, card = case
    group = "x".join(map(str, variant.group))
    return f"{variant.step}-{group}-{variant.input}-{variant.target}-{variant.team}-sm{card[0]}{card[1]}"


@pytest.mark.parametrize("case", sample(cases()), ids=words)
def test_compiles(case):
    variant, _ = case
    made = one_of(sample(cases()), case)
    assert made.spilled == 0, made.log
    assert -(-made.registers // 8) * 8 * variant.threads * variant.ctas_per_sm <= 65536
