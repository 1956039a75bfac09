"""The model of a few vectors by a matrix."""

from __future__ import annotations

import pytest
from gemmhub_hopper import choose, lower
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
