"""The bounds of gemmhub.accuracy: correct computations are within them, wrong ones are not."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from gemmhub import accuracy, dtypes
from gemmhub._base import inner_products
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES

F16, F32, F64 = (np.dtype(x) for x in (np.float16, np.float32, np.float64))
C64, C128 = np.dtype(np.complex64), np.dtype(np.complex128)
BF16, E4M3, E5M2 = (np.dtype(x) for x in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))
SEEDS = range(3)


def model(a, b, out, precision="ieee"):
    return accuracy.error_model(a, b, out, dtypes.compute_dtype(a, b, out), precision)


def worst(got, a, b, error_model, **epilogue):
    return float(accuracy.reference(a, b, model=error_model, **epilogue).ratio(got).max())


def normal(rng, shape, dtype=F32):
    x = rng.standard_normal(shape)
    if dtype.kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def one(x, dtype):
    return np.array([x], dtype)


def cut(x, bits):
    """float64 values truncated to ``bits`` significant bits."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(fraction, bits)), exponent - bits)


def tensor_core(a, b, bits=24, block=4, promote=None):
    """A dot product as tensor cores do it: blocks of products and the running sum are aligned to the largest
    exponent, cut off, added, and cut off again (Fasi, Higham, Mikaitis, Pranesh 2021)."""
    products = accuracy.widen(a) * accuracy.widen(b)
    total, total32 = 0.0, np.float32(0)
    for start in range(0, len(products), block):
        terms = np.append(products[start : start + block], total)
        unit = np.ldexp(1.0, int(np.frexp(np.abs(terms).max())[1]) - bits)
        total = float(cut(np.sum(np.trunc(terms / unit)) * unit, bits))
        if promote and (start + block) % promote == 0:
            total32, total = np.float32(total32 + np.float32(total)), 0.0
    return np.array([[total32 + np.float32(total)]], np.float32)


# The constants


@pytest.mark.parametrize("count", [0, 1, 1000, 2**23, 2**24 - 3, 2**24, 2**27])
def test_gamma_bounds_any_number_of_roundings(count):
    """It is at least (1 + u)**count - 1, at most Higham's n u / (1 - n u) where that exists, and finite."""
    u = 2.0**-24
    assert accuracy.gamma(count, u) >= np.expm1(count * np.log1p(u))
    if count * u < 1:
        assert accuracy.gamma(count, u) <= count * u / (1 - count * u)
    assert accuracy.gamma(10**12, u) < np.inf


def test_the_bound_is_finite_where_highams_is_not():
    """As for float32 from k = 2**24 - 2 on, and for half operands from 6,710,886 on, but with a larger roundoff."""
    k, u = 3000, 2.0**-10
    error_model = replace(model(F32, F32, F32), accumulate=u)
    a, b = np.ones((1, k), F32), np.ones((k, 1), F32)
    reference = accuracy.reference(a, b, model=error_model)
    assert np.isfinite(reference.bound).all()
    for right in (1 / u, k):  # the sum stagnates, or is exact
        assert reference.ratio(np.full((1, 1), right, F32)) <= 1
    assert reference.ratio(np.full((1, 1), 4 * k * np.exp(k * u), F32)) > 1
    zero = accuracy.reference(np.zeros((1, k), F32), b, model=error_model)
    assert zero.ratio(np.zeros((1, 1), F32)) == 0
    assert zero.ratio(np.ones((1, 1), F32)) > 1
    for dtype, beyond in ((F32, 2**24 - 2), (F16, 6_710_886), (C64, 2**23)):
        assert 1 < model(dtype, dtype, dtype).relative(beyond) < 6
        assert model(dtype, dtype, dtype).relative(10**12) < np.inf


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_slopes_bound_the_derivatives_tightly(activation):
    x = np.linspace(-20, 20, 400_001)
    slope = np.abs(np.gradient(accuracy.activate(x, activation), x)).max()
    assert 0.98 * EPILOGUES[activation].slope < slope <= EPILOGUES[activation].slope


def test_errors_compound():
    tf32 = model(F32, F32, F32, "tf32")
    factor = (1 + 2.0**-10) ** 2 * (1 + accuracy.gamma(102, 2.5 * 2.0**-24))
    assert tf32.relative(100) == pytest.approx(factor - 1, rel=1e-12)


