"""gemmhub.quantize: narrow elements and scales, within the stated bound, that matmul takes without more."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from products import BF16, E4M3, E5M2, F16, F32, F64, I8

import gemmhub
from gemmhub import accuracy, dtypes
from gemmhub.errors import AllocationError, DTypeError, InputError, ShapeError
from gemmhub.scale_layouts import spread

TARGETS = [E4M3, E5M2, I8]
GROUPS = [("tensor", None), ("row", None), ("column", None), *(("block", x) for x in ((1, 128), (128, 1), (128, 128)))]


def drawn(rng, shape, dtype=F32, spread_by=6.0):
    """Numbers over many magnitudes."""
    x = rng.standard_normal(shape) * np.exp2(rng.normal(0, spread_by, shape))
    limit = dtypes.info(dtype).largest
    return np.clip(x, -limit, limit).astype(dtype)


def restored(q, scale):
    """The numbers that the elements stand for, in float64."""
    return q.astype(F64) * spread(scale.astype(F64), q.shape)


def worst(x, q, scale):
    """The largest error over its bound."""
    error = np.abs(x.astype(F64) - restored(q, scale))
    return np.max(error / accuracy.quantization_bound(x, scale, q.dtype), initial=0.0)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, E4M3], ids=str)
def test_errors_are_within_the_bound(target, group, dtype, rng):
    granularity, block = group
    for shape in ((3, 5), (130, 257), (2, 3, 129), (1, 1)):
        x = drawn(rng, shape, dtype)
        q, scale = gemmhub.quantize(x, target, granularity, block=block)
        assert q.shape == shape
        assert q.dtype == target
        assert scale.dtype == F32
        assert worst(x, q, scale) <= 1
        assert np.isfinite(accuracy.quantization_bound(x, scale, target)).all()


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_bound_is_attained_and_truncation_breaks_it(target, rng):
    x = np.abs(drawn(rng, (4, 500), F32, 1.0))
    q, scale = gemmhub.quantize(x, target, "row")
    assert worst(x, q, scale) > 0.95 / (1 + dtypes.info(target).unit_roundoff)  # of x halfway above a power of 2
    down = (q.view(np.int8) - (restored(q, scale) > x)).view(target)  # codes of positive numbers are in their order
    assert worst(x, down, scale) > 1.5
    unit, half = {E4M3: (2.0**-4, 2.0**-10), E5M2: (2.0**-3, 2.0**-17), I8: (0, 0.5)}[target]
    wide = x.astype(F64)
    expected = np.maximum(unit * wide, half * scale) + 2.0**-22 * wide + 2.0**-126
    assert np.allclose(accuracy.quantization_bound(x, scale, target), expected, rtol=1e-12)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_the_largest_magnitude_of_a_group_becomes_the_largest_number(target, group, rng):
    granularity, block = group
    x = drawn(rng, (130, 260), F32, 1.0)
    q, scale = gemmhub.quantize(x, target, granularity, block=block)
    rows, columns = block or {"row": (1, 260), "column": (130, 1), "tensor": (130, 260)}[granularity]
    largest = dtypes.info(target).largest
    for i in range(0, 130, rows):
        for j in range(0, 260, columns):
            part = np.s_[i : i + rows, j : j + columns]
            assert np.abs(q[part].astype(F32)).max() == largest
            factor = spread(scale, x.shape) if scale.ndim else scale
            assert np.isclose(np.broadcast_to(factor, x.shape)[i, j], np.abs(x[part]).max() / largest, rtol=1e-6)


def test_shapes_of_scales(rng):
    x = drawn(rng, (2, 130, 257))
    shapes = [gemmhub.quantize(x, I8, g, block=b)[1].shape for g, b in GROUPS]
    assert shapes == [(), (2, 130, 1), (2, 1, 257), (2, 130, 3), (2, 2, 257), (2, 2, 3)]
    assert gemmhub.quantize(x, I8, "block")[1].shape == (2, 130, 3)
    assert gemmhub.quantize(x[0, 0], I8)[1].shape == ()
    assert gemmhub.quantize([[1.0, -2.0]], "int8", "row")[0].tolist() == [[64, -127]]


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3), (0,)])
def test_empty_arrays(shape):
    for granularity, block in GROUPS if len(shape) > 1 else GROUPS[:1]:
        q, scale = gemmhub.quantize(np.ones(shape, F32), E4M3, granularity, block=block)
        assert q.shape == shape
        assert (scale == 1).all()
    if shape == (4, 0):
        q, scale = gemmhub.quantize(np.ones(shape, F32), E4M3, "row")
        assert (gemmhub.matmul(q, q.T, out_dtype=F32, scale_a=scale) == 0).all()


# The product


def bound_of_product(x, w, p, q, scale_a, scale_b):
    """The bound of the product of quantized operands from that of x and w."""
    dx = accuracy.quantization_bound(x, scale_a, p.dtype)
    dw = accuracy.quantization_bound(w, scale_b, q.dtype)
    ax, aw = np.abs(x.astype(F64)), np.abs(w.astype(F64))
    model = accuracy.error_model(p.dtype, q.dtype, F32, dtypes.compute_dtype(p.dtype, q.dtype, F32))
    own = accuracy.reference(p, q, model=model, out_dtype=F32, scale_a=scale_a, scale_b=scale_b).bound
    return dx @ aw + ax @ dw + dx @ dw + own


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("of_a", [*GROUPS[:2], GROUPS[3]], ids=str)
@pytest.mark.parametrize("of_b", [GROUPS[0], GROUPS[2], *GROUPS[4:]], ids=str)
def test_a_product_of_quantized_operands(target, of_a, of_b, rng):
    """Against float64; scales that are twice as large are outside of the bound."""
    batch = (2,) if of_a[0] == "row" else ()
    x, w = drawn(rng, (*batch, 7, 260), F32, 1.0), drawn(rng, (*batch, 260, 135), F32, 1.0)
    p, scale_a = gemmhub.quantize(x, target, of_a[0], block=of_a[1])
    q, scale_b = gemmhub.quantize(w, target, of_b[0], block=of_b[1])
    got = gemmhub.matmul(p, q, out_dtype="float32", scale_a=scale_a, scale_b=scale_b)
    bound, exact = bound_of_product(x, w, p, q, scale_a, scale_b), x.astype(F64) @ w.astype(F64)
    assert (np.abs(got - exact) <= bound).all()
    wrong = gemmhub.matmul(p, q, out_dtype="float32", scale_a=2 * scale_a, scale_b=scale_b)
    assert (np.abs(wrong - exact) > bound).any()


def test_quantized_activations_by_weights_in_floating_point(rng):
    x, w = drawn(rng, (3, 40), F32, 1.0), drawn(rng, (40, 5), F32, 1.0)
    q, scale = gemmhub.quantize(w, I8, "column")
    got = gemmhub.matmul(x, q, scale_b=scale)
    error = np.abs(x.astype(F64)) @ accuracy.quantization_bound(w, scale, I8)
    assert (np.abs(got - x.astype(F64) @ w.astype(F64)) <= error * (1 + 1e-3) + 1e-6).all()


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_scale_of_a_transpose_is_transposed(target, rng):
    """torch's weights are (n, k): rows of the weight are columns of b."""
    weight = drawn(rng, (150, 260), F32, 1.0)
    for by_row, by_column, block in (("row", "column", None), ("block", "block", (1, 128))):
        q, scale = gemmhub.quantize(weight, target, by_row, block=block)
        p, transposed = gemmhub.quantize(weight.T, target, by_column, block=block and block[::-1])
        assert np.array_equal(q.T, p)
        assert np.array_equal(scale.T, transposed)
        assert p.flags.f_contiguous  # the layout of x is kept, ragged blocks or not


