"""The array API namespace: NumPy's names, with products of gemmhub that have the dtypes of the standard."""

from __future__ import annotations

import numpy as np
import pytest
from products import draw

import gemmhub
import gemmhub.array_api as xp
from gemmhub.errors import ShapeError

NAMES = ("matmul", "matrix_transpose", "tensordot", "vecdot")
DTYPES = [np.dtype(x) for x in ("i1", "i2", "i8", "u1", "u4", "f4", "f8", "c8", "c16")]
PRODUCTS = {
    "matmul": lambda xp, x, y: xp.matmul(x, y),
    "matmul of vectors": lambda xp, x, y: xp.matmul(x[0], y[:, 0]),
    "tensordot": lambda xp, x, y: xp.tensordot(x, y, axes=((1,), (0,))),
    "tensordot of nothing": lambda xp, x, y: xp.tensordot(x, y, axes=0),
    "vecdot": lambda xp, x, y: xp.vecdot(x, xp.matrix_transpose(y)),
    "vecdot along 0": lambda xp, x, y: xp.vecdot(xp.matrix_transpose(x), y, axis=-2),
}


@pytest.mark.skipif(not hasattr(np, "vecdot"), reason="this NumPy is older than the standard")
@pytest.mark.parametrize("right", DTYPES, ids=str)
@pytest.mark.parametrize("left", DTYPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_values_and_dtypes_are_those_of_the_standard(name, left, right, rng):
    """Whole numbers; those of integers wrap as NumPy's do."""
    integers = {left.kind, right.kind} <= {"i", "u"}
    x, y = (draw(rng, (3, 3), x) if integers else rng.integers(0, 5, (3, 3)).astype(x) for x in (left, right))
    got, expected = PRODUCTS[name](xp, x, y), PRODUCTS[name](np, x, y)
    assert got.dtype == expected.dtype == np.result_type(left, right)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


def test_a_transpose_is_a_view():
    x = np.ones((2, 3, 4))
    assert xp.matrix_transpose(x).shape == (2, 4, 3)
    assert np.shares_memory(xp.matrix_transpose(x), x)
    with pytest.raises(ShapeError, match="x: 1 dimensions; allowed: 2 dimensions or more"):
        xp.matrix_transpose(x[0, 0])


def test_other_names_are_numpys():
    assert xp.sum is np.sum
    assert xp.float32 is np.float32
    assert xp.linalg is np.linalg
    assert {*xp.__all__} == {*NAMES} <= {*dir(xp)}
    assert {x for x in dir(np) if not x.startswith("_")} <= {*dir(xp)}
    if hasattr(np, "__array_namespace_info__"):
        assert xp.__array_api_version__ == np.__array_api_version__
        assert xp.__array_namespace_info__().dtypes() == np.__array_namespace_info__().dtypes()
    for name in ("nothing", "_core"):
        with pytest.raises(AttributeError, match=name):
            getattr(xp, name)


def test_the_products_are_gemmhubs():
    x = np.ones((2, 2), np.float32)
    with gemmhub.use(backend="hopper"):
        for product in (xp.matmul, xp.tensordot, xp.vecdot):
            with pytest.raises(gemmhub.NoBackendError, match="hopper"):
                product(x, x)
