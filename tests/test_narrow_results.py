"""Results narrower than their operands suggest: float8, which saturates, and 16 bits of 8-bit integers."""

from __future__ import annotations

import numpy as np
import pytest
from products import BF16, E4M3, E5M2, F16, F32, F64, I8, I32, U8, draw, ratio

import gemmhub
from gemmhub import accuracy, dtypes
from gemmhub.errors import DTypeError, OutputError

FP8 = (E4M3, E5M2)
OPERANDS = [(E4M3, E4M3), (E4M3, E5M2), (BF16, BF16), (F16, F16), (F32, F32), (BF16, E4M3), (F32, F16)]
INTEGERS = [(I8, I8), (U8, I8), (I8, U8), (U8, U8)]


def nearest(x, dtype):
    """``x`` in float8: the nearest of all finite numbers, ties to the even code, by search in their list."""
    codes = np.arange(128, dtype=np.uint8)
    numbers = codes.view(dtype).astype(F64)
    finite = np.isfinite(numbers)
    codes, numbers = codes[finite], numbers[finite]
    middles = (numbers[1:] + numbers[:-1]) / 2
    place = np.searchsorted(middles, np.abs(x))
    tie = np.isin(np.abs(x), middles)
    place = np.where(tie & (codes[place] % 2 == 1), place + 1, place)
    return np.where(np.isnan(x), np.nan, np.copysign(numbers[place], x))


def same(got, expected):
    return np.array_equal(np.asarray(got).astype(F64), expected, equal_nan=True)


def reference(a, b, got, **given):
    compute = dtypes.compute_dtype(a.dtype, b.dtype, got.dtype)
    model = accuracy.error_model(a.dtype, b.dtype, got.dtype, compute)
    return accuracy.reference(a, b, model=model, out_dtype=got.dtype, **given)


# float8


@pytest.mark.parametrize("out", FP8, ids=str)
@pytest.mark.parametrize("kinds", OPERANDS, ids=lambda kinds: ",".join(map(str, kinds)))
def test_a_float8_result_is_rounded_once_and_saturates(kinds, out, rng):
    """Sums of small integers are exact, and so is a scale that is a power of two: every bit is known."""
    seen = set()
    for size in (-18, -10, -4, 0, 3, 12):
        a = rng.integers(-4, 5, (23, 31)).astype(kinds[0])
        b = rng.integers(-4, 5, (31, 29)).astype(kinds[1])
        exact = np.ldexp(a.astype(F64) @ b.astype(F64), size)
        scale = np.array([2.0**size], F32)
        got = gemmhub.matmul(a, b, out_dtype=out, scale_out=scale)
        assert got.dtype == out
        expected = nearest(exact, out)
        assert same(got, expected)
        assert reference(a, b, got, scale_out=scale).ratio(got).max() <= 1
        seen |= {"saturated"} if (np.abs(exact) > dtypes.info(out).largest).any() else set()
        seen |= {"subnormal"} if (np.abs(expected[expected != 0]) < dtypes.info(out).smallest_normal).any() else set()
    assert seen == {"saturated", "subnormal"}


@pytest.mark.parametrize("out", FP8, ids=str)
def test_every_middle_of_two_numbers_rounds_to_the_even_one(out):
    numbers = np.arange(256, dtype=np.uint8).view(out).astype(F64)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    middles = (numbers[1:] + numbers[:-1]) / 2
    x = np.concatenate([numbers, middles, np.nextafter(middles, np.inf, dtype=F32)])[:, np.newaxis].astype(F32)
    got = gemmhub.matmul(x, np.ones((1, 1), F32), out_dtype=out)
    assert same(got, nearest(x.astype(F64), out))
    assert ratio(got, x, np.ones((1, 1), F32), out_dtype=out) <= 1


