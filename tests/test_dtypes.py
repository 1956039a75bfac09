"""Every dtype by every other: the documented result, and values within the bound, at every extreme."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from products import (
    BF16,
    BOOL,
    C64,
    C128,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    INTEGERS,
    NATURAL,
    U8,
    U16,
    U64,
    draw,
    integer_product,
    natural_result,
    ratio,
)  # fmt: skip

import gemmhub
from gemmhub import dtypes
from gemmhub.errors import DTypeError

SEEDS = st.integers(0, 2**32 - 1)
FP8 = (E4M3, E5M2)


@pytest.mark.parametrize("left", NATURAL, ids=str)
@pytest.mark.parametrize("right", NATURAL, ids=str)
def test_every_combination(left, right, rng):
    a, b = draw(rng, (6, 9), left), draw(rng, (9, 5), right)
    expected = natural_result(left, right)
    with np.errstate(all="ignore"):
        got = gemmhub.matmul(a, b)
        assert got.dtype == expected
        assert ratio(got, a, b) <= 1
        if BF16 not in (left, right) and not {left, right} <= {I8, U8}:
            assert got.dtype == np.matmul(a, b).dtype


@pytest.mark.parametrize("left", [*NATURAL, *FP8], ids=str)
def test_every_out_dtype(left, rng):
    """With an equal operand and with another: all that the table names work, all others are refused."""
    for right in (left, F16 if left in FP8 else U8 if left == I8 else F32):
        a, b = draw(rng, (6, 9), left), draw(rng, (9, 5), right)
        kinds = {dtypes.info(x).kind for x in (left, right)}
        if "complex" in kinds:
            allowed = {C64, C128}
        elif kinds & {"float", "float8"}:
            allowed = {F16, BF16, F32, F64, C64, C128}
            allowed |= set(FP8) if {left, right} <= {F16, BF16, F32, *FP8} else set()
        elif kinds == {"bool"}:
            allowed = {F16, F32, F64, BOOL, *INTEGERS}
        else:
            allowed = {F32, F64, *INTEGERS, *((F16, BF16) if {left, right} <= {I8, U8} else ())}
        for wanted in (*NATURAL, *FP8):
            if wanted in allowed:
                with np.errstate(all="ignore"):
                    got = gemmhub.matmul(a, b, out_dtype=wanted)
                    assert ratio(got, a, b, out_dtype=wanted) <= 1
                    out = np.empty((6, 5), wanted)
                    gemmhub.matmul(a, b, out=out)
                assert out.tobytes() == got.tobytes()
            else:
                with pytest.raises(DTypeError):
                    gemmhub.matmul(a, b, out_dtype=wanted)


def test_names_of_dtypes(rng):
    x = draw(rng, (3, 3), F16)
    for name in ("bfloat16", "float32", "f8", np.float16, float, ml_dtypes.bfloat16, F64, "half"):
        wanted = BF16 if name == "bfloat16" else np.dtype(name)
        assert gemmhub.matmul(x, x, out_dtype=name).dtype == wanted


# Integers are exact


@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.sampled_from([1, 3, 300, 1025, 2049, 2500]), SEEDS)
def test_integers_are_exact_modulo_their_width(left, right, k, seed):
    rng = np.random.default_rng(seed)
    a, b = draw(rng, (3, k), left), draw(rng, (k, 4), right)
    result = natural_result(left, right)
    if result.kind == "f":
        assert ratio(gemmhub.matmul(a, b), a, b) <= 1
        return
    got = gemmhub.matmul(a, b)
    assert got.dtype == result
    assert np.array_equal(got, integer_product(a, b, result))
    wide = np.dtype(rng.choice([I16, I32, I64, U16, U64, I8, U8]))
    assert np.array_equal(gemmhub.matmul(a, b, out_dtype=wide), integer_product(a, b, wide))


@pytest.mark.parametrize("left", [I8, U8, I16, U16], ids=str)
@pytest.mark.parametrize("right", [I8, U8, I16, U16], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 255, 256, 257, 1023, 1024, 1025, 1040, 1041, 2049, 5000])
def test_extreme_integers_at_every_length(left, right, k):
    """All elements at the ends of their range: the sums that leave 24 bits first."""
    result = natural_result(left, right)
    for x, y in itertools.product(_ends(left), _ends(right)):
        a, b = np.full((2, k), x, left), np.full((k, 3), y, right)
        got = gemmhub.matmul(a, b)
        assert np.array_equal(got, np.broadcast_to(integer_product(a[:1], b[:, :1], result), (2, 3)))
        exact = gemmhub.matmul(a, b, out_dtype=I64)
        assert np.all(exact == int(x) * int(y) * k)


def _ends(dtype):
    bounds = np.iinfo(dtype)
    return (bounds.max, bounds.min) if bounds.min else (bounds.max,)


@pytest.mark.parametrize("k", [1024, 1025, 70000, 140000])
def test_int8_sums_near_and_beyond_32_bits(k):
    """-128 * -128 * k reaches 2**31 at k = 131072 and wraps, as int32 does."""
    a, b = np.full((1, k), -128, np.int8), np.full((k, 1), -128, np.int8)
    expected = np.int64(16384) * k
    assert gemmhub.matmul(a, b)[0, 0] == np.array(expected).astype(np.int32)
    assert gemmhub.matmul(a, b, out_dtype=np.int64)[0, 0] == expected
    assert gemmhub.matmul(a, -b - 1)[0, 0] == np.array(-128 * 127 * k).astype(np.int32)


@pytest.mark.parametrize(("left", "right"), [(U8, U8), (U8, I8), (I8, U8)], ids=str)
def test_8_bit_integers_of_any_signedness_give_int32(left, right):
    """255 * 255 * k reaches 2**31 at k = 33026; beyond, the sum is what it is modulo 2**32."""
    a, b = np.array([[_ends(left)[0]]], left), np.array([[_ends(right)[-1]]], right)
    assert gemmhub.matmul(a, b).dtype == I32
    assert gemmhub.matmul(a, b)[0, 0] == int(a[0, 0]) * int(b[0, 0])
    for k in (255, 1040, 33025, 33026, 66052, 70000):
        x, y = np.repeat(a, k, 1), np.repeat(b, k, 0)
        exact = np.int64(a[0, 0]) * np.int64(b[0, 0]) * k
        assert gemmhub.matmul(x, y)[0, 0] == exact.astype(I32)
        assert gemmhub.matmul(x, gemmhub.pack(y, a_dtype=left))[0, 0] == exact.astype(I32)
        assert gemmhub.matmul(x, y, out_dtype=I64)[0, 0] == exact
        assert gemmhub.matmul(x, y, out=np.empty((1, 1), U8))[0, 0] == exact.astype(U8)


@pytest.mark.parametrize(
    ("left", "right"), [(BOOL, I8), (I8, I16), (U8, I16), (I16, U16), (U8, U64), (I64, U64)], ids=str
)
def test_other_integers_keep_numpys_dtypes(left, right, rng):
    """bool is no 8-bit integer: bool by int8 is int8, and wraps, as in NumPy."""
    a, b = draw(rng, (3, 300), left), draw(rng, (300, 4), right)
    got, expected = gemmhub.matmul(a, b), np.matmul(a, b)
    assert got.dtype == expected.dtype
    if expected.dtype.kind != "f":
        assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("right", "result"), [(BOOL, BF16), (I8, BF16), (U8, BF16), (I16, F32), (U16, F32), (I32, F64), (U64, F64)], ids=str
)
def test_bfloat16_by_integers(right, result, rng):
    a, b = draw(rng, (6, 300), BF16), draw(rng, (300, 5), right)
    for x, y in ((a, b), (b.T, a.T)):
        for out_dtype in (None, F32, F64, BF16):
            got = gemmhub.matmul(x, y, out_dtype=out_dtype)
            assert got.dtype == (result if out_dtype is None else out_dtype)
            assert ratio(got, x, y, out_dtype=out_dtype) <= 1


@pytest.mark.parametrize("letters", [("l", "q"), ("L", "Q")], ids=str)
def test_longlong_is_a_separate_type(letters):
    """Equal to int64 as a dtype, and in every cache; its scalars are of numpy.longlong, as NumPy's."""
    for left, right in 3 * (letters, letters[::-1], letters[:1] * 2, letters[1:] * 2):
        a, b = np.arange(3, dtype=left), np.arange(3, dtype=right)
        plan = gemmhub.plan(np.arange(3, dtype=letters[0]), np.arange(3, dtype=letters[0]))
        for got in (gemmhub.matmul(a, b), gemmhub.matmul(a, b, alpha=1), plan(a, b)):
            assert got == 5
            assert type(got) is type(np.matmul(a, b))
        assert gemmhub.matmul(a[np.newaxis], b).dtype.char == np.matmul(a[np.newaxis], b).dtype.char
        for wanted in letters:
            assert gemmhub.matmul(a, b, out_dtype=np.dtype(wanted)).dtype.char == wanted


