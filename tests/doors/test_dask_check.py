"""Spot checks of arrays of Dask: lazy, never wrong about a right product, and finding wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
from products import BF16, C64, F16, F32, F64, I8, I64, draw

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

import gemmhub  # noqa: E402
from gemmhub.errors import DTypeError, InputError, ShapeError  # noqa: E402

SEED = 1
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
    with pytest.raises(ShapeError, match="result: shape"):
        gemmhub.spot_check(x, x, x[:3])
    with pytest.raises(DTypeError, match="result: "):
        gemmhub.spot_check(x, x, x.astype("i4"))
    with pytest.raises(InputError, match="points, samples"):
        gemmhub.spot_check(x, x, x, samples=3)
    with pytest.raises(DTypeError, match="bool"):
        gemmhub.spot_check(x.astype(bool), x.astype(bool), x.astype(bool))
    with pytest.raises(InputError, match="seed"):
        gemmhub.spot_check(x, x, x, seed="x")


# Every option of a product


def drawn(rng, shapes, dtype):
    """Operands, and the options of a linear epilogue."""
    a, b = (draw(rng, shape, dtype) for shape in shapes)
    shape = np.asarray(gemmhub.matmul(a, b)).shape
    along_m = b.ndim == 1 and a.ndim > 1
    n = a.shape[-2] if along_m else 1 if b.ndim == 1 else b.shape[-1]
    out = gemmhub.matmul(a, b).dtype
    return a, b, {"alpha": 3, "beta": -2, "c": draw(rng, shape, out), "bias": draw(rng, (n,), out)}


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("dtype", [BF16, F32, C64, I8, I64], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_every_option_enters_the_check(shapes, dtype, activation):
    if activation is not None and (dtype.kind == "c" or (dtype.kind == "i" and activation == "silu")):
        return
    # After an activation the check samples, and may miss a fault: data and samples are the same in every run.
    a, b, options = drawn(np.random.default_rng(SEED), shapes, dtype)
    options["activation"] = activation
    right = np.asarray(gemmhub.matmul(a, b, **options))
    x, y, z = lazy(a, b, right)
    chunked = {**options, "c": da.from_array(options["c"], chunks=13), "bias": da.from_array(options["bias"], chunks=7)}
    for given in (options, chunked):
        verdict = gemmhub.spot_check(x, y, z, seed=SEED, **given).compute()
        assert verdict, str(verdict)
        assert verdict.method == ("freivalds" if activation is None else "sampled")
    faults = {"alpha": 2, "beta": 2, "bias": None, "c": None}
    for name, value in faults.items():
        if activation is not None and right.size < 20:
            continue  # all of a few elements may be next to 0 in both
        rest = {**options, name: value}
        if name == "c":
            rest["beta"] = 0
        if np.array_equal(gemmhub.matmul(a, b, **rest), right):
            continue
        assert not gemmhub.spot_check(x, y, z, seed=SEED, **rest).compute(), name
    if right.ndim > 1 and right.shape[-1] > 20:
        wrong = right.copy()
        wrong[..., 2, :] = np.roll(right[..., 2, :], 1, axis=-1)
        assert not gemmhub.spot_check(x, y, da.from_array(wrong, chunks=30), seed=SEED, **options).compute()


def test_a_lazy_product_with_an_epilogue(rng):
    a, b = lazy(draw(rng, (60, 101), F32), draw(rng, (101, 50), F32))
    c, bias = da.from_array(draw(rng, (60, 50), F32), chunks=20), draw(rng, (60, 1), F32)
    for activation in (None, "gelu"):
        options = {"alpha": 0.5, "c": c, "beta": 2, "bias": bias, "activation": activation}
        z = gemmhub.matmul(a, b, **options)
        assert gemmhub.spot_check(a, b, z, **options).compute()
        assert not gemmhub.spot_check(a, b, z + 1, **options).compute()


def test_a_sampled_verdict_names_its_element_and_what_it_finds(rng):
    a, b = draw(rng, (200, 40), F32), draw(rng, (40, 100), F32)
    right = np.asarray(gemmhub.matmul(a, b, activation="silu"))
    verdict = gemmhub.spot_check(*lazy(a, b, right), activation="silu").compute()
    assert verdict.checked == 32 * 100 + 32 * 200
    assert verdict.detects is None
    stated = 1 - (1 - 32 / 200) * (1 - 32 / 100)
    assert verdict.reason.endswith(f"and a single wrong element with a chance of {stated:.2g}")
    for line in (np.s_[150], np.s_[:, 70]):
        wrong = right.copy()
        wrong[line] += 1
        found = gemmhub.spot_check(*lazy(a, b, wrong), activation="silu").compute()
        assert not found
        assert wrong[found.where] != right[found.where]
        assert f"element {found.where} is" in found.reason
        assert found.got == wrong[found.where]


def test_wild_addends_are_right_where_they_should_be(rng):
    a, b = draw(rng, (40, 50), F32), draw(rng, (50, 60), F32)
    bias = draw(rng, (60,), F32)
    bias[7] = np.inf
    right = np.asarray(gemmhub.matmul(a, b, bias=bias))
    assert gemmhub.spot_check(*lazy(a, b, right), bias=bias).compute()
    wrong = right.copy()
    wrong[3, 7] = 0
    assert not gemmhub.spot_check(*lazy(a, b, wrong), bias=bias).compute()
    nothing = np.full((40, 50), np.nan, F32)
    right = np.asarray(gemmhub.matmul(nothing, b, alpha=0, bias=bias))
    assert gemmhub.spot_check(*lazy(nothing, b, right), alpha=0, bias=bias).compute()


@pytest.mark.parametrize("shapes", [((0, 5), (5, 3)), ((4, 0), (0, 3)), ((3, 0, 5), (5, 2)), ((0, 4, 5), (5, 3))])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_empty_products_with_an_epilogue(shapes, activation, rng):
    a, b = (draw(rng, shape, F32) for shape in shapes)
    c = np.asarray(gemmhub.matmul(a, b, activation=activation))
    assert gemmhub.spot_check(*lazy(a, b, c), activation=activation).compute()


def test_options_that_dask_does_not_take(rng):
    x = da.ones((4, 4), chunks=2, dtype="f4")
    with pytest.raises(InputError, match="scale_a"):
        gemmhub.spot_check(x, x, x, scale_a=np.ones(4, F32))
    with pytest.raises(InputError, match="beta"):
        gemmhub.spot_check(x, x, x, beta=2)
    with pytest.raises(DTypeError, match="result"):
        gemmhub.spot_check(x, x, x, out_dtype="f8")