def test_precision_is_ignored_where_it_means_nothing():
    assert model(F16, F16, F16, "bf16") == model(F16, F16, F16)
    assert model(F64, F64, F64, "tf32") == model(F64, F64, F64)
    assert model(F32, F16, F32, "bf16").input > 0


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [(F32, F32, F32), (F16, F16, F16), (BF16, BF16, BF16), (F16, BF16, F32), (E4M3, E5M2, F16), (C64, C64, C64),
     (F64, F64, F64), (F64, F64, F16)],
)  # fmt: skip
def test_no_terms_must_give_zero(a, b, out):
    error_model = model(a, b, out)
    got = np.zeros((1, 1), out)
    assert worst(got, np.zeros((1, 0), a), np.zeros((0, 1), b), error_model) == 0
    got[:] = np.nextafter(np.float16(0), np.float16(1)) if out == F16 else 1e-37
    assert worst(got, np.zeros((1, 0), a), np.zeros((0, 1), b), error_model) > 1


# Products in the ordinary arithmetic of the CPU


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("dtype", "working"),
    [(F32, F32), (F64, F64), (C64, C64), (C128, C128), (F16, F32), (BF16, F32), (E4M3, F32), (E5M2, F32)],
)
@pytest.mark.parametrize("k", [1, 2, 17, 300])
def test_right_products_are_within_the_bound(dtype, working, k, seed):
    rng = np.random.default_rng(seed)
    out = F16 if dtype in (E4M3, E5M2) else dtype
    spread = np.exp2(rng.integers(-2, 3, (9, k))).astype(F32)
    a = (normal(rng, (9, k), working) * spread).astype(dtype)
    b = normal(rng, (k, 11), working).astype(dtype)
    exact = (a.astype(working) @ b.astype(working)).astype(out)
    sequential = np.zeros((9, 11), working)
    for i in range(k):
        sequential += a[:, i, None].astype(working) * b[i].astype(working)
    error_model = model(dtype, dtype, out)
    for got in (exact, sequential.astype(out)):
        assert worst(got, a, b, error_model) <= 1
    reference = accuracy.reference(a, b, model=error_model)
    wrong = exact.copy()
    wrong[4, 5] = wrong[4, 5] + out.type(3 * reference.bound[4, 5])
    assert reference.ratio(wrong)[4, 5] > 1


@pytest.mark.parametrize("seed", SEEDS)
def test_float64_bound_includes_the_references_own_error(seed):
    rng = np.random.default_rng(seed)
    a, b = normal(rng, (5, 400), F64), normal(rng, (400, 5), F64)
    a[:, 200:], b[200:] = -a[:, :200], b[:200]  # everything cancels
    reference = accuracy.reference(a, b, model=model(F64, F64, F64))
    assert reference.ratio(np.zeros((5, 5))).max() <= 1
    assert reference.ratio(np.full((5, 5), 1e-9)).max() > 1


def test_complex_bound_covers_the_worst_direction():
    # |re||re| + |im||im| and |re||im| + |im||re| are both |a||b|: the sqrt(2) is needed.
    k, u = 1000, 2.0**-24
    a, b = np.full((1, k), 1 + 1j, C64), np.full((k, 1), 1 + 1j, C64)
    error = (1 + 1j) * 2 * k * accuracy.gamma(2 * k, u)
    got = np.array([[2j * k + error]], C64)
    assert worst(got, a, b, model(C64, C64, C64)) <= 1
    assert worst(np.array([[2j * k + 1.1 * error]], C64), a, b, model(C64, C64, C64)) > 1


def test_integers_that_round_when_converted(rng):
    a = rng.integers(-(2**62), 2**62, (3, 40))
    b = rng.integers(0, 2**63, (40, 3)).astype(np.uint64)
    got = a.astype(F64) @ b.astype(F64)
    assert worst(got, a, b, model(a.dtype, b.dtype, F64)) <= 1


def test_long_inner_dimensions_are_taken_in_blocks(monkeypatch, rng):
    a, b = normal(rng, (3, 50)), normal(rng, (50, 4))
    b[30, 2] = np.inf
    whole = accuracy.reference(a, b, model=model(F32, F32, F32, "bf16"))
    monkeypatch.setattr(inner_products, "_BLOCK", 7)
    pieces = accuracy.reference(a, b, model=model(F32, F32, F32, "bf16"))
    for name in ("value", "bound", "magnitude", "clean", "overflow"):
        np.testing.assert_allclose(getattr(pieces, name), getattr(whole, name), rtol=1e-14, atol=1e-14)