@pytest.mark.parametrize("dtype", [*FLOATS, E5M2], ids=str)
def test_real_products_into_complex_results(dtype, rng):
    """numpy.matmul takes a complex ``out``; alpha, beta, c and bias may then be complex."""
    a, b = draw(rng, (6, 9), dtype), draw(rng, (9, 5), dtype)
    wanted = C128 if dtype == F64 else C64
    out = np.empty((6, 5), wanted)
    assert gemmhub.matmul(a, b, out=out) is out
    assert ratio(out, a, b, out_dtype=wanted) <= 1
    options = {"alpha": 2 - 1j, "beta": 1j, "c": draw(rng, (6, 5), wanted), "bias": draw(rng, (5,), wanted)}
    assert ratio(gemmhub.matmul(a, b, out=out, **options), a, b, out_dtype=wanted, **options) <= 1
    with pytest.raises(DTypeError, match="activation"):
        gemmhub.matmul(a, b, out=out, activation="relu")
    if dtype != E5M2:
        assert gemmhub.spot_check(a, b, gemmhub.matmul(a, b, out_dtype=wanted))


@pytest.mark.parametrize("dtype", [I8, I16, U8, U16, I32, I64, U64], ids=str)
@pytest.mark.parametrize("out_dtype", [None, I8, U8, I16, I32, I64, U64], ids=str)
def test_integer_epilogues_wrap_before_the_activation(dtype, out_dtype, rng):
    a, b = draw(rng, (5, 40), dtype), draw(rng, (40, 6), dtype)
    result = (I32 if dtype in (I8, U8) else dtype) if out_dtype is None else out_dtype
    c, bias = draw(rng, (5, 6), result), draw(rng, (6,), result)
    for activation in (None, "relu"):
        options = {"alpha": -3, "beta": 2, "c": c, "bias": bias, "activation": activation}
        got = gemmhub.matmul(a, b, out_dtype=out_dtype, **options)
        exact = -3 * np.matmul(a.astype(object), b.astype(object)) + 2 * c.astype(object) + bias.astype(object)
        expected = (exact % 2**64).astype(np.uint64).astype(result)
        if activation:
            expected = np.maximum(expected, result.type(0))
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("dtype", [I8, U8, I16, I32], ids=str)
def test_integers_into_floats(dtype, rng):
    a, b = draw(rng, (5, 300), dtype), draw(rng, (300, 6), dtype)
    for wanted in (F32, F64):
        options = {"alpha": 0.25, "bias": draw(rng, (6,), wanted), "activation": "gelu", "out_dtype": wanted}
        assert ratio(gemmhub.matmul(a, b, **options), a, b, **options) <= 1


