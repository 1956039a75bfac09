"""linear and bmm: products by the conventions of other frameworks."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from products import BF16, F16, F32, F64, I8, draw, ratio, relaid

import gemmhub
from gemmhub._call.options import DEFAULTS
from gemmhub.errors import DTypeError, InputError, ShapeError


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, I8], ids=str)
@pytest.mark.parametrize("leading", [(), (1,), (7,), (2, 3), (0, 3)], ids=str)
def test_linear(leading, dtype, rng):
    x, weight = draw(rng, (*leading, 33), dtype), draw(rng, (5, 33), dtype)
    bias = draw(rng, (5,), gemmhub.matmul(x, weight.T).dtype)
    for a, b in ((x, weight), (relaid(rng, x)[0], relaid(rng, weight)[0])):
        assert ratio(gemmhub.linear(a, b), x, weight.T) <= 1
        got = gemmhub.linear(a, b, bias)
        assert got.shape == (*leading, 5)
        assert ratio(got, x, weight.T, bias=bias) <= 1


def test_linear_takes_the_options_of_matmul(rng):
    x, weight, bias, c = (draw(rng, shape, F32) for shape in ((4, 6), (8, 6), (8,), (4, 8)))
    out = np.zeros((4, 8), F32)
    got = gemmhub.linear(x, weight, bias=bias, out=out, activation="relu", alpha=2, beta=3, c=c, backend="numpy")
    assert got is out
    expected = gemmhub.matmul(x, weight.T, bias=bias, activation="relu", alpha=2, beta=3, c=c, backend="numpy")
    np.testing.assert_array_equal(got, expected)
    assert gemmhub.linear(x, weight, activation="swiglu").shape == (4, 4)
    assert gemmhub.linear(x, weight, out_dtype="float64").dtype == F64
    assert gemmhub.linear(x.tolist(), weight.tolist(), [1.0] * 8).shape == (4, 8)
    names = list(inspect.signature(gemmhub.linear).parameters)
    assert names[:4] == ["x", "weight", "bias", "out"]
    assert set(names) == {"x", "weight", "out", *DEFAULTS} - {"symmetric"}


def test_mistakes_of_linear_are_named(rng):
    x, weight = np.ones((4, 6), F32), np.ones((8, 6), F32)
    with pytest.raises(ShapeError, match=r"x, weight: shapes \(4, 6\) and \(6, 8\); allowed: \(\.\.\., in_features\)"):
        gemmhub.linear(x, weight.T)
    with pytest.raises(ShapeError, match=r"weight: shape \(6,\); allowed: shape \(out_features, in_features\)"):
        gemmhub.linear(x, weight[0])
    with pytest.raises(ShapeError, match="x, weight"):
        gemmhub.linear(F32.type(2), weight)
    for bias in (np.ones(6, F32), np.ones((1, 8), F32), np.ones((4, 1), F32)):
        with pytest.raises(ShapeError, match=r"bias: shape .*; allowed: shape \(8,\)"):
            gemmhub.linear(x, weight, bias)
    with pytest.raises(InputError, match=r"weight: a packed operand; .*gemmhub\.matmul\(x, packed, bias=bias\)"):
        gemmhub.linear(x.astype(F16), gemmhub.pack(weight.astype(F16).T))
    with pytest.raises(InputError, match="weight: a NoneType"):
        gemmhub.linear(x, None)
    with pytest.raises(DTypeError):
        gemmhub.linear(x, weight, out_dtype="int8")
    with pytest.raises(TypeError, match="'tile'"):
        gemmhub.linear(x, weight, tile=3)


@pytest.mark.parametrize("dtype", [F16, F32, I8], ids=str)
@pytest.mark.parametrize("sizes", [(1, 2, 3, 4), (5, 3, 33, 2), (0, 2, 3, 4), (3, 2, 0, 4)], ids=str)
def test_bmm(sizes, dtype, rng):
    batch, m, k, n = sizes
    x, y = draw(rng, (batch, m, k), dtype), draw(rng, (batch, k, n), dtype)
    got = gemmhub.bmm(x, y)
    assert got.shape == (batch, m, n)
    assert ratio(got, x, y) <= 1
    out = np.zeros_like(got)
    assert gemmhub.bmm(x, y, out=out, alpha=2) is out
    assert ratio(out, x, y, alpha=2) <= 1


def test_mistakes_of_bmm_are_named():
    x = np.ones((2, 3, 4))
    with pytest.raises(ShapeError, match=r"b: 2 dimensions; allowed: 3 dimensions\. gemmhub\.matmul takes any number"):
        gemmhub.bmm(x, x[0].T)
    with pytest.raises(ShapeError, match=r"a, b: batch sizes 2 and 1; allowed: equal ones\. gemmhub\.matmul"):
        gemmhub.bmm(x, x[:1].swapaxes(1, 2))
    with pytest.raises(ShapeError, match=r"a, b: .*inner dimensions 4 and 3 differ"):
        gemmhub.bmm(x, x)