# Tensor cores


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block", [4, 8, 16])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_truncating_tensor_cores_are_within_the_bound(dtype, block, seed):
    rng = np.random.default_rng(seed)
    for a in (normal(rng, 1024, dtype), np.abs(normal(rng, 1024, dtype))):
        b = np.abs(normal(rng, 1024, dtype))
        assert worst(tensor_core(a, b, block=block), a[None], b[:, None], model(dtype, dtype, F32)) <= 1


def test_alignment_costs_more_than_one_truncation_a_product():
    # Every product but the largest of a block is cut off, and so is the sum.
    k, block = 400, 4
    a, b = np.ones(k, F16), np.ones(k, F16)
    a[0], b[0] = 2.0**12, 2.0**11
    small = F16.type(2 - 2.0**-10)
    a[1:], b[1:] = 0.5, small  # 1 - 2**-11 under a unit of 1: nothing of it is ever added
    got = tensor_core(a, b, block=block)
    assert got[0, 0] == 2.0**23
    assert worst(got, a[None], b[:, None], model(F16, F16, F32)) <= 1
    assert worst(got, a[None], b[:, None], replace(model(F16, F16, F32), accumulate=2.0**-24)) > 1


def test_fp8_sums_must_be_promoted(rng):
    k = 8192
    a = np.full(k, 1.0, E4M3)
    b = np.full(k, 1.0, E4M3)
    b[::2] = 0.9375
    error_model = model(E4M3, E4M3, F32)
    assert worst(tensor_core(a, b, bits=14, block=32, promote=128), a[None], b[:, None], error_model) <= 1
    b = (0.5 + rng.random(k) * 0.4).astype(E4M3)
    assert worst(tensor_core(a, b, bits=14, block=32, promote=128), a[None], b[:, None], error_model) <= 1
    assert worst(tensor_core(a, b, bits=14, block=32), a[None], b[:, None], error_model) > 1


@pytest.mark.parametrize("seed", SEEDS)
def test_reduced_precision(seed):
    rng = np.random.default_rng(seed)
    a, b = np.abs(normal(rng, (6, 80))), np.abs(normal(rng, (80, 6)))
    tf32 = (cut(a.astype(F64), 11) @ cut(b.astype(F64), 11)).astype(F32)
    bf16 = a.astype(BF16).astype(F32) @ b.astype(BF16).astype(F32)
    assert worst(tf32, a, b, model(F32, F32, F32, "tf32")) <= 1
    assert worst(bf16, a, b, model(F32, F32, F32, "bf16")) <= 1
    assert worst(tf32, a, b, model(F32, F32, F32)) > 1
    bf16_cut = (cut(a.astype(F64), 8) @ cut(b.astype(F64), 8)).astype(F32)
    assert worst(bf16_cut, a, b, model(F32, F32, F32, "tf32")) > 1


def planes(x):
    """The two bfloat16 numbers whose sum is x to 17 bits, as float64."""
    high = x.astype(BF16).astype(F32)
    return high.astype(F64), (x - high).astype(BF16).astype(F64)


def three_products(a, b, left_out=None):
    """The scheme of bf16x3, accumulated in float32 row by row: products that float32 holds exactly. ``left_out`` is the
    index of one that is not added."""
    (high_a, low_a), (high_b, low_b) = planes(a), planes(b)
    total = np.zeros((a.shape[0], b.shape[1]), F32)
    for i in range(a.shape[1]):
        for j, (x, y) in enumerate(((low_a, high_b), (high_a, low_b), (high_a, high_b))):
            if j != left_out:
                total += np.outer(x[:, i], y[i]).astype(F32)
    return total


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["positive", "normal", "wide"])
def test_three_products_of_bfloat16(kind, seed):
    rng = np.random.default_rng(seed)
    a, b = normal(rng, (6, 80)), normal(rng, (80, 6))
    if kind == "positive":
        a, b = np.abs(a), np.abs(b)
    elif kind == "wide":
        a, b = (np.ldexp(x, rng.integers(-60, 60, x.shape)) for x in (a, b))
    error_model = model(F32, F32, F32, "bf16x3")
    assert worst(three_products(a, b), a, b, error_model) <= 1
    for cross in (0, 1):
        assert worst(three_products(a, b, cross), a, b, error_model) > 1
    tf32 = (cut(a.astype(F64), 11) @ cut(b.astype(F64), 11)).astype(F32)
    assert worst(tf32, a, b, error_model) > 1
    assert worst(three_products(a, b), a, b, model(F32, F32, F32, "tf32")) <= 1


