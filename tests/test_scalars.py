"""alpha and beta beyond float32's range: correct in every dtype on the CPU, refused on devices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from products import BF16, C64, C128, F16, F32, F64, I8, U8, draw, ratio

import gemmhub
from gemmhub import dtypes
from gemmhub._call.options import request
from gemmhub.capability import CPU, Device
from gemmhub.dtypes import scalar_class
from gemmhub.errors import InputError

WIDE = (1e40, -1e300, 1e-40, 1e-50, -1e-310, 2.0**128, 2.0**-127, 3.5e38, 10**60)
FITTING = (0, 1, -1.5, 2.0**-126, dtypes.info(F32).largest, np.inf, -np.inf, np.nan, 10**30)


@pytest.mark.parametrize("value", WIDE)
def test_wide_scalars_widen_the_accumulator(value):
    assert dtypes.scaled_dtype(F32, F16, value, 0) == dtypes.scaled_dtype(F32, F16, 1, value) == F64
    for number in (value, complex(1, value), complex(value, 1)):
        assert not dtypes.single(number)
        assert dtypes.scaled_dtype(C64, C64, number, 0) == C128
        assert dtypes.scaled_dtype(C128, C128, number, number) == C128


@pytest.mark.parametrize("value", FITTING)
def test_fitting_scalars_do_not(value):
    assert dtypes.single(value)
    assert dtypes.scaled_dtype(F32, F16, value, value) == F32
    assert dtypes.scaled_dtype(C64, C64, complex(1, value), value) == C64


def test_integers_with_a_float_result():
    """Their epilogue is computed in the result's dtype."""
    i32 = np.dtype(np.int32)
    assert dtypes.scaled_dtype(i32, F32, 1e40, 0) == F64
    assert dtypes.scaled_dtype(i32, F64, 1e40, 0) == i32
    assert dtypes.scaled_dtype(i32, i32, 3, 0) == i32


def test_the_examples():
    small, zeros = np.full((1, 1), 1e-15, F32), np.zeros((2, 2), F32)
    assert gemmhub.matmul(small, small, alpha=1e40)[0, 0] == pytest.approx(1e10)
    assert np.array_equal(gemmhub.matmul(zeros, zeros, alpha=1e40), zeros)
    large = np.full((1, 1), 1e15, F32)
    assert gemmhub.matmul(large, large, alpha=1e-50)[0, 0] == pytest.approx(1e-20)
    assert gemmhub.matmul(large, small, c=small, beta=1e40)[0, 0] == pytest.approx(1e25)
    half = np.full((1, 1), 2.0**-14, F16)
    got = gemmhub.matmul(half, half, alpha=0, beta=1e42, c=np.full((1, 1), 1e-38, F32))
    assert got.dtype == F16
    assert got[0, 0] == pytest.approx(1e4, rel=1e-3)


