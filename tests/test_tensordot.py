"""tensordot and vecdot: values as NumPy's, bounds and dtypes as a product's, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from products import BF16, C64, C128, F16, F32, F64, I8, I32, draw, ratio, relaid

import gemmhub
from gemmhub.errors import InputError, ShapeError

AXES = [0, 1, 2, (-1, 0), ((1, 2), (1, 0)), ((2, 1), (0, 1)), ([0], [2]), (np.array([-1]), (0,)), ((), ())]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_tensordot_is_numpys(axes, rng):
    x, y = (rng.integers(-4, 5, shape).astype(F64) for shape in ((3, 4, 5), (5, 4, 3)))
    y = y if axes != 2 else y.transpose(1, 0, 2)
    expected = np.tensordot(x, y, axes)
    for a, b in ((x, y), (relaid(rng, x)[0], relaid(rng, y)[0])):
        got = gemmhub.tensordot(a, b, axes)
        assert got.shape == expected.shape
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, C64, C128, I8], ids=str)
def test_tensordot_has_the_bound_of_a_product(dtype, rng):
    x, y = draw(rng, (3, 7, 5), dtype), draw(rng, (5, 2, 7), dtype)
    got = gemmhub.tensordot(x, y, ((1, 2), (2, 0)))
    assert ratio(got, x.reshape(3, 35), y.transpose(2, 0, 1).reshape(35, 2)) <= 1


@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((2, 0), (0, 2)), ((40 * (1,)), (1,))], ids=str)
def test_tensordot_of_other_shapes(shapes, rng):
    x, y = (draw(rng, shape, F64) for shape in shapes)
    np.testing.assert_array_equal(gemmhub.tensordot(x, y, 1), np.tensordot(x, y, 1))


REFUSED = {
    "a float": (1.5, InputError, "axes: 1.5; allowed: a number of axes, or a pair"),
    "negative": (-1, InputError, "axes: -1; allowed"),
    "a bool": (([True], [False]), InputError, "allowed: a number of axes"),
    "three": ((0, 0, 0), InputError, "a pair of ints or of sequences"),
    "another number": (((0, 1), (0,)), ShapeError, "axes: 2 axes of a and 1 of b; allowed: as many of each"),
    "beyond a": (((2,), (0,)), ShapeError, r"axes: \[2\] of a, which has 2 dimensions"),
    "beyond b": (((0,), (-4,)), ShapeError, r"axes: \[-4\] of b, which has 3 dimensions"),
    "too many": (3, ShapeError, "axes: 3, of a with 2 dimensions and b with 3 dimensions; allowed: .* from 0 to 2"),
    "twice": (((0, -2), (0, 1)), ShapeError, r"axes: \[0, -2\] of a: one axis twice"),
    "sizes": (((1,), (0,)), ShapeError, "axes: sizes 3 and 2 of axes 1 of a and 0 of b"),
    "a size of 1": (((0,), (1,)), ShapeError, "axes: sizes 2 and 1 of axes 0 of a and 1 of b"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_axes_that_are_refused(name):
    axes, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        gemmhub.tensordot(np.ones((2, 3)), np.ones((2, 1, 4)), axes)


def vecdots(a, b, axis=-1):
    """numpy.vecdot, which NumPy has since version 2."""
    return (np.moveaxis(np.conj(a), axis, -1) * np.moveaxis(b, axis, -1)).sum(-1)


@pytest.mark.parametrize("dtype", [F64, C128, I32], ids=str)
@pytest.mark.parametrize(
    ("shapes", "axis"),
    [(((4,), (4,)), -1), (((3, 4), (4,)), -1), (((2, 1, 4), (3, 4)), -1), (((4, 2), (4, 2)), 0),
     (((4, 3), (2, 4, 1)), -2), (((0,), (0,)), -1), (((3, 0), (3, 0)), 1), (((0, 4), (1, 4)), -1),
     (((1, 120), (5, 120)), -1)],
    ids=str,
)  # fmt: skip
def test_vecdot(shapes, axis, dtype, rng):
    x, y = (rng.integers(-4, 5, shape).astype(dtype) for shape in shapes)
    if dtype.kind == "c":
        x, y = x + 1j * x[::-1], y - 2j * y
    for a, b in ((x, y), (relaid(rng, x)[0], relaid(rng, y)[0])):
        got = gemmhub.vecdot(a, b, axis=axis)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, vecdots(x, y, axis))


@pytest.mark.parametrize("dtype", [F16, BF16, F32, C64, I8], ids=str)
def test_vecdot_has_the_bound_of_a_product(dtype, rng):
    x, y = draw(rng, (5, 33), dtype), draw(rng, (5, 33), dtype)
    got = gemmhub.vecdot(x, y)
    assert ratio(got[:, None, None], np.conj(x[:, None]) if dtype.kind == "c" else x[:, None], y[:, :, None]) <= 1


def test_mistakes_of_vecdot_are_named():
    x = np.ones((2, 3))
    with pytest.raises(InputError, match=r"axis: 0\.5; allowed: an int"):
        gemmhub.vecdot(x, x, axis=0.5)
    with pytest.raises(ShapeError, match="axis: 1 of b, which has 1 dimensions"):
        gemmhub.vecdot(x, x[0], axis=1)
    with pytest.raises(ShapeError, match="axis: -1 of a, which has 0 dimensions"):
        gemmhub.vecdot(2.0, x)
    for y in (np.ones((2, 4)), np.ones((2, 1))):
        with pytest.raises(ShapeError, match=r"a, b: sizes 3 and \d of axis -1; allowed: equal sizes"):
            gemmhub.vecdot(x, y)
    with pytest.raises(ShapeError, match=r"a, b: shapes \(2, 3\) and \(4, 3\) do not broadcast beside axis -1"):
        gemmhub.vecdot(x, np.ones((4, 3)))
    with pytest.raises(TypeError, match="'alpha'"):
        gemmhub.vecdot(x, x, alpha=2)