@pytest.mark.parametrize("out", FP8, ids=str)
def test_infinities_saturate_and_nan_stays(out):
    largest = dtypes.info(out).largest
    a = np.array([[np.inf, 1], [-np.inf, 1], [np.nan, 1], [np.inf, -np.inf], [3e38, 3e38], [1e30, 1]], F32)
    b = np.ones((2, 1), F32)
    got = gemmhub.matmul(a, b, out_dtype=out)
    assert same(got[:, 0], [largest, -largest, np.nan, np.nan, largest, largest])
    assert reference(a, b, got).ratio(got).max() <= 1
    alone, one = gemmhub.quantize(a[:3, :1], out, scale=np.float32(1))
    assert same(got[:3], alone.astype(F64))  # as quantize
    assert one == 1


@pytest.mark.parametrize("out", FP8, ids=str)
@pytest.mark.parametrize("kinds", OPERANDS, ids=lambda kinds: ",".join(map(str, kinds)))
def test_wide_exponents_are_within_the_bound(kinds, out, rng):
    """And half of a sum of positive terms is not."""
    for _ in range(3):
        m, n, k = (int(x) for x in rng.integers(1, 70, 3))
        a = np.ldexp(rng.standard_normal((m, k)), rng.integers(-6, 5, (m, k))).astype(kinds[0])
        b = np.ldexp(rng.standard_normal((k, n)), rng.integers(-6, 3, (k, n))).astype(kinds[1])
        given = {"scale_a": np.exp2(rng.uniform(-9, 3, (m, 1))).astype(F32), "bias": draw(rng, n, F32)}
        given["scale_out"] = np.array([2.0 ** rng.uniform(-4, 4)], F32)
        got = gemmhub.matmul(a, b, out_dtype=out, activation="silu", **given)
        expected = reference(a, b, got, activation="silu", **given)
        assert expected.ratio(got).max() <= 1
        positive = {name: np.abs(x) for name, x in given.items()}
        got = gemmhub.matmul(np.abs(a), np.abs(b), out_dtype=out, **positive)
        expected, values = reference(np.abs(a), np.abs(b), got, **positive), got.astype(F64)
        wrong = (values * 0.5).astype(F32).astype(out)
        assert (expected.ratio(wrong)[values >= 1] > 1).all()


@pytest.mark.parametrize("out", FP8, ids=str)
def test_the_bound_refuses_what_does_not_saturate(out):
    """Infinity and NaN beyond the range, the largest number of the other sign, and the number below the largest."""
    a, b, largest = np.array([[1000.0], [1e5]], F32), np.array([[1.0, 1e5]], F32), dtypes.info(out).largest
    right = gemmhub.matmul(a, b, out_dtype=out)
    expected = reference(a, b, right)
    assert right[1, 1] == largest
    below = np.array(right.view(np.uint8)[1, 1] - 1).view(out)
    for wrong in (np.array(np.nan).astype(out), np.array(-largest).astype(out), below, np.array(np.inf).astype(out)):
        bad = right.copy()
        bad[1, 1] = wrong
        assert expected.ratio(bad)[1, 1] > 1


@pytest.mark.parametrize("out", FP8, ids=str)
def test_overflow_on_the_way_is_excused_as_an_infinity_would_be(out):
    a, b = np.full((1, 3), 3e38, F32), np.array([[1.0], [1.0], [-1.99]], F32)
    got = gemmhub.matmul(a, b, out_dtype=out)
    expected = reference(a, b, got)
    largest = dtypes.info(out).largest
    assert expected.ratio(np.array([[largest]]).astype(out)).max() <= 1
    assert expected.ratio(np.array([[0.0]]).astype(out)).max() > 1


def test_scalars_beyond_float32_convert_from_float64(rng):
    """By way of float32 in ml_dtypes: two roundings are within the bound of one."""
    a, b = draw(rng, (40, 1), F32), np.ones((1, 40), F32)
    for out in FP8:
        got = gemmhub.matmul(a * np.float32(1e-35), b, out_dtype=out, alpha=1e39)
        assert ratio(got, a * np.float32(1e-35), b, out_dtype=out, alpha=1e39) <= 1


