"""Scales that differ by block of k: a product for each block, added in float32."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import block_scales
from gemmhub_cpu.backend import CpuBackend

import gemmhub
from gemmhub import accuracy
from gemmhub._call.describe import describe
from gemmhub._call.options import request
from gemmhub.backend import Kernel
from gemmhub.capability import Refusal

pytestmark = pytest.mark.compiler
Array = Any
E4M3, E5M2, BF16 = (np.dtype(getattr(ml_dtypes, x)) for x in ("float8_e4m3fn", "float8_e5m2", "bfloat16"))
PAIRS = ((E4M3, E4M3), (E4M3, E5M2), (np.dtype(np.int8), np.dtype(np.int8)), (BF16, E4M3), (BF16, np.dtype(np.int8)))
SIZES = ((1, 300, 400), (7, 129, 140), (33, 257, 700), (130, 50, 129), (3, 1, 256), (1, 1, 513), (64, 130, 190))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng()


@pytest.fixture
def backend() -> CpuBackend:
    backend = CpuBackend(by_cost=False)
    if backend.machine.why_no_native:
        pytest.skip(backend.machine.why_no_native)
    return backend


def elements(rng: np.random.Generator, dtype: Any, *shape: int) -> Array:
    if dtype == np.int8:
        return rng.integers(-128, 128, shape, np.int8)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape)).astype(dtype)


def factors(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 4, shape)).astype(np.float32)


def scales(rng: np.random.Generator, m: int, n: int, k: int) -> list[tuple[Array | None, Array | None]]:
    blocks, of_n = -(-k // 128), -(-n // 128)
    of_a = [(m, blocks), (1, blocks), (m, 1), None]
    of_b = [(blocks, of_n), (blocks, n), (blocks, 1), (1, n), None]
    pairs = [x for x in itertools.product(of_a, of_b) if blocks in ((x[0] or (0, 0))[1], (x[1] or (0, 0))[0])]
    return [tuple(None if shape is None else factors(rng, *shape) for shape in pair) for pair in pairs]  # type: ignore[misc]


def reference(a: Array, b: Array, dtype: Any, **options: Any) -> accuracy.Reference:
    sums = np.dtype(np.int32 if a.dtype == b.dtype == np.int8 else np.float32)
    model = accuracy.error_model(a.dtype, b.dtype, dtype, sums)
    return accuracy.reference(a, b, model=model, out_dtype=dtype, **options)


def run(backend: CpuBackend, a: Array, b: Array, out: Array, limit: int = 1 << 26, **options: Any) -> None:
    call = describe(a, b, out, request(options))
    kernel = backend.prepare(call.problem, "native", limit)
    assert isinstance(kernel, Kernel), kernel
    named = {name: call.operands[name] for name in call.problem.operands}
    kernel.run(call.a, call.b, call.out, 1, 0, None, **named)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda x: "-".join(map(str, x)))
def test_every_form_of_scales_is_within_the_bound(backend: CpuBackend, pair: Any, rng: np.random.Generator) -> None:
    for i, (m, n, k) in enumerate(SIZES):
        a, b = elements(rng, pair[0], m, k), elements(rng, pair[1], n, k).T if i % 2 else elements(rng, pair[1], k, n)
        forms = scales(rng, m, n, k)
        for j in rng.permutation(len(forms))[:7].tolist():
            scale_a, scale_b = forms[j]
            out = np.full((m, n), 9, (np.float32, BF16, np.float16)[j % 2])
            options: dict[str, Any] = {"scale_a": scale_a, "scale_b": scale_b}
            if j % 3 == 1:
                options |= {"bias": factors(rng, *[(n,), (m, 1)][j % 2]), "activation": "relu"}
            if j % 3 == 2:
                options |= {"scale_out": factors(rng, 1), "activation": "silu"}
            expected = reference(a, b, out.dtype, **options)
            run(backend, a, b, out, **options)
            assert expected.ratio(out).max() <= 1, (m, n, k, j)


def test_few_rows_at_a_time_where_the_workspace_is_small(backend: CpuBackend, rng: np.random.Generator) -> None:
    m, n, k = 700, 1000, 300
    a, b = elements(rng, E4M3, m, k), elements(rng, E4M3, k, n)
    options = {"scale_a": factors(rng, m, 3), "scale_b": factors(rng, 3, 8), "bias": factors(rng, m, 1)}
    out = np.full((m, n), 9, np.float32)
    run(backend, a, b, out, 1 << 21, **options)
    assert reference(a, b, out.dtype, **options).ratio(out).max() <= 1


def test_nan_and_infinity_reach_their_rows_and_columns_alone(backend: CpuBackend, rng: np.random.Generator) -> None:
    a, b = np.ones((40, 400), E4M3), np.ones((400, 300), E4M3)
    scale_a, scale_b = np.ones((40, 4), np.float32), np.ones((4, 3), np.float32)
    scale_a[3, 2], scale_b[1, 2] = np.nan, np.inf
    out = np.full((40, 300), 9, np.float32)
    run(backend, a, b, out, scale_a=scale_a, scale_b=scale_b)
    expected = np.full((40, 300), 400.0)
    expected[:, 256:], expected[3] = np.inf, np.nan
    np.testing.assert_array_equal(out, expected)


def test_what_is_refused(backend: CpuBackend, rng: np.random.Generator) -> None:
    a, b = elements(rng, E4M3, 64, 256), elements(rng, E4M3, 256, 64)
    scale = {"scale_a": factors(rng, 64, 2), "scale_b": factors(rng, 2, 1)}
    wanted = {"out_dtype": "float32", **scale}
    c = np.zeros((64, 64), np.float32)
    for options, reason in (
        ({"alpha": 2.0}, "alpha and c"),
        ({"c": c, "beta": 1.0}, "alpha and c"),
        ({"reproducible": "batch"}, "no name"),
    ):
        problem = describe(a, b, None, request({**wanted, **options})).problem
        for answer in (backend.offer(problem), backend.prepare(problem, "native", 1 << 26)):
            assert isinstance(answer, Refusal)
        assert reason in str(backend.offer(problem))
    problem = describe(a, b, None, request(wanted)).problem
    assert "packed" in str(backend.offer(replace(problem, packed_by="cpu")))
    assert isinstance(backend.prepare(problem, "convert", 1 << 26), Refusal)
    assert isinstance(backend.prepare(problem, "native", 64), Refusal)


def test_matmul_takes_it_for_rows_and_stacks(rng: np.random.Generator) -> None:
    """The call of users, of a matrix, of rows of a stack that share b, and with an empty k."""
    b, scale_b = elements(rng, E4M3, 384, 256), factors(rng, 3, 2)
    for shape in ((64, 384), (4, 16, 384), (1, 384), (5, 0)):
        a = elements(rng, E4M3, *shape)
        options = {"scale_b": scale_b} if shape[-1] else {}
        right = b if shape[-1] else b[:0]
        got = gemmhub.matmul(a, right, out_dtype="float32", **options)
        assert reference(a, right, got.dtype, **options).ratio(got).max() <= 1
    problem = describe(
        elements(rng, E4M3, 64, 384), b, None, request({"out_dtype": "float32", "scale_b": scale_b})
    ).problem
    assert block_scales.needed(problem)