def test_the_bound_of_three_products_is_attained():
    """Both second planes are near 2**-8, what is lost beside them near 2**-17: the errors add up to 2**-15."""
    x = one(1 + 2.0**-8 - 2.0**-17 - 2.0**-23, F32)[None]
    high, low = planes(x)
    assert (high, low) == (1, 2.0**-8 - 2.0**-16)
    assert 0.96 < worst(three_products(x, x), x, x, model(F32, F32, F32, "bf16x3")) <= 1
    assert worst(three_products(x, x), x, x, model(F32, F32, F32)) > 1


def test_no_float32_number_loses_more_than_planes_promise():
    """All numbers of one binade, and of one whose second planes are subnormal."""
    for exponent, lost in ((0, 0.0), (-120, 2.0**-126)):
        x = np.ldexp((np.arange(2**23, 2**24) * 2.0**-23), exponent).astype(F32)
        high, low = planes(x)
        x = x.astype(F64)
        assert np.all(np.abs(low) <= 2.0**-8 * x)
        for second in (low, np.where(np.abs(low) < 2.0**-126, 0.0, low)):
            assert np.all(np.abs(x - high - second) <= 2.0**-17 * x + lost)


@pytest.mark.parametrize("k", [1, 64, 1024, 65536])
def test_each_precision_allows_what_the_one_before_it_does(k):
    bounds = [model(F32, F32, F32, precision).relative(k) for precision in dtypes.PRECISIONS]
    assert bounds == sorted(bounds)


# Underflow


def test_results_may_be_flushed_but_float32_operands_may_not():
    tiny = 2.0**-130
    a, b = one(2.0**-65, F32)[None], one(2.0**-65, F32)[None]
    assert worst(np.zeros((1, 1), F32), a, b, model(F32, F32, F32)) <= 1
    a, b = one(tiny, F32)[None], one(2.0**100, F32)[None]
    assert worst(np.zeros((1, 1), F32), a, b, model(F32, F32, F32)) > 1
    assert worst(np.zeros((1, 1), F32), a, b, model(F32, F32, F32, "tf32")) <= 1
    a, b = a.astype(BF16), b.astype(BF16)  # read as 0 by AVX-512 and AMX
    assert worst(np.zeros((1, 1), BF16), a, b, model(BF16, BF16, BF16)) <= 1
    a, b = one(2.0**-20, F16)[None], one(2.0**10, F16)[None]
    assert worst(np.zeros((1, 1), F16), a, b, model(F16, F16, F16)) > 1


def test_subnormal_results_round_to_their_spacing():
    a, b = one(2.0**-12, F16)[None], one(1.4 * 2.0**-12, F16)[None]
    assert worst(np.array([[2.0**-24]], F16), a, b, model(F16, F16, F16)) <= 1
    assert worst(np.array([[3 * 2.0**-24]], F16), a, b, model(F16, F16, F16)) > 1


# Overflow, infinities and NaN


@pytest.mark.parametrize("sign", [1, -1])
def test_a_result_that_overflows_must_be_the_right_infinity(sign):
    a, b = one(sign * 300, F16)[None], one(300, F16)[None]
    ratio = accuracy.reference(a, b, model=model(F16, F16, F16)).ratio
    assert ratio(np.array([[sign * np.inf]], F16)) == 0
    for wrong in (-sign * np.inf, np.nan, sign * 65504):
        assert ratio(np.array([[wrong]], F16)) > 1


def test_large_terms_that_cancel_do_not_excuse_a_narrow_result():
    a, b = np.array([[300, -300, 1]], F16), np.array([[300], [300], [1]], F16)
    ratio = accuracy.reference(a, b, model=model(F16, F16, F16)).ratio
    assert ratio(np.array([[1]], F16)) == 0
    for wrong in (np.inf, -np.inf, np.nan):
        assert ratio(np.array([[wrong]], F16)) > 1  # float32 holds 90000