# Numbers that are no numbers, or hardly any


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_infinities_saturate(target):
    x = np.array([[1, -2, np.inf, -np.inf], [np.inf, np.inf, 0, np.inf]], F32)
    q, scale = gemmhub.quantize(x, target, "row")
    largest = dtypes.info(target).largest
    assert scale[0, 0] == F32.type(2 / largest)
    assert q.astype(F32).tolist() == [[largest / 2 if target != I8 else 64, -largest, largest, -largest],
                                      [largest, largest, 0, largest]]  # fmt: skip
    assert scale[1, 0] == 1


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_nan_stays_nan(target):
    """In float8 the element; int8 has no NaN: the factors of its group, and so the rows of products."""
    x = np.array([[1, np.nan, 2], [4, 5, 6]], F32)
    q, scale = gemmhub.quantize(x, target, "row")
    assert np.isnan(restored(q, scale)).tolist() == [[target == I8, True, target == I8], [False] * 3]
    assert np.isnan(scale[0, 0]) == (target == I8)
    got = gemmhub.matmul(q, np.eye(3, dtype=target), out_dtype="float32", scale_a=scale)
    assert np.isnan(got[0]).all()
    assert not np.isnan(got[1]).any()


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_groups_of_zeros_and_of_subnormal_numbers(target):
    x = np.array([[0, -0.0, 0], [1e-45, -1e-44, 3e-39], [1e-37, 2e-38, 0]], F32)
    q, scale = gemmhub.quantize(x, target, "row")
    assert scale[0, 0] == 1
    assert (q[0].astype(F32) == 0).all()
    assert (scale >= 2.0**-126).all()
    assert worst(x, q, scale) <= 1
    assert np.isfinite(restored(q, scale)).all()


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_float64_beyond_the_range_of_float32(target):
    x = np.array([[1e300, -1e41, 1], [1e-300, 1e-310, 0]])
    q, scale = gemmhub.quantize(x, target, "row")
    assert np.isfinite(scale).all()
    assert np.isfinite(q.astype(F32)).all()
    assert worst(x, q, scale) <= 1  # 1e300 has none: it saturates
    unbounded = np.isinf(accuracy.quantization_bound(x, scale, target))
    assert unbounded.tolist() == [[True, target == I8, False], [False] * 3]