def test_booleans_are_or_of_and(rng):
    a, b = draw(rng, (7, 9), BOOL), draw(rng, (9, 8), BOOL)
    expected = (a[:, :, np.newaxis] & b[np.newaxis]).any(1)
    assert np.array_equal(gemmhub.matmul(a, b), expected)
    c = draw(rng, (7, 8), BOOL)
    assert np.array_equal(gemmhub.matmul(a, b, c=c, beta=1), expected | c)
    counts = a.astype(int) @ b.astype(int)
    assert np.array_equal(gemmhub.matmul(a, b, out_dtype=I32), counts)


# Floats at every extreme


def _wide(rng, shape, dtype, reach):
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-reach, reach + 1, shape))
    return (x * np.exp(1j * rng.uniform(0, 7, shape)) if dtype.kind == "c" else x).astype(dtype)


REACH = {F16: 7, BF16: 60, F32: 60, F64: 500, C64: 60, C128: 500, E4M3: 3, E5M2: 7}


@pytest.mark.parametrize("dtype", [*FLOATS, C64, C128, E4M3, E5M2], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_wide_exponents(dtype, seed, rng):
    m, n = rng.integers(1, 30, 2)
    k = int(rng.choice([1, 7, 64, 1000, 5000]))
    a, b = _wide(rng, (m, k), dtype, REACH[dtype]), _wide(rng, (k, n), dtype, REACH[dtype])
    out_dtype = F32 if dtype in FP8 else None
    with np.errstate(all="ignore"):
        assert ratio(gemmhub.matmul(a, b, out_dtype=out_dtype), a, b, out_dtype=out_dtype) <= 1


@pytest.mark.parametrize("dtype", [*FLOATS, C64, C128, E5M2], ids=str)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity(dtype, special, rng):
    out_dtype = F16 if dtype == E5M2 else None
    a, b = draw(rng, (9, 11), dtype), draw(rng, (11, 8), dtype)
    a[2, 3] = special
    b[5, 6] = -special
    with np.errstate(all="ignore"):
        got = gemmhub.matmul(a, b, out_dtype=out_dtype)
        assert ratio(got, a, b, out_dtype=out_dtype) <= 1
        finite = np.isfinite(np.asarray(got).astype(np.complex128))
        assert not finite[2].any()
        assert not finite[:, 6].any()
        assert finite[np.arange(9) != 2][:, np.arange(8) != 6].all()
        a[2, 4] = -special  # both infinities in one row: NaN
        got = gemmhub.matmul(a, np.abs(b) if dtype != E5M2 else b, out_dtype=out_dtype)
        if dtype.kind != "c" and dtype != E5M2:
            assert np.isnan(got[2].astype(np.float64)).all()
        for activation in ("relu", "gelu", "silu"):
            if dtype.kind != "c":
                options = {"activation": activation, "out_dtype": out_dtype}
                assert ratio(gemmhub.matmul(a, b, **options), a, b, **options) <= 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_overflow_of_the_result_is_infinity(dtype):
    largest = float(dtypes.info(dtype).largest)
    a = np.full((2, 2), largest, np.float64).astype(dtype)
    b = np.array([[1, -1], [1, -1]], dtype)
    with np.errstate(all="ignore"):
        assert np.array_equal(gemmhub.matmul(a, b).astype(np.float64), [[np.inf, -np.inf]] * 2)


def test_half_precision_partial_sums_do_not_overflow():
    """65504 + 65504 - 65504 is a float16; accumulating in float16 would make it infinite."""
    a, b = np.full((1, 3), 65504, F16), np.array([[1], [1], [-1]], F16)
    assert gemmhub.matmul(a, b)[0, 0] == 65504
    assert gemmhub.matmul(np.ones((1, 70000), F16), np.ones((70000, 1), F16), out_dtype=F32)[0, 0] == 70000


@pytest.mark.parametrize("dtype", [*FLOATS, C64, C128, E4M3, E5M2], ids=str)
def test_subnormal_numbers(dtype, rng):
    tiny = dtypes.info(dtype).smallest_normal
    out_dtype = F32 if dtype in FP8 else None
    shape = (7, 40)
    small = (rng.standard_normal(shape) * tiny / 4).astype(dtype)
    root = (rng.standard_normal(shape[::-1]) * tiny**0.5).astype(dtype)
    ordinary = draw(rng, shape[::-1], dtype)
    for b in (ordinary, root):
        with np.errstate(all="ignore"):
            assert ratio(gemmhub.matmul(small, b, out_dtype=out_dtype), small, b, out_dtype=out_dtype) <= 1
    with np.errstate(all="ignore"):
        left = root.T.copy()
        assert ratio(gemmhub.matmul(left, root, out_dtype=out_dtype), left, root, out_dtype=out_dtype) <= 1


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_over_the_whole_range(activation, dtype):
    """Every magnitude and both signs, from the subnormal to infinity."""
    exponents = np.linspace(-1080, 1023, 2200) if dtype == F64 else np.linspace(-150, 127, 1200)
    with np.errstate(all="ignore"):
        x = np.exp2(exponents)
        x = np.concatenate([-x, [-np.inf, -0.0, 0.0, np.inf], x]).astype(dtype)[:, np.newaxis]
        one = np.ones((1, 1), dtype)
        got = gemmhub.matmul(x, one, activation=activation)
        assert ratio(got, x, one, activation=activation) <= 1
        assert not np.isnan(got.astype(np.float64)).any()


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
def test_random_shapes_with_float32_accumulation(dtype, rng):
    """The bound of a product rounded once at the end is far below that of one accumulated in half precision."""
    a, b = draw(rng, (20, 4000), dtype), draw(rng, (4000, 20), dtype)
    got = gemmhub.matmul(a, b, out_dtype=F32).astype(np.float64)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.max(np.abs(got - exact)) < 4000 * 2.0**-24 * np.max(
        np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    )


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("bf61", "bfloat16"),
        ("FP166", "float16"),
        ("e4m3x", "float8_e4m3fn"),
        ("bfloat", "bfloat16"),
        ("flaot32", "float32"),
    ],
)
def test_an_unknown_name_of_a_dtype_gets_a_suggestion(given, meant):
    with pytest.raises(DTypeError, match=rf"; {meant}\?$"):
        gemmhub.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), out_dtype=given)