@pytest.mark.parametrize("out", FP8, ids=str)
def test_delayed_scaling_in_one_call(out, rng):
    """amax is of the value before scale_out, which does not saturate; the pre-activation is float32."""
    a, b = (32 * draw(rng, (33, 64), F32)).astype(E4M3), draw(rng, (64, 31), E4M3)
    largest, amax = dtypes.info(out).largest, np.empty(1, F32)
    given = {"activation": "relu", "scale_out": np.array([64 * largest], F32)}
    got, before = gemmhub.matmul(a, b, out_dtype=out, amax=amax, pre_activation=True, **given)
    assert before.dtype == F32
    expected = reference(a, b, got, amax=True, pre_dtype=np.dtype(F32), **given)
    assert expected.ratio(got).max() <= 1
    assert expected.amax.ratio(amax) <= 1
    assert expected.pre.ratio(before).max() <= 1
    assert amax == np.maximum(before, 0).max()
    assert (got.astype(F64) == largest).any()


@pytest.mark.parametrize("dtype", [BF16, F16, F32, E4M3], ids=str)
def test_addends_of_a_float8_result(dtype, rng):
    a, b = draw(rng, (9, 20), E4M3), draw(rng, (20, 7), E4M3)
    bias, c = draw(rng, 7, dtype), draw(rng, (9, 7), dtype)
    got = gemmhub.matmul(a, b, out_dtype=E4M3, bias=bias, c=c, beta=2)
    assert reference(a, b, got, bias=bias, c=c, beta=2).ratio(got).max() <= 1
    out = c.astype(E4M3)
    start = out.copy()
    assert gemmhub.matmul(a, b, out=out, c=out, beta=1) is out
    assert reference(a, b, out, c=start, beta=1).ratio(out).max() <= 1


def test_a_pre_activation_of_float8_is_refused(rng):
    a, b = draw(rng, (4, 8), BF16), draw(rng, (8, 4), BF16)
    with pytest.raises(
        DTypeError, match="pre_activation: dtype float8_e4m3fn; allowed: float32 or float16 or bfloat16"
    ):
        gemmhub.matmul(a, b, out_dtype=E4M3, activation="relu", pre_activation=np.empty((4, 4), E4M3))
    for dtype in (F32, F16, BF16):
        before = np.empty((4, 4), dtype)
        gemmhub.matmul(a, b, out_dtype=E4M3, activation="relu", pre_activation=before)
        assert ratio(before, a, b, out_dtype=dtype) <= 1


# 16 bits of 8-bit integers


@pytest.mark.parametrize("out", [BF16, F16], ids=str)
@pytest.mark.parametrize("kinds", INTEGERS, ids=lambda kinds: ",".join(map(str, kinds)))
def test_integers_with_a_result_of_16_bits(kinds, out, rng):
    for k in (1, 40, 300, 3000):
        a, b = draw(rng, (19, k), kinds[0]), draw(rng, (k, 23), kinds[1])
        scales = {
            "scale_a": np.exp2(rng.uniform(-12, 0, (19, 1))).astype(F32),
            "scale_b": np.exp2(rng.uniform(-12, 0, (1, 23))).astype(F32),
        }
        for given in ({}, scales, {**scales, "bias": draw(rng, 23, out), "activation": "gelu", "alpha": 0.3}):
            with np.errstate(all="ignore"):
                got = gemmhub.matmul(a, b, out_dtype=out, **given)
                assert got.dtype == out
                assert reference(a, b, got, **given).ratio(got).max() <= 1
        exact = a.astype(np.int64) @ b.astype(np.int64)
        with np.errstate(all="ignore"):
            assert same(gemmhub.matmul(a, b, out_dtype=out), exact.astype(F32).astype(out).astype(F64))