@pytest.mark.parametrize("target", [E4M3, E5M2, I8])
def test_the_bound_takes_dtypes_as_quantize_does(rng, target):
    x = rng.standard_normal((5, 300))
    _, scale = gemmhub.quantize(x, target, "block")
    expected = accuracy.quantization_bound(x, scale, np.dtype(target))
    short = gemmhub.dtypes.SHORT_DTYPES
    names = [name for name, full in short.items() if full == np.dtype(target).name]
    for given in (np.dtype(target).name, np.dtype(target).type, *names):
        assert np.array_equal(accuracy.quantization_bound(x, scale, given), expected)
    with pytest.raises(DTypeError, match="dtype: dtype int7 is not supported"):
        accuracy.quantization_bound(x, scale, "int7")


BOUND_SHAPES = [
    ((), True), ((1,), True), ((1, 1, 1), True), ((2, 1, 1), True), ((2, 150, 1), True), ((2, 1, 300), True),
    ((2, 150, 3), True), ((2, 2, 300), True), ((2, 2, 3), True), ((1, 150, 3), True), ((150, 1), False),
    ((300,), False), ((2, 151, 1), False), ((2, 1, 4), False), ((3, 150, 1), False), ((2, 150, 0), False),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "fits"), BOUND_SHAPES)
def test_the_scales_that_the_bound_takes(rng, shape, fits):
    x, scale = rng.standard_normal((2, 150, 300)), np.ones(shape, F32)
    if fits:
        assert accuracy.quantization_bound(x, scale, "int8").shape == x.shape
        return
    with pytest.raises(ShapeError, match="scale: shape"):
        accuracy.quantization_bound(x, scale, "int8")


def test_a_vector_has_one_scale(rng):
    x = rng.standard_normal(6)
    assert accuracy.quantization_bound(x, np.float32(1), "int8").shape == (6,)
    with pytest.raises(ShapeError, match=r"scale: shape \(6,\) for x of shape \(6,\); allowed: one element"):
        accuracy.quantization_bound(x, np.ones(6, F32), "int8")


