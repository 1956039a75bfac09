"""Spot checks of arrays of Dask: lazy, never wrong about a right product, and finding wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
from products import BF16, C64, F16, F32, F64, I8, I64, draw

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

import gemmhub  # noqa: E402
from gemmhub.errors import DTypeError, InputError, ShapeError  # noqa: E402

SHAPES = [
    ((37, 101), (101, 129)),
    ((101,), (101, 29)),
    ((37, 101), (101,)),
    ((3, 7, 40), (40, 9)),
    ((40,), (40,)),
    ((2, 1, 7, 9), (4, 9, 3)),
]


@pytest.fixture(autouse=True)
def _sync():
    with dask.config.set(scheduler="sync"):
        yield


def lazy(*arrays):
    return [da.from_array(x, chunks=[25, 30][i % 2]) for i, x in enumerate(arrays)]


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, C64, I8, I64], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_right_products_are_right_and_wrong_ones_are_not(dtype, shapes, rng):
    a, b = (draw(rng, shape, dtype) for shape in shapes)
    c = np.asarray(gemmhub.matmul(a, b))
    check = gemmhub.spot_check(*lazy(a, b, c))
    assert type(check).__name__ == "Delayed"
    verdict = check.compute()
    assert verdict, str(verdict)
    assert verdict.worst <= 1
    where = tuple(int(rng.integers(size)) for size in c.shape)
    wrong = c.copy()
    wrong[where] += 1 if c.dtype.kind in "iu" else 64
    verdict = gemmhub.spot_check(*lazy(a, b, wrong)).compute()
    assert not verdict
    if c.dtype.kind in "iu":
        assert verdict.where == where[: len(verdict.where)]
    else:
        wrong[where] = np.nan
        assert not gemmhub.spot_check(*lazy(a, b, wrong)).compute()


def test_a_lazy_product_is_checked_without_being_computed_before(rng):
    a, b = lazy(draw(rng, (60, 101), F16), draw(rng, (101, 50), F16))
    assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b)).compute()
    transposed = gemmhub.matmul(a, b)[::-1]
    assert not gemmhub.spot_check(a, b, transposed).compute()


def test_sums_of_rounded_blocks_are_found(rng):
    """What da.matmul makes of float16, with k in 64 blocks, has errors beyond the bound of float32 accumulation."""
    a, b = (np.abs(draw(rng, shape, F16)) for shape in ((64, 4096), (4096, 64)))
    x, y = da.from_array(a, chunks=(64, 64)), da.from_array(b, chunks=(64, 64))
    assert gemmhub.spot_check(x, y, gemmhub.matmul(x, y)).compute()
    total = da.from_array(np.cumsum((a[:, :1] * b[:1]).astype(F16), axis=0, dtype=F16), chunks=64)
    assert not gemmhub.spot_check(x, y, total).compute()


def test_what_detects_names_is_detected(rng):
    a, b = draw(rng, (50, 70), F64), draw(rng, (70, 64), F64)
    c = a @ b
    first = gemmhub.spot_check(*lazy(a, b, c), seed=1).compute()
    assert 0 < first.detects < 1e4
    from products import ratio

    bound = 1 / ratio(c + 1, a, b)  # of the element with the smallest bound
    wrong = c.copy()
    wrong[3, 5] += first.detects * bound * 50
    assert not gemmhub.spot_check(*lazy(a, b, wrong), seed=1).compute()


def test_rows_that_are_not_finite(rng):
    a, b = draw(rng, (40, 50), F32), draw(rng, (50, 60), F32)
    a[3, 4], b[7, 8] = np.nan, np.inf
    with np.errstate(all="ignore"):
        c = a @ b
    verdict = gemmhub.spot_check(*lazy(a, b, c)).compute()
    assert verdict
    assert verdict.detects is None
    assert "not finite" in verdict.reason
    c[3, 9] = 1.0
    verdict = gemmhub.spot_check(*lazy(a, b, c)).compute()
    assert not verdict
    assert verdict.where == (3,)


def test_overflow_is_right_where_it_may_be(rng):
    a, b = np.full((4, 30), 60000, F16), np.full((30, 5), 60000, F16)
    assert gemmhub.spot_check(*lazy(a, b, np.full((4, 5), np.inf, F16))).compute()


@pytest.mark.parametrize("shapes", [((5, 0), (0, 3)), ((0, 4), (4, 3)), ((3, 4), (4, 0))], ids=str)
def test_empty_products(shapes):
    a, b = (np.zeros(shape, F32) for shape in shapes)
    assert gemmhub.spot_check(*lazy(a, b, a @ b)).compute()


def test_floats_of_integers(rng):
    a, b = draw(rng, (37, 80), I8), draw(rng, (80, 40), I8)
    c = (a.astype(F64) @ b.astype(F64)).astype(F32)
    assert gemmhub.spot_check(*lazy(a, b, c)).compute()
    c[5, 5] += 64
    assert not gemmhub.spot_check(*lazy(a, b, c)).compute()


def test_what_is_refused():
    x = da.ones((8, 8), chunks=4)
    with pytest.raises(ShapeError, match="c: shape"):
        gemmhub.spot_check(x, x, x[:3])
    with pytest.raises(DTypeError, match="c: "):
        gemmhub.spot_check(x, x, x.astype("i4"))
    with pytest.raises(InputError, match="points, samples"):
        gemmhub.spot_check(x, x, x, samples=3)
    with pytest.raises(DTypeError, match="bool"):
        gemmhub.spot_check(x.astype(bool), x.astype(bool), x.astype(bool))
    with pytest.raises(InputError, match="seed"):
        gemmhub.spot_check(x, x, x, seed="x")
