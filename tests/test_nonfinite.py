"""NaN and infinities in a product: each wrong one is found, and correct ones pass."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmhub import dtypes
from gemmhub._base import inner_products
from gemmhub._base.inner_products import widen
from gemmhub._check import nonfinite
from gemmhub._check import spot_check as verify
from gemmhub._check.spot_check import spot_check

F16, F32, F64, C64 = (np.dtype(x) for x in (np.float16, np.float32, np.float64, np.complex64))
BF16 = np.dtype(ml_dtypes.bfloat16)
REAL = [F16, BF16, F32, F64]


@pytest.fixture(autouse=True)
def always_sums(monkeypatch):
    """Small products are not recomputed whole; only suspects are recomputed."""
    monkeypatch.setattr(verify, "_RECOMPUTE", 0)
    monkeypatch.setattr(verify, "_PAIRS", 1)


def draw(rng, shape, dtype):
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def multiply(a, b):
    out = dtypes.result_dtype(a.dtype, b.dtype)
    working = dtypes.compute_dtype(a.dtype, b.dtype, out)
    with np.errstate(all="ignore"):
        return np.matmul(a.astype(working), b.astype(working)).astype(out)


def litter(rng, x, values, count):
    """Put ``values`` at random places of ``x``."""
    for value in values:
        rows, cols = (rng.integers(size, size=count) for size in x.shape)
        x[rows, cols] = value


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("values", [(np.inf,), (np.inf, -np.inf), (np.inf, -np.inf, np.nan, 0.0)], ids=str)
def test_the_kind_of_every_element_is_looked_at(values, dtype, rng):
    """One wrong infinity or NaN among many: each single one is found, for any correct kind."""
    a, b = draw(rng, (60, 40), dtype), draw(rng, (40, 70), dtype)
    litter(rng, a, values, 5)
    litter(rng, b, values, 5)
    c = multiply(a, b)
    verdict = spot_check(a, b, c, seed=0)
    assert verdict, str(verdict)
    places = np.argwhere(~np.isfinite(c))
    for i, j in rng.choice(places, 20):
        for value in {np.inf, -np.inf, 7.0, "nan"}:
            value = np.nan if value == "nan" else value
            wrong = c.copy()
            wrong[i, j] = value
            same = np.array_equal(wrong, c, equal_nan=True)
            verdict = spot_check(a, b, wrong, seed=0)
            assert verdict.ok == same
            assert same or verdict.where == (i, j)


@pytest.mark.parametrize("dtype", [*REAL, C64], ids=str)
def test_one_wrong_infinity_among_many_right_ones(dtype, rng):
    """Rows overflow rightly, and elsewhere one element is infinite whose operands are large, but cancel."""
    large = {"float16": 200.0, "float64": 1e150}.get(dtype.name, 1e18)
    a, b = draw(rng, (60, 40), dtype), draw(rng, (40, 70), dtype)
    a[::2] = large
    b[:, ::3] = large * np.where(np.arange(40) % 2, -1, 1)[:, None]  # the large rows times these are small
    b[:, 1::3] = large
    a[1], b[:, 2] = large * np.where(np.arange(40) % 2, -1, 1), large * 1.5
    if dtype == F16:
        a, b = a * dtype.type(4), b * dtype.type(4)
    c = multiply(a, b)
    verdict = spot_check(a, b, c, seed=0)
    assert verdict, str(verdict)
    finite = np.argwhere(np.isfinite(widen(c)))
    for i, j in rng.choice(finite, 25):
        wrong = c.copy()
        wrong[i, j] = np.inf
        assert spot_check(a, b, wrong, seed=0).where == (i, j)


def overflowing(rng):
    """A float16 product of which half overflows, with norms without information: some rows and columns cancel."""
    a, b = np.abs(draw(rng, (64, 256), F16)) * F16.type(8), np.abs(draw(rng, (256, 96), F16)) * F16.type(200)
    b[:, ::2] *= np.where(np.arange(256) % 2, -1, 1).astype(F16)[:, None]
    return a, b, multiply(a, b)


def test_unexamined_elements_are_reported(rng, monkeypatch):
    a, b, c = overflowing(rng)
    overflowed = np.count_nonzero(np.isinf(c))
    assert overflowed > 2000
    verdict = spot_check(a, b, c, seed=0)
    assert verdict, str(verdict)
    assert verdict.detects is not None
    assert verdict.checked >= overflowed
    monkeypatch.setattr(nonfinite, "WORK", 64 * 256)
    verdict = spot_check(a, b, c, seed=0)
    assert verdict, str(verdict)
    assert verdict.detects is None
    assert "NaN or infinite were not looked at" in verdict.reason
    assert "a single error" not in verdict.reason


def test_a_wrong_finite_element_beside_overflowed_ones_is_found(rng):
    a, b, c = overflowing(rng)
    for i, j in rng.choice(np.argwhere(np.isfinite(c)), 20):
        wrong = c.copy()
        wrong[i, j] = 0 if abs(c[i, j]) > 1000 else 60000
        assert spot_check(a, b, wrong, seed=0).where == (i, j)


def test_too_many_infinite_operands_are_sampled_and_reported(rng, monkeypatch):
    a, b = draw(rng, (60, 40), F32), draw(rng, (40, 70), F32)
    litter(rng, a, (np.inf,), 50)
    c = multiply(a, b)
    monkeypatch.setattr(nonfinite, "_SIGN_PRODUCTS", 1)
    monkeypatch.setattr(nonfinite, "WORK", 1)
    verdict = spot_check(a, b, c, seed=0)
    assert verdict
    assert verdict.detects is None
    assert "were not looked at" in verdict.reason
    assert not spot_check(a, b, -c, seed=0)


def test_subnormals_that_may_be_read_as_zero_leave_a_choice(rng):
    a, b = draw(rng, (30, 20), BF16), draw(rng, (20, 40), BF16)
    a[3, 4] = np.inf
    b[4, ::2] = 1e-39
    c = multiply(a, b)
    other = c.copy()
    other[3, ::2] = np.nan
    for right in (c, other):
        assert spot_check(a, b, right, seed=0)
    other[3, 1] = np.nan
    assert spot_check(a, b, other, seed=0).where == (3, 1)
    c[3, 2] = -np.inf
    assert spot_check(a, b, c, seed=0).where == (3, 2)


@pytest.mark.parametrize("precision", ["bf16x3", "tf32", "bf16"])
def test_the_sign_of_an_infinity_in_reduced_precision(precision, rng):
    a, b = draw(rng, (30, 20), F32), draw(rng, (20, 40), F32)
    a[3, 4] = np.inf
    c = multiply(a, b)
    assert spot_check(a, b, c, precision=precision, seed=0)
    c[3, 7] = -c[3, 7]
    assert spot_check(a, b, c, precision=precision, seed=0).where == (3, 7)


def test_tiles_do_not_matter(rng, monkeypatch):
    a, b = draw(rng, (30, 20), F32), draw(rng, (20, 40), F32)
    litter(rng, a, (np.inf, np.nan), 6)
    litter(rng, b, (-np.inf, 0.0), 6)
    c = multiply(a, b)
    monkeypatch.setattr(inner_products, "TILE", 80)
    monkeypatch.setattr(nonfinite, "TILE", 50)
    assert spot_check(a, b, c, seed=0)
    for i, j in np.argwhere(np.isinf(c))[::17]:
        wrong = c.copy()
        wrong[i, j] *= -1
        assert spot_check(a, b, wrong, seed=0).where == (i, j)


def test_right_products_beyond_the_range_of_sums_are_right(rng):
    """float64 whose sums of absolute values overflow, but not the sums."""
    scale = np.exp2(rng.integers(1018, 1023, (30, 1)).astype(float))
    a, b = rng.uniform(-1, 1, (30, 20)) * scale, rng.uniform(-1, 1, (20, 40)) * 4
    with np.errstate(all="ignore"):
        c, sizes = a @ b, np.abs(a) @ np.abs(b)
    for seed in range(5):
        verdict = spot_check(a, b, c, seed=seed)
        assert verdict, str(verdict)
    finite = np.argwhere(np.isfinite(c) & np.isinf(sizes))
    assert len(finite) > 10
    for i, j in finite[::7]:
        wrong = c.copy()
        wrong[i, j] *= 0.5
        assert spot_check(a, b, wrong, seed=0).where == (i, j)


def test_bounds_beyond_float64_are_reported(monkeypatch):
    monkeypatch.setattr(verify, "_RECOMPUTE", 2**22)
    verdict = spot_check([[1e200, -1e200]], [[1e200], [1e200]], [[0.0]])
    assert verdict
    assert "so that any value passes" in verdict.reason