def test_no_state_of_numpy_changes_a_result(rng):
    x = np.array([[np.nan, np.inf, 1e-45, 1e38]], F32)
    before = x.copy()
    expected = gemmhub.quantize(x, E4M3, "row")
    with np.errstate(all="raise"):
        q, scale = gemmhub.quantize(x, E4M3, "row")
        accuracy.quantization_bound(x, scale, E4M3)
        gemmhub.quantize(x, I8, "row")
    assert q.tobytes() == expected[0].tobytes()
    assert np.array_equal(scale, expected[1])
    assert x.tobytes() == before.tobytes()


# A scale of the caller's


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_the_same_scale_gives_the_same_elements(group, rng):
    granularity, block = group
    x = drawn(rng, (130, 260))
    q, scale = gemmhub.quantize(x, E4M3, granularity, block=block)
    again, same = gemmhub.quantize(x, E4M3, granularity, block=block, scale=scale)
    assert same is scale
    assert np.array_equal(q, again)
    smaller, _ = gemmhub.quantize(x, E4M3, granularity, block=block, scale=scale / 4)
    assert np.abs(smaller.astype(F32)).max() == 448
    assert worst(x, smaller, np.asarray(scale / 4, F32)) <= 1


def test_delayed_scaling(rng):
    """Two layers: the first product multiplies its result by an earlier step's scale, and measures the next one's."""
    w, v = drawn(rng, (64, 48), F32, 0.5), drawn(rng, (48, 32), F32, 0.5)
    (p, of_w), (r, of_v) = gemmhub.quantize(w, E4M3, "column"), gemmhub.quantize(v, E4M3, "column")
    model = accuracy.error_model(E4M3, E4M3, F32, F32)
    step, amax, saturated = np.float32(1), np.empty(1, F32), []
    for size in (1, 1, 1.5, 8):
        x = (size * drawn(rng, (20, 64), F32, 0.5)).astype(F32)
        q, of_x = gemmhub.quantize(x, E4M3, "row")
        given = {"scale_a": of_x, "scale_b": of_w, "activation": "relu", "scale_out": np.array([1 / step], F32)}
        hidden = gemmhub.matmul(q, p, out_dtype="float32", **given, amax=amax)
        first = accuracy.reference(q, p, model=model, out_dtype=F32, amax=True, **given)
        assert first.ratio(hidden).max() <= 1
        assert first.amax.ratio(amax) <= 1
        h, one = gemmhub.quantize(hidden, E4M3, scale=np.float32(1))
        second = {"scale_a": np.array(step), "scale_b": of_v}
        out = gemmhub.matmul(h, r, out_dtype="float32", **second)
        bound = accuracy.reference(h, r, model=model, out_dtype=F32, **second).bound

        whole, limit = np.maximum(x.astype(F64) @ w.astype(F64), 0), 448 * float(step)
        saturated.append(bool((whole > limit).any()))
        exact = np.minimum(whole, limit)  # elements beyond the scale's range saturate
        error = bound_of_product(x, w, q, p, of_x, of_w) + 2.0**-22 * whole  # two roundings of the step's scale
        error += accuracy.quantization_bound(np.minimum(hidden, 448), one, E4M3) * step
        assert (np.abs(restored(h, one) * step - exact) <= error).all()
        dv = accuracy.quantization_bound(v, of_v, E4M3)
        assert (np.abs(out - exact @ v.astype(F64)) <= bound + error @ (np.abs(v) + dv) + exact @ dv).all()
        step = np.float32(amax[0] / 448)
    assert saturated[-1]  # 8 times as large as the step before


@pytest.mark.parametrize("target", TARGETS)
def test_scales_that_are_no_positive_numbers(target):
    """Values of a caller's scale are not checked: what they give is what the docstring states."""
    x, largest = np.array([2, -3, 0], F32), dtypes.info(target).largest
    none = 0 if target == I8 else np.nan
    for scale, elements in ((0, [largest, -largest, none]), (np.inf, [0, 0, 0]), (np.nan, [none] * 3)):
        q, kept = gemmhub.quantize(x, target, scale=np.float32(scale))
        assert np.array_equal(q.astype(F32), np.array(elements, F32), equal_nan=True)
        with np.errstate(invalid="ignore"):
            assert scale == 0 or np.isnan(q.astype(F32) * kept).all()
    for given in (np.float32(0.5), np.float32(-0.5)):
        assert restored(*gemmhub.quantize(x, target, scale=given)).tolist() == [2, -3, 0]


