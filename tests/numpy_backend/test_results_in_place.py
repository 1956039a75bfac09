"""Results that NumPy's matmul does not write where they are."""

from __future__ import annotations

import numpy as np
import pytest

import gemmhub


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize(("m", "n"), [(1, 6), (6, 1), (1, 1), (3, 4)])
@pytest.mark.parametrize("field", ["before", "after"])
def test_complex_fields_of_structured_arrays(dtype, m, n, field):
    """Their distances are no multiples of their size: NumPy rounds them down where the result is a row or a column."""
    rng = np.random.default_rng()
    a, b = (rng.integers(-9, 10, shape) + 1j * rng.integers(-9, 10, shape) for shape in ((m, 7), (7, n)))
    a, b = a.astype(dtype), b.astype(dtype)
    fields = [("z", dtype), ("other", f"f{a.itemsize // 2}")]
    records = np.full((m, n), 5, fields[:: 1 if field == "before" else -1])
    for _ in range(3):  # described, learned, warm
        records["z"] = 0
        assert gemmhub.matmul(a, b, out=records["z"]) is not None
        assert np.array_equal(records["z"], a @ b)
        assert (records["other"] == 5).all()
    plan = gemmhub.plan(a, b, out=records["z"], backend="numpy")
    records["z"] = 0
    plan(a, b, records["z"])
    assert np.array_equal(records["z"], a @ b)
