"""Small products with an epilogue: one element, where every step makes a new array, and more, where none does."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from products import BF16, C64, F16, F32, F64, draw, ratio

import gemmhub


@pytest.mark.parametrize("n", [1, 8, 64, 300])
@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64], ids=str)
def test_finite_results_warn_of_nothing(dtype, n):
    """Also where an intermediate of gelu or silu overflows, and where NaN is multiplied by an alpha of 0."""
    least = {F16: -3e4, BF16: -1e20, F32: -1e20, F64: -1e200}[dtype]
    for value in (-3000, least, -least):
        a, b = np.full((n, 1), value, dtype), np.ones((1, n), dtype)
        for activation in ("relu", "gelu", "silu"):
            with warnings.catch_warnings(record=True) as caught:  # as errors they would only change the kernel
                warnings.simplefilter("always")
                got = gemmhub.matmul(a, b, activation=activation, bias=np.zeros(n, dtype))
            assert not caught
            assert ratio(got, a, b, activation=activation) <= 1
            assert got[0, 0] == max(a[0, 0], 0)
    a = np.full((n, 1), np.inf, dtype)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = gemmhub.matmul(a, np.zeros((1, n), dtype), alpha=0, c=np.ones((n, n), dtype), beta=1)
    assert not caught
    assert (got == 1).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1), (4, 5)], ids=str)
@pytest.mark.parametrize("dtype", [F32, F64, C64], ids=str)
@pytest.mark.parametrize("alpha", [1, 2.5, 0])
@pytest.mark.parametrize("over", [None, "c", "bias", "a"])
def test_every_part_of_the_epilogue(shape, dtype, alpha, over, rng):
    m, n = shape
    for beta in (0.5, 1):
        for activation in (None, "relu", "silu") if dtype != C64 else (None,):
            for _ in range(2):  # decided, and seen before
                a, b, c, bias = (draw(rng, size, dtype) for size in ((m, n), (n, n), (m, n), (1, n)))
                given = {"alpha": alpha, "beta": beta, "activation": activation}
                taken = {"a": a, "b": b, "c": c, "bias": bias}
                out = None
                if over is not None:
                    if taken[over].shape != (m, n):
                        continue
                    out = taken[over]
                before = {name: x.copy() for name, x in taken.items()}
                got = gemmhub.matmul(a, b, out=out, c=c, bias=bias, **given)
                assert out is None or got is out
                assert type(got) is np.ndarray
                assert ratio(got, before["a"], before["b"], c=before["c"], bias=before["bias"], **given) <= 1
                for name, x in taken.items():
                    assert x is out or np.array_equal(x, before[name])