def test_partial_sums_that_may_overflow_excuse_anything_that_is_not_finite():
    a, b = np.array([[1e30, -1e30, 1]], F32), np.array([[1e30], [1e30], [1]], F32)
    ratio = accuracy.reference(a, b, model=model(F32, F32, F32)).ratio
    for right in (np.inf, -np.inf, np.nan, 1):
        assert ratio(np.array([[right]], F32)) <= 1
    relu = accuracy.reference(a, b, model=model(F32, F32, F32), activation="relu").ratio
    assert relu(np.zeros((1, 1), F32)) == 0


def test_operands_that_are_not_finite_decide_the_result():
    inf, nan = np.inf, np.nan
    a = np.array([[inf, 1], [inf, -inf], [nan, 1], [1, 1], [1, inf]], F32)
    b = np.array([[1, 0], [2, 3]], F32)
    right = np.array([[inf, nan], [nan, nan], [nan, nan], [3, 3], [inf, inf]], F32)
    reference = accuracy.reference(a, b, model=model(F32, F32, F32))
    assert reference.ratio(right).max() == 0
    for i, j in np.argwhere(~np.isfinite(right)):
        for wrong in {0.0, 1e30, -inf, inf if np.isnan(right[i, j]) else nan}:
            got = right.copy()
            got[i, j] = wrong
            assert reference.ratio(got)[i, j] == inf


@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_activations_of_infinities(activation):
    a, b = np.array([[-np.inf], [np.inf], [np.nan], [-1e18]], F32), np.ones((1, 1), F32)
    right = EPILOGUES[activation](a)
    reference = accuracy.reference(a, b, model=model(F32, F32, F32), activation=activation)
    assert reference.ratio(right)[:3].max() == 0
    assert reference.ratio(right)[3] <= 1
    ratio = reference.ratio(np.array([[np.nan]] * 4, F32))
    assert ratio[[1, 3]].min() == np.inf
    # -inf * sigmoid(-inf) is NaN as computed and 0 as a limit; the others have no such excuse.
    smooth = activation in ("gelu", "gelu_tanh", "silu")
    assert ratio[0] == (0 if smooth else np.inf)
    if not smooth:
        limit = right[0, 0]
        for wrong in (limit + np.float32(1e-3) if np.isfinite(limit) else -limit, np.inf):
            assert reference.ratio(np.full((4, 1), wrong, F32))[0] > 1


def test_bf16_precision_may_overflow_the_largest_operands():
    largest = np.array([[3.4028235e38]], F32)
    b = np.array([[1e-30]], F32)
    assert worst(np.array([[np.inf]], F32), largest, b, model(F32, F32, F32, "bf16")) == 0
    assert worst(np.array([[np.inf]], F32), largest, b, model(F32, F32, F32)) > 1
    assert worst(np.array([[-np.inf]], F32), largest, b, model(F32, F32, F32, "bf16")) > 1
    for other in (0, 1e-45):  # 0 times infinity
        assert worst(np.array([[np.nan]], F32), largest, one(other, F32)[None], model(F32, F32, F32, "bf16")) == 0


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
def test_float64_sums_beyond_the_range_have_a_finite_bound(dtype):
    """The sum of absolute values is beyond float64, what a sum of another order gives is not."""
    a, b = np.array([[1e308, -1e308, 1e308, 1e308 / 3]], dtype), np.array([[1.0], [1.0], [0.1], [0.7]], dtype)
    reference = accuracy.reference(a, b, model=model(dtype, dtype, dtype))
    exact = dtype.type(1e307 + 0.7 * (1e308 / 3))
    assert reference.value == pytest.approx(exact, rel=1e-14)
    assert reference.bound < 1e295
    assert not reference.unjudged.any()
    for right in (exact, np.nextafter(exact.real, 0)):
        assert reference.ratio(np.array([[right]], dtype)) <= 1
    for wrong in (0, 1e300, 1.001 * exact, -exact) + (np.inf, np.nan) * (dtype == F64):  # 1e308 is the largest sum
        assert reference.ratio(np.array([[wrong]], dtype)) > 1


def test_certain_overflow_of_float64_must_be_infinite():
    a, b = np.array([[1e200, 1e100]]), np.array([[1e200], [1.0]])
    ratio = accuracy.reference(a, b, model=model(F64, F64, F64)).ratio
    assert ratio(np.array([[np.inf]])) == 0
    for wrong in (0.0, 1e308, -np.inf):
        assert ratio(np.array([[wrong]])) > 1