@pytest.mark.parametrize("out", [BF16, F16], ids=str)
@pytest.mark.parametrize("dtype", [None, F32, I32], ids=str)
def test_the_epilogue_of_integers_is_computed_in_float32(out, dtype):
    """4097 is no number of 16 bits: its sum with -4096 is 1 where the epilogue is wider, and 0 or 4 elsewhere."""
    a, b = np.array([[64, 1]], I8), np.array([[64], [1]], I8)
    bias = np.array([-4096]).astype(out if dtype is None else dtype)
    got = gemmhub.matmul(a, b, out_dtype=out, bias=bias)
    assert got == 1
    expected = reference(a, b, got, bias=bias)
    assert expected.ratio(np.array([[0]]).astype(out)) > 1
    assert gemmhub.matmul(a, b, out_dtype=out, c=bias.reshape(1, 1), beta=1) == 1
    before = np.empty((1, 1), F32)
    gemmhub.matmul(a, b, out_dtype=out, bias=bias, activation="relu", pre_activation=before)
    assert before == 1


def test_a_small_scale_makes_subnormal_numbers_of_float16(rng):
    a, b = draw(rng, (20, 30), I8), draw(rng, (30, 20), I8)
    scale = np.array(2.0**-33, F32)
    got = gemmhub.matmul(a, b, out_dtype=F16, scale_a=scale)
    assert reference(a, b, got, scale_a=scale).ratio(got).max() <= 1
    assert ((got != 0) & (np.abs(got.astype(F64)) < 2.0**-14)).any()


# What surrounds a product

PRODUCTS = [(E4M3, E4M3, E4M3), (BF16, BF16, E5M2), (I8, I8, BF16), (U8, I8, F16)]


@pytest.mark.parametrize("kinds", PRODUCTS, ids=lambda kinds: ",".join(map(str, kinds)))
def test_plans_packing_and_out(kinds, rng):
    a, b = draw(rng, (64, 96), kinds[0]), draw(rng, (96, 48), kinds[1])
    scale = np.full((1, 48), 2.0**-9, F32)
    expected = gemmhub.matmul(a, b, out_dtype=kinds[2], scale_b=scale)
    assert ratio(gemmhub.matmul(a, b, out_dtype=kinds[2]), a, b, out_dtype=kinds[2]) <= 1
    out = np.empty((64, 48), kinds[2])
    plan = gemmhub.plan(a, b, out_dtype=kinds[2], scale_b=scale)
    for got in (
        gemmhub.matmul(a, b, out=out, scale_b=scale), plan(a, b, scale_b=scale),
        gemmhub.matmul(a, gemmhub.pack(b, a_dtype=a.dtype), out_dtype=kinds[2], scale_b=scale),
    ):  # fmt: skip
        assert got.dtype == kinds[2]
        assert reference(a, b, got, scale_b=scale).ratio(got).max() <= 1
    assert same(out, expected.astype(F64))
    with pytest.raises(OutputError, match="out: "):
        gemmhub.matmul(a.astype(F64), b, out=np.empty((64, 48), E4M3))


@pytest.mark.parametrize("kinds", PRODUCTS, ids=lambda kinds: ",".join(map(str, kinds)))
@pytest.mark.parametrize("scaled", [False, True])
def test_spot_check_sees_a_wrong_row_and_passes_a_right_result(kinds, scaled, rng):
    """Of a product too large to be computed again."""
    m, n, k = 260, 320, 640
    a, b = draw(rng, (m, k), kinds[0]), draw(rng, (k, n), kinds[1])
    a = a if kinds[0] != U8 else a >> 4  # where most sums overflow float16, only a sample of these is looked at
    given = {"scale_b": np.exp2(rng.uniform(-14, -2, (1, n))).astype(F32)} if scaled else {}
    with np.errstate(all="ignore"):
        got = gemmhub.matmul(a, b, out_dtype=kinds[2], **given)
        verdict = gemmhub.spot_check(a, b, got, seed=int(rng.integers(99)), **given)
        assert verdict.ok, verdict
        assert kinds[2] not in FP8 or verdict.detects is None  # sums say little where elements saturate
        wrong = got.copy()
        wrong[17] = -wrong[17]
        assert not gemmhub.spot_check(a, b, wrong, seed=int(rng.integers(99)), **given).ok
        wrong = got.copy()
        wrong[5, 7] = np.nan
        assert not gemmhub.spot_check(a, b, wrong, seed=int(rng.integers(99)), **given).ok


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize(("kind", "out", "wrong"), [(F32, E4M3, 448), (I8, BF16, 5)])
def test_the_bound_of_an_activation_is_that_of_its_result(kind, out, wrong, activation):
    """At a large negative argument the result is 0, however coarse the dtype of the result is."""
    a, b = np.full((4, 8), 50, kind), np.full((8, 4), -50, kind)
    result = gemmhub.matmul(a, b, out_dtype=out, activation=activation)
    assert gemmhub.spot_check(a, b, result, activation=activation)
    assert not gemmhub.spot_check(a, b, np.full_like(result, wrong), activation=activation)