def test_an_unknown_result_dtype_gets_a_remedy_for_names():
    with pytest.raises(
        DTypeError, match=r"out_dtype: dtype float61 is not supported; allowed: float16, .*\. name one of"
    ):
        gemmhub.matmul(np.ones((2, 2)), np.ones((2, 2)), out_dtype="float61")


@pytest.mark.parametrize(("short", "name"), dtypes.SHORT_DTYPES.items())
def test_short_names(short, name):
    """The command line takes the same ones."""
    assert dtypes.as_dtype(short) == dtypes.as_dtype(short.upper()) == dtypes.as_dtype(name)


def test_dtypes_of_every_library():
    for value in (BF16, ml_dtypes.bfloat16, "bfloat16", "bf16"):
        assert gemmhub.matmul(np.ones((2, 2), F32), np.ones((2, 2), F32), out_dtype=value).dtype == BF16
    assert dtypes.as_dtype("float8_e4m3") == E4M3
    assert dtypes.as_dtype("f8") == F64  # NumPy's own name
    for value in (ml_dtypes.float8_e4m3, "float8_e4m3b11fnuz", "f8x"):
        with pytest.raises(DTypeError):
            dtypes.as_dtype(value)


@pytest.mark.parametrize("name", ["i8", "u8", "I8"])
def test_names_of_two_dtypes_are_refused(name):
    a = np.ones((2, 2), np.int8)
    with pytest.raises(
        DTypeError, match=rf"out_dtype: '{name}', which is u?int8 to some and u?int64 to NumPy.*name u?"
    ):
        gemmhub.matmul(a, a, out_dtype=name)