def test_an_infinite_term_beside_finite_ones_beyond_float64():
    """In any order the result is that infinity, or NaN where the others overflow to the other one."""
    a, b = np.array([[np.inf, 1e200, 1e200]]), np.array([[-1e-300], [1e200], [1e-300]])
    ratio = accuracy.reference(a, b, model=model(F64, F64, F64)).ratio
    for right in (-np.inf, np.nan):
        assert ratio(np.array([[right]])) == 0
    for wrong in (np.inf, 1.0):
        assert ratio(np.array([[wrong]])) > 1


def test_components_of_complex_numbers_may_be_finite_where_the_modulus_is_not():
    a, b = np.array([[1.7e308 - 1.5e308j, 1e308]]), np.array([[1.0 + 0j], [0j]])
    a[0, 1], b[1, 0] = 1e308j, 0.5
    reference = accuracy.reference(a, b, model=model(C128, C128, C128))
    assert np.isfinite(reference.value)
    assert reference.ratio(np.array([[np.nextafter(1.7e308, 0) - 1e308j]])) <= 1


def test_what_no_float64_can_bound_is_not_judged():
    a, b = np.array([[1e200, -1e200]]), np.array([[1e200], [1e200]])
    reference = accuracy.reference(a, b, model=model(F64, F64, F64))
    assert reference.unjudged.all()
    for anything in (0.0, np.nan, -np.inf, 1e300):
        assert reference.ratio(np.array([[anything]])) == 0
    assert not np.isnan(reference.bound).any()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("case", [*((F32, x) for x in dtypes.PRECISIONS), (BF16, "ieee"), (F64, "ieee")], ids=str)
def test_the_sign_of_an_infinity_is_not_free(case, sign):
    """Neither that of an infinite operand, nor that of a sum whose terms overflow in one direction only."""
    dtype, precision = case
    big = 1e200 if dtype == F64 else 1e30
    error_model = model(dtype, dtype, dtype, precision)
    for a, b in (
        ([[sign * np.inf]], [[2]]), ([[1, sign * 3]], [[2], [np.inf]]), ([[sign * big]], [[big]]),
        ([[sign * big, -sign]], [[big], [1e10]]), ([[sign * big, sign * big]], [[big], [big]]),
    ):  # fmt: skip
        ratio = accuracy.reference(np.array(a, dtype), np.array(b, dtype), model=error_model).ratio
        assert ratio(np.array([[sign * np.inf]], dtype)) == 0, (a, b)
        for wrong in (-sign * np.inf, 0, 1):
            assert ratio(np.array([[wrong]], dtype)) > 1, (a, b)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_an_infinity_times_a_subnormal_may_be_nan_where_that_may_be_read_as_zero(dtype):
    a, b = np.array([[np.inf]], dtype), np.array([[1e-39]], dtype)
    for precision in dtypes.PRECISIONS:
        ratio = accuracy.reference(a, b, model=model(dtype, dtype, dtype, precision)).ratio
        assert ratio(np.array([[np.inf]], dtype)) == 0
        assert (ratio(np.array([[np.nan]], dtype)) == 0) == (dtype == BF16 or precision != "ieee")
        assert ratio(np.array([[-np.inf]], dtype)) > 1
        ratio = accuracy.reference(a, np.ones((1, 1), dtype), model=model(dtype, dtype, dtype, precision)).ratio
        assert ratio(np.array([[np.nan]], dtype)) > 1


def test_complex_values_that_are_not_finite():
    a, b = np.array([[complex(np.inf, 0), 1]], C64), np.array([[1 + 1j], [1]], C64)
    ratio = accuracy.reference(a, b, model=model(C64, C64, C64)).ratio
    assert ratio(np.array([[complex(np.nan, np.inf)]], C64)) == 0
    assert ratio(np.array([[1 + 1j]], C64)) == np.inf


# The epilogue


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("activation", [None, *ELEMENTWISE])
@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64])
def test_epilogues(dtype, activation, seed):
    rng = np.random.default_rng(seed)
    a, b = normal(rng, (40, 24), dtype), normal(rng, (24, 40), dtype)
    c, bias = normal(rng, (40, 40), dtype), normal(rng, 40, dtype)
    working = F64 if dtype == F64 else F32
    scalar = working.type
    x = scalar(0.3) * (a.astype(working) @ b.astype(working)) + scalar(-0.7) * c.astype(working) + bias.astype(working)
    got = accuracy.activate(x, activation).astype(dtype)
    arguments = {"alpha": 0.3, "beta": -0.7, "c": c, "bias": bias, "activation": activation}
    reference = accuracy.reference(a, b, model=model(dtype, dtype, dtype), **arguments)
    assert reference.ratio(got).max() <= 1
    without_bias = accuracy.activate(x - bias.astype(working), activation).astype(dtype)
    assert reference.ratio(without_bias).max() > 1


