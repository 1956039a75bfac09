"""Small products with an epilogue: one element, where every step makes a new array, and more, where none does."""

from __future__ import annotations

import numpy as np
import pytest
from products import C64, F32, F64, draw, ratio

import gemmhub


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
