"""Every operand and epilogue on the NumPy backend: whole, in blocks, in stacks, and with data of any size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from products import BF16, E4M3, F16, F32, F64, I8, I32, draw, relaid

import gemmhub
from gemmhub import accuracy, dtypes
from gemmhub._call import describe
from gemmhub._call.options import request
from gemmhub.epilogues import EPILOGUES, NUMPY
from gemmhub.errors import DTypeError
from gemmhub.numpy_backend import blocked
from gemmhub.numpy_backend.activations import activate
from gemmhub.numpy_backend.backend import NumpyBackend

KINDS = [(F32, F32), (F64, F64), (F16, F16), (BF16, F32), (E4M3, BF16), (I8, F32), (I8, F64), (F16, F32)]


def factors(rng, *shape):
    return np.ldexp(rng.uniform(1, 2, shape), rng.integers(-4, 2, shape)).astype(F32)


def scales_of(rng, batch, m, n, k):
    """Scales of a and of b of every granularity."""
    deep, wide = -(-k // 128), -(-n // 128)
    rows = [(), (1,), (m,), (m, 1), (m, deep), (1, deep), (*batch, m, 1), (*batch, 1, 1), (*batch, m, deep)]
    columns = [(), (n,), (1, n), (deep, n), (deep, wide), (1, wide), (deep, 1), (*batch, 1, n), (*batch, deep, wide)]
    pick = lambda shapes: factors(rng, *shapes[rng.integers(len(shapes))])  # noqa: E731
    return pick(rows), pick(columns)


def call(rng, kinds, batch, m, n, k):
    """The operands of a random call, and its options."""
    dtype, out = kinds
    a = draw(rng, (*batch, m, k), dtype)
    b = draw(rng, (*batch, k, n) if rng.random() < 0.5 else (k, n), dtype)
    options = {
        "out_dtype": out,
        "alpha": float(rng.choice([1, 0.5])),
        "activation": [None, *EPILOGUES][rng.integers(1 + len(EPILOGUES))],
    }
    scale_a, scale_b = scales_of(rng, batch, m, n, k)
    every = {
        "c": draw(rng, (*batch, m, n), out), "bias": draw(rng, n if rng.random() < 0.5 else (m, 1), out),
        "scale_a": scale_a / F32.type(64 if dtype in (I8, F16) else 1), "scale_b": scale_b,
        "scale_out": factors(rng, 1), "pre_activation": np.zeros((*batch, m, n), out), "amax": np.zeros(1, F32),
    }  # fmt: skip
    options |= {name: x for name, x in every.items() if rng.random() < 0.5}
    return a, b, options | ({"beta": -0.5} if "c" in options else {})


def worst(got, a, b, options):
    """The largest error over its bound, of all that a call wrote."""
    written = {name: options[name] for name in ("pre_activation", "amax") if name in options}
    read = {name: x for name, x in options.items() if name not in written}
    model = accuracy.error_model(a.dtype, b.dtype, got.dtype, dtypes.compute_dtype(a.dtype, b.dtype, got.dtype))
    pre = written["pre_activation"].dtype if "pre_activation" in written else None
    want = accuracy.reference(
        a, b, model=model, pre_dtype=pre, amax="amax" in written, **{**read, "out_dtype": got.dtype}
    )
    assert got.shape == want.value.shape
    ratios = [want.ratio(got)]
    ratios += [want.pre.ratio(written["pre_activation"])] if pre is not None else []
    ratios += [want.amax.ratio(written["amax"])] if "amax" in written else []
    return max(float(np.max(x, initial=0.0)) for x in ratios)


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
@pytest.mark.parametrize("size", [(5, 6, 7), (40, 150, 300)], ids=str)
def test_random_calls(kinds, batch, size, rng):
    for _ in range(6):
        m, n, k = (int(rng.integers(1, x + 1)) for x in size)
        a, b, options = call(rng, kinds, batch, m, 2 * n, k)
        for _ in range(2):  # decided, and seen before
            for name in ("pre_activation", "amax"):
                if name in options:
                    options[name][...] = np.nan
            assert worst(gemmhub.matmul(a, b, **options), a, b, options) <= 1, options


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("activation", [None, "gelu", "swiglu", "swiglu_interleaved"])
def test_in_blocks_as_whole(kinds, activation, rng):
    """Blocks of 64 columns, or of 32 pairs, and of 128 or fewer of k."""
    dtype, out = kinds
    m, n, k = 150, 270, 700
    a, b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
    options = {
        "out_dtype": out, "activation": activation, "scale_a": factors(rng, m, 6) / F32.type(64),
        "scale_b": factors(rng, 6, 3), "bias": draw(rng, n, out), "scale_out": factors(rng, 1),
        "pre_activation": np.empty((m, n), out), "amax": np.empty(1, F32),
    }  # fmt: skip
    described = describe.describe(a, b, None, request(options))
    gemm = blocked.BlockedGemm(described.problem, 2**16)
    assert gemm.blocks.rows < m
    assert gemm.blocks.cols < n
    assert gemm.blocks.depth <= 128
    got = np.empty(described.out_shape, out)
    gemm(a, b, got, 1, 0, **{name: options[name] for name in described.problem.operands})
    assert worst(got, a, b, options) <= 1
    wrong = {**options, "scale_b": options["scale_b"][::-1]}
    assert worst(got, a, b, {name: x for name, x in wrong.items() if name not in ("pre_activation", "amax")}) > 1


@pytest.mark.parametrize("kind", [F32, F16, I8], ids=str)
def test_packed_b_in_any_layout_and_over_c(kind, rng):
    out_dtype = F32 if kind == I8 else kind
    a, b = draw(rng, (20, 300), kind), draw(rng, (300, 40), kind)
    given = {"scale_a": factors(rng, 20, 3) / F32.type(64), "scale_b": factors(rng, 3, 1), "out_dtype": out_dtype}
    packed = gemmhub.pack(b, backend="numpy")
    for activation in ("silu", "swiglu"):
        options = {**given, "activation": activation, "amax": np.empty(1, F32)}
        assert worst(gemmhub.matmul(a, packed, **options), a, b, options) <= 1
        options["pre_activation"] = relaid(rng, np.empty((20, 40), out_dtype))[0]
        out = relaid(rng, np.empty((20, 40 if activation == "silu" else 20), out_dtype))[0]
        gemmhub.matmul(relaid(rng, a)[0], relaid(rng, b)[0], out=out, **options)
        assert worst(out, a, b, options) <= 1
    c = draw(rng, (20, 40), out_dtype)
    options = {**given, "activation": "gelu", "beta": 2.0, "c": c.copy()}
    gemmhub.matmul(a, b, out=c, **{**options, "c": c})
    assert worst(c, a, b, options) <= 1


def test_reproducible_results_have_the_same_bits_for_any_out(rng):
    a, b, scale = draw(rng, (60, 300), F32), draw(rng, (300, 80), F32), factors(rng, 3, 80)
    options = {"activation": "geglu", "scale_b": scale, "reproducible": "run"}
    expected = gemmhub.matmul(a, b, **options)
    for _ in range(4):
        out = relaid(rng, np.empty((60, 40), F32))[0]
        assert np.array_equal(gemmhub.matmul(a, b, out=out, **options), expected)


def test_the_largest_magnitude_of_nan_and_infinities(rng):
    a, b = draw(rng, (200, 100), F32), draw(rng, (100, 120), F32)
    amax = np.zeros(1, F32)
    a[150, 3] = np.inf
    gemmhub.matmul(a, b, amax=amax, scale_out=np.array([0.5], F32))
    assert np.isinf(amax[0])
    a[7, 3] = np.nan
    gemmhub.matmul(a, b, amax=amax, activation="relu")
    assert np.isnan(amax[0])


def test_the_argument_of_a_floating_result_is_not_written_to_integers(rng):
    a, b, pre = draw(rng, (3, 4), I8), draw(rng, (4, 6), I8), np.full((3, 6), 7, I32)
    with pytest.raises(DTypeError, match="pre_activation: dtype int32; allowed: float32"):
        gemmhub.matmul(a, b, out_dtype=F32, alpha=0.1, pre_activation=pre)
    assert (pre == 7).all()


def test_the_largest_magnitude_of_no_elements_is_zero():
    for m, n, k in ((0, 4, 3), (4, 0, 3), (2, 2, 0)):
        amax = np.full(1, np.nan, F32)
        for _ in range(2):
            gemmhub.matmul(np.ones((m, k), F32), np.ones((k, n), F32), amax=amax)
            assert amax[0] == 0


def test_integers_write_what_the_activation_is_applied_to(rng):
    for dtype, out in ((I8, I32), (I32, I32)):
        a, b = draw(rng, (9, 8), dtype), draw(rng, (8, 6), dtype)
        pre = np.empty((9, 6), out)
        got = gemmhub.matmul(a, b, activation="relu", pre_activation=pre)
        assert np.array_equal(got, np.maximum(pre, 0))
        assert np.array_equal(pre, (a.astype(np.int64) @ b.astype(np.int64)).astype(out))


@pytest.mark.parametrize("data", ["wide", "strange"])
@pytest.mark.parametrize("kinds", [(F32, F32), (F16, F16), (BF16, BF16), (F64, F64)], ids=str)
def test_wide_exponents_and_strange_numbers_raise_no_false_alarm(kinds, data, rng):
    dtype, _ = kinds
    for _ in range(30):
        a, b, options = call(
            rng, kinds, (), *(int(x) for x in (rng.integers(1, 9), 2 * rng.integers(1, 5), rng.integers(1, 300)))
        )
        for x in (a, b, *(options[name] for name in ("c", "bias") if name in options)):
            if data == "wide":
                span = {F16: 10, F64: 300}.get(dtype, 60)
                x[...] = np.ldexp(x.astype(F64), rng.integers(-span, span, x.shape)).astype(dtype)
            else:
                x[rng.random(x.shape) < 0.01] = rng.choice([np.inf, -np.inf, np.nan])
        with np.errstate(all="ignore"):
            got = gemmhub.matmul(a, b, **options)
            assert worst(got, a, b, options) <= 1, options


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_functions_in_place_are_within_their_bound(name, dtype):
    """Dense and strided tiles of more than one piece; the function of a gate alone."""
    x = np.concatenate(
        [np.linspace(-30, 30, 200_000), np.geomspace(1e-30, 1e30, 1000), -np.geomspace(1e-30, 1e30, 1000)]
    )
    x = np.append(x, [np.inf, -np.inf, np.nan, 0]).astype(dtype)
    tile = np.stack([x, x], axis=1)
    dense = x[np.newaxis].copy()
    with np.errstate(all="ignore"):
        activate(name, dense)
        activate(name, tile[:, ::2])
        function = EPILOGUES[name]
        exact = function.formula(x.astype(F64), NUMPY)
    assert np.array_equal(dense[0], tile[:, 0], equal_nan=True)
    assert np.array_equal(tile[:, 1], x, equal_nan=True)
    finite = np.isfinite(x) & (np.abs(exact) < dtypes.info(dtype).largest)
    evaluation = function.evaluation * (dtypes.info(dtype).unit_roundoff + 2.0**-53)
    arguments = x[finite].astype(F64)
    gate = replace(function, gate=None)
    bound = gate.bound(
        (arguments,), (np.zeros_like(arguments),), evaluation, 0.0, dtypes.info(dtype).smallest_normal
    )  # fmt: skip
    assert (np.abs(dense[0][finite] - exact[finite]) <= bound).all()
    assert np.array_equal(dense[0][-4:], exact[-4:], equal_nan=True)


def test_blocks_of_a_gated_product_keep_within_the_limit(rng):
    """What is asked of the kernel's memory holds with two panels of b and an addend as well."""
    a, b, c = draw(rng, (90, 900), F16), draw(rng, (900, 500), F16), draw(rng, (90, 500), F16)
    for activation in ("swiglu", "swiglu_interleaved"):
        problem = describe.describe(a, b, None, request({"activation": activation, "c": c, "beta": 2})).problem
        kernel = NumpyBackend().prepare(problem, "default", 2**18)
        assert kernel.workspace_bytes <= 2**18
        out = np.empty((90, 250), F16)
        kernel.run(a, b, out, 1, 2, None, c=c)
        assert worst(out, a, b, {"activation": activation, "c": c, "beta": 2}) <= 1
