"""Arrays whose products run on gemmhub in code that is written for NumPy."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from products import BF16, C64, F16, F32, F64, I8, I32, I64, draw, ratio

import gemmhub
import gemmhub.numpy
from gemmhub.errors import DTypeError, InputError
from gemmhub.numpy import HubArray, asarray

PRODUCTS = {
    "@": lambda a, b: a @ b,
    "matmul": np.matmul,
    "dot": np.dot,
    "method": lambda a, b: a.dot(b),
    "tensordot": lambda a, b: np.tensordot(a, b, 1),
    "tensordot axes": lambda a, b: np.tensordot(a, b, ([1], [0])),
    "inner": lambda a, b: np.inner(a, b.T),
    "einsum": lambda a, b: np.einsum("ij,jk->ik", a, b),
    "einsum, transposed": lambda a, b: np.einsum("ij, jk -> ki", a, b).T,
    "einsum, no arrow": lambda a, b: np.einsum("ij,jk", a, b),
    "out": lambda a, b: np.matmul(a, b, out=np.zeros((7, 5), gemmhub.matmul(a, b).dtype)),
    "dtype": lambda a, b: np.matmul(a, b, dtype=gemmhub.matmul(a, b).dtype),
    "gemmhub": gemmhub.matmul,
}


@pytest.fixture
def calls(monkeypatch):
    """How often gemmhub multiplied."""
    from gemmhub._doors import numpy_subclass

    seen = []

    def matmul(*operands, **options):
        seen.append(options)
        assert type(operands[0]) is np.ndarray
        return gemmhub.matmul(*operands, **options)

    spy = SimpleNamespace(matmul=matmul, explain=gemmhub.explain, pack=gemmhub.pack)
    monkeypatch.setattr(numpy_subclass, "api", spy)
    return seen


@pytest.mark.parametrize("which", ["both", "left", "right"])
@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, C64, I8, I64], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, dtype, which, calls, rng):
    x, y = draw(rng, (7, 33), dtype), draw(rng, (33, 5), dtype)
    a = asarray(x) if which != "right" or name == "method" else x
    b = asarray(y) if which != "left" else y
    got = PRODUCTS[name](a, b)
    assert calls
    assert type(got) is (np.ndarray if name == "out" else HubArray)
    expected = gemmhub.matmul(x, y)
    assert got.dtype == expected.dtype
    assert ratio(np.asarray(got).view(np.ndarray), x, y) <= 1


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))), ("bij,bkj->kbi", ((2, 3, 4), (2, 5, 4))),
     ("abc,dbc->ad", ((2, 3, 4), (5, 3, 4))), ("i,i->", ((6,), (6,))), ("ij,j->i", ((3, 4), (4,))),
     ("ab,cab->c", ((3, 4), (2, 3, 4)))],
)  # fmt: skip
def test_contractions(equation, shapes, calls, rng):
    x, y = (draw(rng, shape, F64) for shape in shapes)
    got = np.einsum(equation, asarray(x), y)
    assert calls
    np.testing.assert_allclose(np.asarray(got), np.einsum(equation, x, y), rtol=1e-12, atol=1e-12)
    assert np.shape(got) == np.einsum(equation, x, y).shape
    out = np.zeros(np.shape(got))
    assert np.einsum(equation, asarray(x), y, out=out) is out
    np.testing.assert_allclose(out, np.asarray(got))


@pytest.mark.parametrize("axes", [0, 1, 2, (0, 0), ((0, 1), (0, 1)), ((1, 0), (1, 0)), (-1, -1)], ids=str)
def test_tensordot(axes, rng):
    x, y = draw(rng, (3, 4), F64), draw(rng, (3, 4) if axes != 1 else (4, 3), F64)
    got, expected = np.tensordot(asarray(x), asarray(y), axes), np.tensordot(x, y, axes)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-12)
    assert np.shape(got) == expected.shape


@pytest.mark.parametrize(
    "shapes", [((3, 0), (0, 4)), ((0, 3), (3, 4)), ((2, 3, 4), (5, 4, 2)), ((4,), (3, 4, 2))], ids=str
)
def test_dot_of_other_shapes(shapes, rng):
    x, y = (draw(rng, shape, F64) for shape in shapes)
    np.testing.assert_allclose(np.asarray(np.dot(asarray(x), y)), np.dot(x, y), rtol=1e-12)


NUMPYS = {
    "objects": lambda x: asarray(x.astype(object)) @ x.astype(object).T,
    "scalar": lambda x: np.dot(x, 2.0),
    "ellipsis": lambda x: np.einsum("...ij,...kj->...ik", x, x),
    "three operands": lambda x: np.einsum("ij,kj,kl->il", x, x, x),
    "diagonal": lambda x: np.einsum("ii->i", x[:3, :3]),
    "axes": lambda x: np.matmul(x, x, axes=[(0, 1), (1, 0), (0, 1)]),
    "sum": lambda x: x.sum(0),
    "sqrt": lambda x: np.sqrt(abs(x)),
    "inverse": lambda x: np.linalg.inv(x[:3, :3]),
    "multi_dot": lambda x: np.linalg.multi_dot([x, x.T, x]),
    "in place": lambda x: np.add(x, x, out=x),
    "two results": lambda x: np.divmod(x, 2.0)[1],
    "reduce": lambda x: np.add.reduce(x),
    "where": lambda x: np.where(x > 0, x, -x),
}


@pytest.mark.parametrize("name", NUMPYS)
def test_everything_else_is_numpys(name, rng):
    x = draw(rng, (3, 4), F64)
    got, expected = NUMPYS[name](asarray(x.copy())), NUMPYS[name](x.copy())
    np.testing.assert_allclose(np.asarray(got).astype(float), np.asarray(expected).astype(float), rtol=1e-12)


def test_views_share_memory_and_pickle(rng):
    x = draw(rng, (3, 4), F32)
    a = asarray(x)
    assert np.shares_memory(a, x)
    assert type(a[1:]) is type(a.T) is type(a + 1) is type(pickle.loads(pickle.dumps(a))) is HubArray
    assert asarray([[1, 2]], "bfloat16").dtype == BF16
    with pytest.raises(DTypeError, match="dtype"):
        asarray(x, "datetime64[s]")
    a[0, 0] = 7
    assert x[0, 0] == 7


def test_mistakes_are_named(rng):
    a = asarray(draw(rng, (3, 4), F32))
    with pytest.raises(ValueError, match="a, b"):
        a @ a
    with pytest.raises(ValueError, match="out"):
        np.matmul(a, a.T, out=np.zeros((2, 2), F32))
    with pytest.raises(ValueError, match="shape"):
        np.tensordot(a, a, ([0], [1]))
    with pytest.raises(InputError, match="MaskedArray"):
        gemmhub.matmul(a, np.ma.array(np.asarray(a.T)))


def test_options_and_other_calls(rng):
    x, y = draw(rng, (3, 4), I8), draw(rng, (4, 5), I8)
    a, b = asarray(x), asarray(y)
    got = gemmhub.matmul(a, b, alpha=2, out_dtype=I64)
    assert type(got) is HubArray
    assert np.array_equal(got, 2 * (x.astype(int) @ y.astype(int)))
    out = np.zeros((3, 5), I32)
    assert gemmhub.matmul(a, b, out=out) is out
    assert gemmhub.explain(a, b).chosen == "numpy"
    assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b)).ok


def test_other_arrays_are_as_before(rng):
    x = draw(rng, (3, 3), I8)
    before = x @ x
    asarray(x) @ asarray(x)
    assert (x @ x).dtype == before.dtype == I8
    assert np.array_equal(x @ x, before)