def _operand(rng, shape, dtype, power):
    """Normal numbers times ``10**power``, as far as the dtype goes; any integers."""
    if dtype.kind in "iu":
        return draw(rng, shape, dtype)
    power = max(-3, min(3, power)) if dtype == F16 else power
    return (draw(rng, shape, F64) * 10.0**power).astype(dtype)


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, C64, C128, I8, U8], ids=str)
@given(
    st.floats(-60, 60), st.floats(-60, 60), st.integers(-18, 18), st.integers(-36, 36), st.booleans(),
    st.sampled_from([None, "relu", "gelu"]), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_scalars_of_every_magnitude_keep_the_bound(dtype, alpha, beta, power, c_power, with_bias, activation, seed):
    rng = np.random.default_rng(seed)
    result = F32 if dtype.kind in "iu" or (seed % 3 == 0 and dtype.kind != "c") else dtype
    a, b = _operand(rng, (3, 17), dtype, power), _operand(rng, (17, 4), dtype, power)
    signs = rng.choice([-1.0, 1.0], 2)
    options = {
        "alpha": float(signs[0] * 10.0**alpha), "beta": float(signs[1] * 10.0**beta), "out_dtype": result,
        "c": _operand(rng, (3, 4), result, c_power), "activation": None if dtype.kind == "c" else activation,
        "bias": _operand(rng, (4,), result, c_power) if with_bias else None,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        assert ratio(gemmhub.matmul(a, b, **options), a, b, **options) <= 1


@pytest.mark.parametrize("dtype", [F32, F64, C64, I8], ids=str)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_infinite_and_nan_scalars_are_what_ieee_arithmetic_makes_of_them(dtype, value, rng):
    result = F32 if dtype == I8 else dtype
    a, b, c = draw(rng, (3, 4), dtype), draw(rng, (4, 5), dtype), draw(rng, (3, 5), result)
    a[1] = 0
    with np.errstate(all="ignore"):
        for scalars in ({"alpha": value}, {"alpha": 1, "beta": value, "c": c}):
            options = {**scalars, "out_dtype": result}
            got = gemmhub.matmul(a, b, **options)
            assert ratio(got, a, b, **options) <= 1
            assert not np.isfinite(got).any()
            assert ratio(np.zeros_like(got), a, b, **options) == np.inf  # what the reference would not take
            if dtype.kind == "f" and np.isinf(value):
                assert ratio(-got, a, b, **options) == np.inf
        assert np.isnan(gemmhub.matmul(a, b, alpha=value, out_dtype=result)[1]).all()  # 0 times infinity


def test_devices_refuse_what_float32_cannot_hold():
    for options, argument in (({"alpha": 1e40}, "alpha"), ({"c": 0, "beta": 1e-40}, "beta")):
        asked = request(options)
        assert asked.scaled(F32, F16, CPU) == F64
        assert asked.scaled(F64, F64, Device("cuda")) == F64
        with pytest.raises(InputError, match=r"1\.2e-38 to 3\.4e38") as raised:
            asked.scaled(F32, F16, Device("cuda"))
        assert raised.value.argument == argument


def test_a_call_and_its_cache_distinguish_the_scalars(rng):
    """Each scalar alone, before and after one of the other kind."""
    a, b = (draw(rng, (6, 6), F32) * F32.type(1e-12) for _ in range(2))
    for alpha in (2.0, 1e35, 1e50, 3.0, 1e39, 1e-50, 0.0, 1.0):
        assert ratio(gemmhub.matmul(a, b, alpha=alpha), a, b, alpha=alpha) <= 1
    assert scalar_class(1e38) != scalar_class(1e39)


def test_a_plan_takes_what_its_accumulator_holds(rng):
    a, b, c = (draw(rng, (6, 6), F32) for _ in range(3))
    out = np.zeros((6, 6), F32)
    narrow = gemmhub.plan(a, b, alpha=2, c=c, beta=2)
    for scalars in ({"alpha": 1e40}, {"beta": 1e-40}):
        with pytest.raises(InputError, match="make another plan"):
            narrow(a, b, out, c=c, **scalars)
    assert not out.any()
    wide = gemmhub.plan(a, b, alpha=1e-40, c=c, beta=2)
    for alpha in (1e-40, 1.0, 3.0, 1e-45):
        assert ratio(wide(a, b, c=c, alpha=alpha), a, b, c=c, beta=2, alpha=alpha) <= 1


def test_explain_and_records_have_the_accumulator(rng):
    a = draw(rng, (6, 6), F32)
    plain, wide = (gemmhub.explain(a, a, alpha=alpha).problem for alpha in (2, 1e40))
    assert "compute=" not in plain.key
    assert "compute=float64" in wide.key
    assert (plain.compute_dtype, wide.compute_dtype) == (F32, F64)


def test_packed_operands(rng):
    a, b = draw(rng, (6, 6), F32), draw(rng, (6, 6), F32)
    assert ratio(gemmhub.matmul(a, gemmhub.pack(b), alpha=1e-40), a, b, alpha=1e-40) <= 1


def test_c_has_the_dtypes_of_the_table(rng):
    """float64 addends are refused: the dtypes of c do not depend on the value of alpha."""
    a = draw(rng, (6, 6), F16)
    gemmhub.matmul(a, a, alpha=1e40, beta=1, c=draw(rng, (6, 6), F32))
    with pytest.raises(TypeError, match="float16 or float32"):
        gemmhub.matmul(a, a, alpha=1e40, beta=1, c=draw(rng, (6, 6), F64))
