"""The NumPy backend promises the bits of rows for sums of integers alone, with epilogues that round each element."""

from __future__ import annotations

import numpy as np
import pytest
from products import F32, I8, I32, draw

import gemmhub
from gemmhub.errors import NoBackendError


def epilogue(rng, n):
    """Operands that rows share."""
    return {
        "alpha": 0.3, "bias": draw(rng, n, F32), "scale_a": F32.type(0.7), "scale_b": rng.random(n).astype(F32),
        "activation": "relu",
    }  # fmt: skip


@pytest.mark.parametrize("with_epilogue", [False, True])
def test_rows_have_the_same_bits_in_any_product(rng, with_epilogue):
    m, n, k = 700, int(rng.integers(1, 200)), int(rng.integers(1, 3000))
    a, b = draw(rng, (m, k), I8), draw(rng, (k, n), I8)
    options = {"out_dtype": F32, "reproducible": "batch", **(epilogue(rng, n) if with_epilogue else {})}
    whole = gemmhub.matmul(a, b, **options)
    for count in (1, 2, 31, 300):
        rows = rng.integers(0, m, count)
        assert np.array_equal(gemmhub.matmul(a[rows], b, **options), whole[rows])
        assert np.array_equal(gemmhub.matmul(np.asfortranarray(a[rows]), np.asfortranarray(b), **options), whole[rows])
    stack = gemmhub.matmul(a.reshape(7, 100, k), b, **options)
    assert np.array_equal(stack.reshape(m, n), whole)
    assert np.array_equal(gemmhub.matmul(a[5], b, **options), whole[5])


def test_exponential_functions_are_refused(rng):
    a, b = draw(rng, (3, 8), I8), draw(rng, (8, 4), I8)
    options = {"out_dtype": F32, "reproducible": "batch", "backend": "numpy"}
    with pytest.raises(NoBackendError, match="does not promise that its exponential function, which silu needs"):
        gemmhub.matmul(a, b, activation="silu", **options)
    gemmhub.matmul(a, b, activation="silu", out_dtype=F32, reproducible="run")
    assert gemmhub.matmul(a, b, activation="relu", **options).min() >= 0
    assert gemmhub.matmul(a, b, out_dtype=I32, reproducible="batch").dtype == I32
