"""The model of a few vectors by a matrix."""

from __future__ import annotations

import pytest
from gemmhub_hopper.cost import choose
from gemmhub_hopper.cost.model import Card
from gemmhub_hopper.lowering import lower
from problems import H200, problem


@pytest.mark.parametrize("m", [1, 8])
@pytest.mark.parametrize("b", ["row", "col"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_large_matrices_take_what_memory_allows(m, b, dtype):
    """Of one vector; several may be slower, but not faster."""
    ((seconds, choice), *_) = choose.vectors(lower.lowerings(problem(m, 16384, 8192, dtype, b=b)), H200)
    assert 0.95 < seconds / (choice.moved_bytes / H200.bandwidth) < (1.3 if m == 1 else 4)


def test_many_rows_have_none():
    assert choose.vectors(lower.lowerings(problem(16, 64, 64)), H200) == []


def test_tiles_of_few_float32_rows_are_bound_by_memory():
    """Corrected estimates were below it."""
    card = Card(sms=132, clock=1.98e9, bandwidth=3.35232e12, name="NVIDIA H100 80GB HBM3")
    lowerings = tuple(x for x in lower.lowerings(problem(8, 28672, 8192, "float32")) if x.form.input == "split")
    assert choose.choices(lowerings, card, 300 * 2**20)[0][0] > 4 * 28672 * 8192 / (0.85 * card.bandwidth)
    ((_, choice), *_) = choose.vectors(lowerings, card)
    assert choice.kernel.staged