@pytest.mark.parametrize(("name", "other"), [("gelu", "gelu_tanh"), ("gelu_tanh", "gelu")])
def test_the_exact_gelu_is_not_the_tanh_gelu(name, other):
    from math import erf

    x = np.linspace(-4, 4, 201, dtype=F32)[:, None]
    one_by_one = np.ones((1, 1), F32)
    if name == "gelu":
        got = np.array([[0.5 * v * (1 + erf(v / 2**0.5))] for v in x[:, 0].tolist()], F32)
        assert worst(got, x, one_by_one, model(F32, F32, F32), activation="gelu") <= 1
    assert worst(accuracy.activate(x, name), x, one_by_one, model(F32, F32, F32), activation=name) <= 1
    assert worst(accuracy.activate(x, other), x, one_by_one, model(F32, F32, F32), activation=name) > 1


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
def test_approximate_activations_suit_narrow_results_only(activation):
    # What tanh.approx.f32 does: a relative error of 2**-11 in the transcendental function.
    x = np.linspace(-6, 6, 1001, dtype=F16)[:, None]
    wide, rough = x.astype(F64), 1 - 2.0**-11
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3) if activation == "gelu_tanh" else 0.5 * wide
    value = 0.5 * wide * (1 + rough * np.tanh(inner))
    unit = np.ones((1, 1), F16)
    assert worst(value.astype(F16), x, unit, model(F16, F16, F16), activation=activation) <= 1
    assert worst(value.astype(F32), x, unit, model(F16, F16, F32), activation=activation) > 1


def test_activate_refuses_unknown_names():
    with pytest.raises(ValueError, match="swish"):
        accuracy.activate(np.ones(2), "swish")


# Integers


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_are_exact_modulo_their_width(name, rng):
    dtype = np.dtype(name)
    limits = np.iinfo(dtype)
    a, b = (rng.integers(limits.min, limits.max, s, dtype, endpoint=True) for s in ((5, 30), (30, 6)))
    out = dtypes.result_dtype(dtype, dtype)
    exact = (a.astype(object) @ b.astype(object)) % 2 ** (8 * out.itemsize)
    got = exact.astype(np.uint64).astype(out)
    error_model = model(dtype, dtype, out)
    reference = accuracy.reference(a, b, model=error_model, out_dtype=out)
    assert reference.value.dtype == out
    assert reference.ratio(got).max() == 0
    got[1, 2] ^= out.type(1)
    assert reference.ratio(got).max() == np.inf


def test_bool_products_are_logical():
    a, b = np.array([[True, True], [False, True]]), np.array([[True], [False]])
    out = np.dtype(np.bool_)
    reference = accuracy.reference(a, b, model=model(out, out, out), out_dtype=out)
    assert reference.value.tolist() == [[True], [False]]


@pytest.mark.parametrize("out", [F32, F64])
def test_integers_with_a_float_result(out, rng):
    a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((6, 900), (900, 6)))
    product = a.astype(np.int32) @ b.astype(np.int32)
    bias = rng.standard_normal(6).astype(out)
    error_model = model(a.dtype, b.dtype, out)
    reference = accuracy.reference(a, b, model=error_model, out_dtype=out)
    assert reference.ratio(product.astype(out)).max() <= 1
    assert reference.ratio(np.nextafter(product.astype(F32), np.float32(np.inf)) * out.type(1.000001)).max() > 1
    scaled = (product.astype(out) * out.type(0.1) + bias).astype(out)
    reference = accuracy.reference(a, b, model=error_model, out_dtype=out, alpha=0.1, bias=bias)
    assert reference.ratio(scaled).max() <= 1


def test_eight_bit_accumulators_wrap_before_the_conversion():
    a, b = np.full((1, 40000), 255, np.uint8), np.full((40000, 1), 255, np.uint8)
    reference = accuracy.reference(a, b, model=model(a.dtype, b.dtype, F32), out_dtype=F32)
    assert reference.value == 40000 * 255 * 255 - 2**32
