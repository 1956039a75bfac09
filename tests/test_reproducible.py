"""The same call on the same operands gives the same bits: first, warm or planned, with or without ``out=``."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from products import BF16, C64, C128, F16, F32, F64, I8, I32, draw, relaid

import gemmhub

SIZES = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 24, 31, 43, 64, 70])
BATCHES = st.sampled_from([((), ()), ((), ()), ((3,), ()), ((3,), (3,)), ((2, 3), (3,)), ((1,), (2,)), ((2, 3), ())])
SHAPES = st.one_of(
    st.tuples(SIZES, SIZES, SIZES, BATCHES).map(lambda x: ((*x[3][0], x[0], x[2]), (*x[3][1], x[2], x[1]))),
    st.tuples(SIZES, SIZES).map(lambda x: ((x[0],), (x[0], x[1]))),
    st.tuples(SIZES, SIZES).map(lambda x: ((x[0], x[1]), (x[1],))),
    SIZES.map(lambda k: ((k,), (k,))),
)
RELATIONS = st.sampled_from(["dense", "transposed", "any"])


def laid(rng, x, how):
    if how == "transposed" and x.ndim > 1:
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    return relaid(rng, x)[0] if how == "any" else x


def ways(rng, a, b, **options):
    """(name, result) of one product in every form of call."""
    gemmhub.reload()
    first = gemmhub.matmul(a, b, **options)
    yield "first", first
    yield "second", gemmhub.matmul(a, b, **options)
    yield "planned", gemmhub.plan(a, b, **options)(a, b)
    with gemmhub.use(reproducible=options.get("reproducible")):
        rest = {name: value for name, value in options.items() if name != "reproducible"}
        for turn in ("first", "second"):
            yield f"{turn} in a context", gemmhub.matmul(a, b, **rest)
        yield "planned in a context", gemmhub.plan(a, b, **rest)(a, b)
    if not first.shape:
        return
    dtype = first.dtype
    targets = {"dense out": np.empty(first.shape, dtype)}
    if options.get("reproducible"):
        targets["padded out"] = np.empty((*first.shape[:-1], first.shape[-1] + 3), dtype)[..., :-3]
        targets["strided out"] = relaid(rng, np.zeros(first.shape, dtype))[0]
        targets["column-major out"] = laid(rng, np.empty(first.shape, dtype), "transposed")
        if a.shape == first.shape and a.dtype == dtype:
            targets["out that is a"] = None
    rest = {name: value for name, value in options.items() if name != "out_dtype"}
    for name, out in targets.items():
        for state in ("first", "second", "planned"):
            left, right = a, b
            if out is None:
                left = target = np.copy(a) if a.flags.c_contiguous else a.copy("K")
                if left.strides != a.strides:
                    continue
            else:
                target = out
            if state == "first":
                gemmhub.reload()
            if state == "planned":
                gemmhub.plan(left, right, out=target, **rest)(left, right, target)
            else:
                gemmhub.matmul(left, right, out=target, **rest)
            yield f"{name}, {state}", target.copy()


def differing(rng, a, b, **options):
    results = list(ways(rng, a, b, **options))
    expected = results[0][1].tobytes()
    return [name for name, result in results[1:] if np.asarray(result).tobytes() != expected]


@given(SHAPES, st.sampled_from([F32, F64, C64, C128, F16, BF16, I8, I32]), RELATIONS, RELATIONS,
       st.booleans(), st.integers(0, 2**32 - 1))  # fmt: skip
def test_every_form_of_a_call_returns_the_same_bits(shapes, dtype, left, right, deterministic, seed):
    """Where determinism is not required, the bits may depend only on the strides of ``out``."""
    rng = np.random.default_rng(seed)
    a, b = (laid(rng, draw(rng, shape, dtype), how) for shape, how in zip(shapes, (left, right)))
    options = {"reproducible": "run"} if deterministic else {}
    assert not differing(rng, a, b, **options)


@given(st.sampled_from([F32, F64, F16, BF16]), RELATIONS, RELATIONS, st.sampled_from([(), (3,)]),
       st.sampled_from([None, "relu", "gelu"]), st.integers(0, 2**32 - 1))  # fmt: skip
def test_epilogues(dtype, left, right, batch, activation, seed):
    rng = np.random.default_rng(seed)
    m, n, k = rng.integers(1, 70, 3)
    a, b = laid(rng, draw(rng, (*batch, m, k), dtype), left), laid(rng, draw(rng, (k, n), dtype), right)
    options = {"bias": draw(rng, (n,), dtype), "activation": activation, "reproducible": "run"}
    gemmhub.reload()
    expected = gemmhub.matmul(a, b, **options)
    planned = gemmhub.plan(a, b, **options)
    assert np.array_equal(gemmhub.matmul(a, b, **options), expected)
    assert np.array_equal(planned(a, b, bias=options["bias"]), expected)
    for out in (np.empty(expected.shape, dtype), relaid(rng, np.zeros(expected.shape, dtype))[0]):
        assert np.array_equal(gemmhub.matmul(a, b, out=out, **options), expected)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_batch_that_is_folded_into_one_product(deterministic, rng):
    options = {"reproducible": "run"} if deterministic else {}
    for i in range(40):
        a, b = rng.standard_normal((3, 24, 43 + i)), rng.standard_normal((26, 43 + i)).T
        assert not differing(rng, a, b, **options)


def test_what_determinism_copies_is_listed():
    a, b, out = np.ones((8, 9)), np.ones((9, 10)), np.empty((8, 20))[:, :10]
    (copy,) = gemmhub.explain(a, b, out=out, reproducible="run", backend="numpy")["numpy"].copies
    assert (copy.operand, copy.nbytes) == ("out", 8 * 10 * 8)
    assert not gemmhub.explain(a, b, reproducible="run")["numpy"].copies
