"""The bounds of scales, gated activations and written operands: right results are within them, mutations are not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from gemmhub import accuracy, dtypes
from gemmhub.epilogues import EPILOGUES

F16, F32, F64, I8 = (np.dtype(x) for x in (np.float16, np.float32, np.float64, np.int8))
BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
GATED = [name for name, x in EPILOGUES.items() if x.gate is not None]


def model(a, b, out):
    return accuracy.error_model(a, b, out, dtypes.compute_dtype(a, b, out))


def draw(rng, shape, dtype):
    if dtype == I8:
        return rng.integers(-128, 128, shape).astype(I8)
    return rng.standard_normal(shape).astype(dtype)


def factors(rng, *shape):
    return np.ldexp(rng.uniform(1, 2, shape), rng.integers(-3, 4, shape)).astype(F32)


def worst(got, reference):
    assert np.shape(got) == np.shape(reference.value)
    return float(np.max(reference.ratio(got), initial=0.0))


# Scales


def by_blocks(a, b, scale_a, scale_b, out, order="scales first"):
    """What kernels do: float32 products of each block of k, scaled in one order or another, and added."""
    total = np.zeros((a.shape[-2], b.shape[-1]), F32)
    for index, start in enumerate(range(0, a.shape[-1], 128)):
        part = a[:, start : start + 128].astype(F32) @ b[start : start + 128].astype(F32)
        left, right = scale_a[:, index, None], np.repeat(scale_b[index], 128)[: b.shape[-1]]
        if order == "scales first":
            total += part * (left * right)
        elif order == "one after the other":
            total += part * left * right
        else:  # fused: one rounding for the product and the sum
            total = (part.astype(F64) * left.astype(F64) * right + total).astype(F32)
    return total.astype(out)


@pytest.mark.parametrize("kinds", [(E4M3, F32), (E4M3, BF16), (BF16, F32), (F32, F32), (I8, F32), (F16, F16)], ids=str)
@pytest.mark.parametrize("order", ["scales first", "one after the other", "fused"])
@pytest.mark.parametrize("k", [100, 128, 300, 1024])
def test_scales_of_blocks(kinds, order, k, rng):
    dtype, out = kinds
    m, n, count = 20, 300, -(-k // 128)
    a, b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
    scale_a = factors(rng, m, count)
    scale_b = (rng.uniform(1, 1.1, (count, 3)) * np.outer(1 + np.arange(count), [1, 3, 9])).astype(F32)
    if out == F16:  # within its range
        scale_a = scale_a / 16
    got = by_blocks(a, b, scale_a, scale_b, out, order)
    reference = accuracy.reference(
        a, b, model=model(dtype, dtype, out), out_dtype=out, scale_a=scale_a, scale_b=scale_b
    )
    assert worst(got, reference) <= 1
    wrong = [(scale_a, scale_b[:, ::-1]), (scale_a[::-1], scale_b)]
    wrong += [(scale_a[:, ::-1], scale_b), (scale_a, scale_b[::-1])] if count > 1 else []
    for mutated in wrong:
        assert worst(by_blocks(a, b, *mutated, out, order), reference) > 1


@pytest.mark.parametrize(
    "shape", [(), (1,), (1, 1), (5,), (5, 1), (5, 3), (1, 3), (2, 5, 1), (2, 1, 3), (2, 5, 3)], ids=str
)
def test_every_shape_of_a_scale(shape, rng):
    """Of a as it is, of b transposed: what one dimension abbreviates, what blocks and matrices share."""
    a, b = draw(rng, (2, 5, 300), F64), draw(rng, (300, 400), F64)
    scale = factors(rng, *shape)
    whole = (
        scale.reshape(-1, 1)
        if len(shape) < 2
        else np.repeat(scale, 128, axis=-1)[..., :300]
        if shape[-1] == 3
        else scale
    )
    exact = (a * whole) @ b
    assert worst(exact, accuracy.reference(a, b, model=model(F64, F64, F64), scale_a=scale)) <= 1
    turned = scale if scale.ndim < 2 else scale.swapaxes(-1, -2)
    got = accuracy.reference(b.T, a.swapaxes(-1, -2), model=model(F64, F64, F64), scale_b=turned)
    assert worst(exact.swapaxes(-1, -2), got) <= 1


@pytest.mark.parametrize("count", [1, 3])
def test_blocks_of_columns(count, rng):
    a, b, scale = draw(rng, (4, 300), F64), draw(rng, (300, 270), F64), factors(rng, count, 3)
    whole = np.repeat(np.repeat(scale, 128, axis=1)[:, :270], 128 if count == 3 else 1, axis=0)[:300]
    reference = accuracy.reference(a, b, model=model(F64, F64, F64), scale_b=scale)
    assert worst(a @ (b * whole), reference) <= 1
    assert worst(a @ (b * whole[:, ::-1]), reference) > 1


def test_a_block_whose_scale_is_not_finite_promises_nothing(rng):
    a, b = draw(rng, (3, 300), F32), draw(rng, (300, 4), F32)
    scale = factors(rng, 3, 3)
    scale[1, 2] = np.nan
    reference = accuracy.reference(a, b, model=model(F32, F32, F32), scale_a=scale)
    got = np.zeros((3, 4), F32)
    assert reference.ratio(got)[1].max() == 0
    assert reference.ratio(got)[[0, 2]].min() > 1


def test_a_partial_product_of_one_block_may_underflow():
    """The sum of the first block by a small scale first, then by a large one; the second block stands beside it."""
    a, b = np.full((1, 256), 2.0**-20, F32), np.full((256, 1), 2.0**-20, F32)
    small, large = np.array([[2.0**-100, 1]], F32), np.array([[2.0**100], [1]], F32)
    exact = 128 * 2.0**-40
    reference = accuracy.reference(a, b, model=model(F32, F32, F32), scale_a=small, scale_b=large)
    for lost in (0.0, exact):  # flushed to 0, or not
        assert worst(np.array([[exact + lost]], F32), reference) <= 1
    assert worst(np.array([[2.0**-16]], F32), reference) > 1


# Gated activations and the scale of the result


def gated(x, name, dtype):
    """The gated activation in float32, rounded to ``dtype``."""
    return EPILOGUES[name](x.astype(F32)).astype(dtype)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, F64], ids=str)
@pytest.mark.parametrize("name", GATED)
def test_gated_activations(name, dtype, rng):
    working = F64 if dtype == F64 else F32
    a, b, bias = draw(rng, (30, 24), dtype), draw(rng, (24, 40), dtype), draw(rng, 40, dtype)
    x = working.type(1.5) * (a.astype(working) @ b.astype(working)) + bias.astype(working)
    reference = accuracy.reference(
        a, b, model=model(dtype, dtype, dtype), alpha=1.5, bias=bias, activation=name, out_dtype=dtype
    )
    assert worst(EPILOGUES[name](x).astype(dtype), reference) <= 1
    exchanged = (
        np.roll(x, 20, axis=1) if EPILOGUES[name].gate == "halves" else x.reshape(30, 20, 2)[:, :, ::-1].reshape(30, 40)
    )
    others = [exchanged, x - bias.astype(working), np.where(x < 0, 0, x)]
    for wrong in others:
        assert worst(EPILOGUES[name](wrong).astype(dtype), reference) > 1
    for other in GATED:
        if EPILOGUES[other] is not EPILOGUES[name]:
            assert worst(EPILOGUES[other](x).astype(dtype), reference) > 1


def test_the_tanh_form_of_a_gate_is_told_from_the_exact_one(rng):
    a, b = draw(rng, (50, 8), F32), draw(rng, (8, 40), F32)
    x = a @ b
    reference = accuracy.reference(a, b, model=model(F32, F32, F32), activation="geglu")
    gate, up = x[:, :20], x[:, 20:]
    assert worst(EPILOGUES["gelu"](gate) * up, reference) <= 1
    assert worst(EPILOGUES["gelu_tanh"](gate) * up, reference) > 1


def test_the_errors_of_both_factors_count():
    """The bound is attained up to the bound of the sums: each factor is off by as much as a sum may be."""
    a, b, error = np.ones((1, 1000), F32), np.ones((1000, 2), F32), model(F32, F32, F32).relative(1000)
    reference = accuracy.reference(a, b, model=model(F32, F32, F32), activation="swiglu")
    assert worst(np.array([[1000.0**2 * (1 + error) ** 2]], F32), reference) <= 1
    assert worst(np.array([[1000.0**2 * (1 + 1.2 * error) ** 2]], F32), reference) > 1


def test_infinite_factors_of_a_gate():
    inf, nan = np.inf, np.nan
    gate, up = [inf, -inf, 2, -2, -500, inf, 0, nan, 3e20, inf], [2, 2, inf, inf, inf, 0, -inf, 1, 3e20, 1e-3]
    pairs = np.array([gate, up], F32).T[:, None, :]  # (10, 1, 2)
    one = np.ones((10, 1, 1), F32)
    reference = accuracy.reference(one, pairs, model=model(F32, F32, F32), activation="swiglu")

    def judged(values):
        return reference.ratio(np.array(values, F32).reshape(10, 1, 1)).reshape(-1)

    assert judged([inf, 0, inf, -inf, -inf, nan, nan, nan, inf, inf]).max() == 0
    assert judged([inf, nan, inf, -inf, nan, nan, nan, nan, inf, inf]).max() == 0  # as computed, -inf * sigmoid(-inf)
    wrong = judged([-inf, 1, -inf, inf, 1, 1, 1, 1, 1, 1])
    assert (wrong[[0, 2, 3, 7, 8, 9]] > 1).all()


@pytest.mark.parametrize("activation", [None, "relu", "silu", "swiglu"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_the_scale_of_the_result(dtype, activation, rng):
    a, b, scale = draw(rng, (20, 24), dtype), draw(rng, (24, 40), dtype), np.array([-0.3], F32)
    x = a.astype(F32) @ b.astype(F32)
    reference = accuracy.reference(
        a, b, model=model(dtype, dtype, dtype), activation=activation, scale_out=scale, out_dtype=dtype
    )
    assert worst((accuracy.activate(x, activation) * scale).astype(dtype), reference) <= 1
    assert worst(accuracy.activate(x, activation).astype(dtype), reference) > 1
    if activation is not None:
        assert worst(accuracy.activate(x * scale, activation).astype(dtype), reference) > 1


def test_the_scale_of_the_result_comes_before_overflow():
    a, b = np.full((1, 1), 300, F16), np.full((1, 1), 300, F16)
    small, large = np.array(2.0**-4, F32), np.array(2.0**4, F32)
    reference = accuracy.reference(a, b, model=model(F16, F16, F16), scale_out=small, out_dtype=F16)
    assert worst(np.array([[90000 / 16]], F16), reference) <= 1
    assert worst(np.array([[np.inf]], F16), reference) > 1
    reference = accuracy.reference(a[:, :1] / 10, b, model=model(F16, F16, F16), scale_out=large, out_dtype=F16)
    assert worst(np.array([[np.inf]], F16), reference) == 0
    assert worst(np.array([[65504]], F16), reference) > 1
    reference = accuracy.reference(a, b, model=model(F16, F16, F16), scale_out=np.array(np.nan, F32), out_dtype=F16)
    assert worst(np.array([[1]], F16), reference) == 0


# Written operands


@pytest.mark.parametrize("pre", [F32, F16], ids=str)
@pytest.mark.parametrize("name", ["relu", "gelu", "swiglu"])
def test_the_argument_of_the_activation(name, pre, rng):
    a, b, bias = draw(rng, (20, 24), F16), draw(rng, (24, 40), F16), draw(rng, 40, F16)
    x = a.astype(F32) @ b.astype(F32) + bias.astype(F32)
    reference = accuracy.reference(
        a, b, model=model(F16, F16, F16), bias=bias, activation=name, out_dtype=F16, pre_dtype=pre,
        scale_out=np.array([3], F32),
    )  # fmt: skip
    assert worst(x.astype(pre), reference.pre) <= 1
    assert worst((x - bias.astype(F32)).astype(pre), reference.pre) > 1
    if pre == F32:
        assert worst(x.astype(F16).astype(F32), reference.pre) > 1
    # The function is applied to the argument that is not rounded.
    exact = (accuracy.activate(x, name) * 3).astype(F16)
    assert worst(exact, reference) <= 1
    assert accuracy.reference(a, b, model=model(F16, F16, F16)).pre is None


def test_the_argument_of_integers():
    a, b = np.array([[3, -5]], I8), np.array([[7], [11]], I8)
    exact = accuracy.reference(a, b, model=model(I8, I8, np.dtype(np.int32)), out_dtype=np.dtype(np.int32),
                               activation="relu", pre_dtype=np.dtype(np.int32))  # fmt: skip
    assert exact.value == 0
    assert exact.pre.value == -34
    rounded = accuracy.reference(a, b, model=model(I8, I8, F32), out_dtype=F32, alpha=0.1, activation="relu",
                                 pre_dtype=F32)  # fmt: skip
    assert worst(np.array([[-3.4]], F32), rounded.pre) <= 1
    assert worst(np.array([[0]], F32), rounded.pre) > 1


@pytest.mark.parametrize("dtype", [F32, F16, I8, F64], ids=str)
@pytest.mark.parametrize("name", [None, "relu", "gelu", "swiglu"])
def test_the_largest_magnitude(name, dtype, rng):
    out = F32 if dtype == I8 else dtype
    working = F64 if dtype == F64 else F32
    a, b = draw(rng, (20, 24), dtype), draw(rng, (24, 40), dtype)
    scale = np.array([0.01], F32)
    y = accuracy.activate(a.astype(working) @ b.astype(working), name)
    reference = accuracy.reference(
        a, b, model=model(dtype, dtype, out), activation=name, out_dtype=out, amax=True, scale_out=scale
    )
    largest = np.sort(np.abs(y), axis=None)[::-1]
    assert worst(largest[0].astype(F32), reference.amax) <= 1
    for wrong in (largest[1], largest[0] * scale[0], np.inf, np.nan, 0):
        assert worst(np.float32(wrong), reference.amax) > 1


def test_the_largest_magnitude_of_what_is_not_finite():
    ones = np.ones((1, 1), F32)

    def amax(column, **given):
        return accuracy.reference(np.array([column], F32).T, ones, model=model(F32, F32, F32), amax=True, **given).amax

    assert amax([1, np.nan, np.inf]).ratio(np.float32(np.nan)) == 0
    for wrong in (1, np.inf):
        assert amax([1, np.nan]).ratio(np.float32(wrong)) > 1
    assert amax([1, -np.inf]).ratio(np.float32(np.inf)) == 0
    for wrong in (1, np.nan, -np.inf):
        assert amax([1, -np.inf]).ratio(np.float32(wrong)) > 1
    for right in (3, np.nan):  # -inf times sigmoid(-inf)
        assert amax([3, -np.inf], activation="relu" if right == 3 else "silu").ratio(np.float32(right)) <= 1
    assert amax([]).ratio(np.float32(0)) == 0
    assert amax([]).ratio(np.float32(1)) > 1
    half = accuracy.reference(
        np.full((1, 1), 300, F16), np.full((1, 1), 300, F16), model=model(F16, F16, F16), amax=True
    )
    assert half.amax.ratio(np.float32(90000)) == 0  # before the result overflows
    # An element that may have overflowed excuses NaN and infinity, but no other number.
    big = np.array([[1e30, -1e30], [1, 2]], F32)
    found = accuracy.reference(big, np.array([[1e30], [1e30]], F32), model=model(F32, F32, F32), amax=True).amax
    assert found.ratio(np.float32(np.nan)) == found.ratio(np.float32(np.inf)) == 0


def test_what_no_product_reads_is_refused():
    one = np.ones((1, 1), F32)
    for name in ("amux", "pre_activation"):
        with pytest.raises(TypeError, match=name):
            accuracy.reference(one, one, model=model(F32, F32, F32), **{name: one})