@pytest.mark.parametrize(
    ("a", "b", "out", "allowed"),
    [
        (F64, F32, "float8_e4m3fn", "float16, bfloat16, float32, float64, complex64, complex128"),
        (F32, I8, "float8_e4m3fn", "float16, bfloat16, float32, float64, complex64, complex128"),
        (I8, I8, "float8_e5m2", "int8, .*float16, bfloat16, float32, float64"),
        (I8, np.dtype(np.int16), "bfloat16", "int8, .*uint64, float32, float64"),
    ],
)
def test_other_operands_have_no_such_result(a, b, out, allowed):
    with pytest.raises(DTypeError, match=rf"out_dtype: {out} for {a} by {b}; allowed: {allowed}\. "):
        gemmhub.matmul(np.ones((2, 2), a), np.ones((2, 2), b), out_dtype=out)


def test_a_float8_product_names_every_result():
    with pytest.raises(DTypeError, match=r"no natural result; allowed: float16, .*float8_e4m3fn, float8_e5m2"):
        gemmhub.matmul(np.ones((2, 2), E4M3), np.ones((2, 2), E4M3))


SCALES_A = {"tensor": (1, 1), "row": (200, 1), "1x128": (200, 3), "tensor x 128": (1, 3)}
SCALES_B = {"tensor": (1, 1), "column": (1, 150), "128x1": (3, 150), "128x128": (3, 2), "column blocks": (1, 2)}


@pytest.mark.parametrize("kinds", [(E4M3, E4M3), (I8, BF16)], ids=str)
def test_a_decision_of_specs_and_its_record_name_every_granularity(kinds):
    """The record of one granularity is not taken for another."""
    a, b = np.ones((200, 300), kinds[0]), np.ones((300, 150), kinds[0])
    left, right = gemmhub.ArraySpec((200, 300), kinds[0]), gemmhub.ArraySpec((300, 150), kinds[0])
    keys, expected = set(), nearest(300.0, E4M3) if kinds[1] == E4M3 else 300
    for of_a, shape_a in SCALES_A.items():
        for of_b, shape_b in SCALES_B.items():
            arrays = {"scale_a": np.ones(shape_a, F32), "scale_b": np.ones(shape_b, F32)}
            specs = {name: gemmhub.ArraySpec(x.shape, F32) for name, x in arrays.items()}
            decision = gemmhub.explain(left, right, out_dtype=kinds[1], **specs)
            assert decision == gemmhub.explain(a, b, out_dtype=kinds[1], **arrays)
            assert decision.chosen is not None
            key = decision.problem.key
            assert f"scale_a={of_a.replace(' ', '_')}" in key
            assert f"scale_b={of_b.replace(' ', '_')}" in key
            assert f"->{kinds[1]}" in key
            keys.add(key)
            plan = gemmhub.plan(left, right, out_dtype=kinds[1], **specs)
            assert (plan(a, b, **arrays).astype(F64) == expected).all()
    assert len(keys) == len(SCALES_A) * len(SCALES_B)
