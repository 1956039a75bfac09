"""Arrays whose products run on gemmhub in code that is written for NumPy."""

from __future__ import annotations

import pickle
from functools import partial
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
    from gemmhub._contractions import contract
    from gemmhub._doors import numpy_subclass

    seen = []

    def matmul(*operands, **options):
        seen.append(options)
        assert type(operands[0]) is np.ndarray
        return gemmhub.matmul(*operands, **options)

    spy = SimpleNamespace(matmul=matmul, explain=gemmhub.explain, pack=gemmhub.pack)
    monkeypatch.setattr(numpy_subclass, "api", spy)
    monkeypatch.setattr(contract, "api", spy)
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


EQUATIONS = (
    "ij,kj->ik", "ij , kj -> ki", "ij,kj", "...ij,...kj->...ik", "...j,kj", "i...,i...->...", "ij,kj->", "ij,kj->i",
    "ij,ij->ij", "ij,ij->", "ij,ij->i", "ij,kl->ijkl", "ij,kl->", "...,...", "...j,...j->...", "ij...,ij...->...",
)  # fmt: skip
SPELLINGS = {
    **{equation: partial(np.einsum, equation) for equation in EQUATIONS},
    "einsum, lists": lambda x, y: np.einsum(x, [0, 1], y, [2, 1], [0, 2]),
    "einsum, lists without a result": lambda x, y: np.einsum(x, [0, 1], y, [2, 1]),
    "einsum, lists with an ellipsis": lambda x, y: np.einsum(x, [..., 1], y, [..., 1], [...]),
    "einsum, optimized": lambda x, y: np.einsum("ij,kj->ik", x, y, optimize=True),
    "einsum, ordered": lambda x, y: np.einsum("ij,kj->ik", x, y, order="F"),
    "einsum, diagonal": lambda x, y: np.einsum("ii,ij->j", x[:, :3], y),
    "einsum of three": lambda x, y: np.einsum("ij,kj,kl->il", x, y, y),
    "einsum of three, optimized": lambda x, y: np.einsum("ij,kj,kl->il", x, y, y, optimize=True),
    "einsum, out": lambda x, y: np.einsum("ij,ij->i", x, y, out=np.zeros(3, accumulated(x))),
    "matmul": lambda x, y: np.matmul(x, y.T),
    "matmul, axes": lambda x, y: np.matmul(x, y, axes=[(0, 1), (1, 0), (0, 1)]),
    "vecdot": lambda x, y: np.vecdot(x, y),
    "vecdot, axis": lambda x, y: np.vecdot(x, y, axis=0),
    "vecdot, out": lambda x, y: np.vecdot(x, y, out=np.zeros(3, accumulated(x))),
    "linalg.vecdot": lambda x, y: np.linalg.vecdot(x, y),
    "linalg.tensordot": lambda x, y: np.linalg.tensordot(x, y, axes=2),
    "matvec": lambda x, y: np.matvec(x, y[0]),
    "vecmat": lambda x, y: np.vecmat(x[:, 0], y),
    "vdot": lambda x, y: np.vdot(x, y),
    "dot": lambda x, y: np.dot(x, y.T),
    "dot of stacks": lambda x, y: np.dot(x[None], y.T[None]),
    "inner": lambda x, y: np.inner(x, y),
    "inner of vectors": lambda x, y: np.inner(x[0], y[0]),
    "tensordot": lambda x, y: np.tensordot(x, y, ([1], [1])),
    "tensordot of nothing": lambda x, y: np.tensordot(x, y, 0),
    "multi_dot": lambda x, y: np.linalg.multi_dot([x, y.T, x]),
    "matrix_power": lambda x, y: np.linalg.matrix_power(x[:, :3], 3),
}  # fmt: skip


def accumulated(x):
    """The dtype of a product of ``x`` by itself."""
    return gemmhub.matmul(np.asarray(x)[:1], np.asarray(x)[:1].T).dtype