# Refusals

ONES = np.ones((4, 4), F32)


@pytest.mark.parametrize(
    ("x", "given", "error", "message"),
    [
        (ONES, {"dtype": "int16"}, DTypeError, "dtype: int16; allowed: float8_e4m3fn, float8_e5m2, int8"),
        (ONES, {"dtype": "bfloat16"}, DTypeError, "dtype: bfloat16; allowed"),
        (ONES, {"dtype": "float8_e8m0fnu"}, DTypeError, "dtype: float8_e8m0fnu: formats of 4 bits, and scales of 8"),
        (ONES, {"dtype": ml_dtypes.float4_e2m1fn}, DTypeError, "float4_e2m1fn"),
        (ONES, {"dtype": "nothing"}, DTypeError, "dtype: dtype nothing is not supported; allowed: float8_e4m3fn, "),
        (ONES, {"dtype": "i8"}, DTypeError, "to NumPy; allowed: float8_e4m3fn, float8_e5m2, int8"),
        (ONES, {"granularity": "block", "block": 128}, InputError, "(128, 128). pass rows and columns of a block"),
        (ONES, {"granularity": "block", "block": [1, 32]}, InputError, "(128, 128). pass rows and columns of a block"),
        (ONES, {"granularity": "rows"}, InputError, "'rows'; allowed: tensor, row, column, block. did you mean 'row'?"),
        (ONES, {"granularity": ["row"]}, InputError, "granularity: ['row']; allowed"),
        (ONES, {"granularity": "row", "block": (1, 128)}, InputError, "block: given for granularity 'row'"),
        (ONES, {"granularity": "block", "block": (1, 32)}, InputError, "block: (1, 32); allowed: (1, 128), (128, 1)"),
        (ONES, {"granularity": "block", "block": (32, 32)}, InputError, "blocks of 32 and 16 (MX, NV formats)"),
        (ONES[0], {"granularity": "row"}, ShapeError, "x: shape (4,); allowed: matrices for granularity 'row'"),
        (ONES.astype(I8), {}, DTypeError, "x: dtype int8; allowed: real floating"),
        (ONES.astype(complex), {}, DTypeError, "x: dtype complex128"),
        (ONES.astype(">f4"), {}, DTypeError, "x: dtype >f4"),
        (ONES.astype(object), {}, DTypeError, "x: dtype object"),
        (np.ma.masked_array(ONES), {}, InputError, "x: a MaskedArray"),
        ("text", {}, InputError, "x: a str; allowed: arrays of NumPy, torch and JAX"),
        (ONES, {"scale": 0.5}, DTypeError, "scale: dtype float64; allowed: float32"),
        (ONES, {"scale": ONES[0]}, ShapeError, "scale: shape (4,); allowed: shape ()"),
        (ONES, {"scale": ONES[0], "granularity": "row"}, ShapeError, "scale: shape (4,); allowed: shape (4, 1)"),
        (ONES, {"scale": "x"}, InputError, "scale: a str"),
    ],
)  # fmt: skip
def test_refusals(x, given, error, message):
    with pytest.raises(error, match=re.escape(message)):
        gemmhub.quantize(x, **{"dtype": "int8", **given})


@pytest.mark.parametrize("granularity", ["tensor", "row", "column", "block"])
def test_an_array_too_large_for_memory(granularity):
    """One element in memory stands for 10**15, which no address space holds."""
    x = np.broadcast_to(F32.type(1), (10**8, 10**7))
    for scale in (None, F32.type(1)) if granularity == "tensor" else (None,):
        with pytest.raises(AllocationError, match=r"memory ran out: .*; free some"):
            gemmhub.quantize(x, "int8", granularity, scale=scale)