@pytest.mark.parametrize("dtype", [I8, np.dtype(np.uint8), F16, BF16, F32, I64], ids=str)
@pytest.mark.parametrize("name", SPELLINGS)
def test_the_dtype_of_a_sum_of_products_does_not_depend_on_its_spelling(name, dtype, rng):
    """Nor do its values: those of 8-bit integers and of 16-bit floats would wrap or be rounded at each step."""
    if name.rpartition(".")[2].partition(",")[0] in {"vecdot", "matvec", "vecmat"} and not hasattr(np, "vecmat"):
        pytest.skip("this NumPy does not have it")
    # Sums of 8-bit integers that leave their range, and of floats at which 16 bits stall: 3200 + 1 is 3200 in float16.
    x, y = np.full((2, 3, 300), 100 if dtype.kind in "iu" else 4)
    if dtype.kind not in "iu":
        x[:, 200:] = y[:, 200:] = 1
    wide = np.dtype(np.int64 if dtype.kind in "iu" else F64)
    expected = SPELLINGS[name](x.astype(wide), y.astype(wide))
    x, y = x.astype(dtype), y.astype(dtype)
    got = SPELLINGS[name](asarray(x), asarray(y))
    assert got.dtype == accumulated(x)
    assert np.shape(got) == np.shape(expected)
    if name == "multi_dot" and dtype == BF16:
        return  # the first of its two products is rounded, too
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(expected).astype(got.dtype))


def test_numpys_own_dtype_is_numpys_choice(rng):
    x = asarray(np.full((3, 2000), 100, I8))
    assert np.einsum("ij,kj->ik", x, x, dtype=I8).dtype == I8
    assert np.einsum("ij,kj->ik", x, x, dtype=I64).dtype == I64
    assert np.einsum("ij->i", x).dtype == I8  # no product


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("...ab,bc->ac", ((2, 3, 4), (4, 5))), ("...i,i->...", ((), (3,))), ("ij,jk->ik", ((2, 3), (4, 5))),
     ("...i...,i", ((3,), (3,))), ("ij,jk->iq", ((2, 3), (3, 4))), ("ij,jk,kl->il", ((2, 3), (3, 4)))],
)  # fmt: skip
def test_what_numpy_refuses_of_einsum_is_refused(equation, shapes, rng):
    x, y = (draw(rng, shape, F64) for shape in shapes)
    with pytest.raises(ValueError) as plain:  # noqa: PT011  (the messages are compared)
        np.einsum(equation, x, y)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        np.einsum(equation, asarray(x), y)
    assert str(caught.value) == str(plain.value)


@pytest.mark.parametrize("axes", [0, 1, 2, (0, 0), ((0, 1), (0, 1)), ((1, 0), (1, 0)), (-1, -1)], ids=str)
def test_tensordot(axes, rng):
    x, y = draw(rng, (3, 4), F64), draw(rng, (3, 4) if axes != 1 else (4, 3), F64)
    got, expected = np.tensordot(asarray(x), asarray(y), axes), np.tensordot(x, y, axes)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-12)
    assert np.shape(got) == expected.shape


@pytest.mark.parametrize(
    "axes",
    [3, -1, 1.0, "01", None, [[5], [0]], [[2], [0]], [[0], [2]], [[-3], [0]], [[0, 0], [0, 0]], [[0], [0, 1]],
     [[0, 1], [0]], [0, 0, 0], [0], [[0.0], [0.0]], [[], []], [[True], [False]], np.array([1, 0]),
     [np.array([1]), (0,)], ([-1], [-2])],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [F64, I8], ids=str)
@pytest.mark.parametrize("shapes", [((3, 3), (3, 3)), ((3, 4), (4, 3)), ((3,), (3,)), ((), (3,))], ids=str)
def test_axes_of_tensordot_are_read_as_numpy_reads_them(axes, shapes, dtype, rng):
    def outcome(x, y):
        try:
            made = np.tensordot(x, y, axes)
        except Exception as error:
            return type(error), str(error)
        return np.shape(made), np.asarray(made).astype(F64).tolist()

    x, y = (rng.integers(0, 3, shape).astype(dtype) for shape in shapes)
    assert outcome(asarray(x), y) == outcome(x, y)


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
