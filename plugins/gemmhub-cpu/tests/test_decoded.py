"""int8 and float8 by the units for wider floats: every value, in every position, and what must not be read in place."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import calls
import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import probe
from gemmhub_cpu.backend import CpuBackend
from gemmhub_cpu.units import DECODED
from test_native import emulator, laid_out, open_gates, rng, run, unit  # noqa: F401  fixtures

import gemmhub
from gemmhub import accuracy
from gemmhub.testing.problems import problem

pytestmark = pytest.mark.compiler
BF16 = np.dtype(ml_dtypes.bfloat16)
KINDS = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in DECODED}


def drawn(rng: Any, dtype: Any, *shape: int) -> Any:  # noqa: F811
    if dtype == np.int8:
        return rng.integers(-128, 128, shape, dtype=np.int8)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 4, shape)).astype(dtype)


def wider(which: Any) -> Any:
    """A dtype that the unit multiplies as it is, which holds the others; skips where it decodes none."""
    if which.pair not in ("bfloat16", "float"):
        pytest.skip("of bfloat16 and float32")
    return BF16 if which.pair == "bfloat16" else np.dtype(np.float32)


@pytest.mark.parametrize("name", DECODED)
def test_every_value(unit, name, rng) -> None:  # noqa: F811
    """Subnormal, infinite and NaN ones too, by either operand, contiguous along k, along lanes, and along neither."""
    library, which = unit
    kind = wider(which)
    values = np.arange(256, dtype=np.uint8).view(KINDS[name])
    for how, (m, k) in itertools.product(range(3), ((16, 16), (3, 86), (64, 4), (4, 64))):
        x = np.zeros(m * k, values.dtype)
        x[: min(256, m * k)] = rng.permutation(values)[: m * k]
        x = laid_out(x.reshape(m, k), how)
        one = np.eye(k, dtype=np.float32).astype(kind)
        expected = x.astype(np.float32)
        nan = np.isnan(expected).any(axis=1, keepdims=True) | np.isinf(expected).any(axis=1, keepdims=True)
        expected = np.where(nan, np.float32(0), expected)  # a NaN is that of its whole row
        for right in (one, calls.packed(library, which, one)):
            out = np.full((m, k), 9, np.float32)
            run(library, which, x, right, out)
            assert np.array_equal(np.where(nan, np.float32(0), out), expected)
            assert np.isnan(out[nan[:, 0]]).sum() >= (k - 1) * nan.sum()
        for right in (x.T, calls.packed(library, which, x.T)):
            out = np.full((k, m), 9, np.float32)
            run(library, which, one, right, out)
            assert np.array_equal(np.where(nan, np.float32(0), out.T), expected)


def test_products(unit, rng) -> None:  # noqa: F811
    """Every two dtypes, but two of int8, whose product is one of integers."""
    library, which = unit
    kinds = [*KINDS.values(), wider(which)]
    sizes = (1, 50, 70), (70, 1, 64), (33, 47, 130), (5, 45, 320), (300, 3, 64), (64, 70, 192), (131, 60, 1100)
    for i, ((left, right), (m, n, k)) in enumerate(itertools.product(itertools.product(kinds, repeat=2), sizes)):
        if left == right and left in (np.int8, kinds[-1]):
            continue
        a, b = laid_out(drawn(rng, left, m, k), i % 3), laid_out(drawn(rng, right, k, n), i // 3 % 3)
        out = np.empty((m, n), np.float32)
        model = accuracy.error_model(left, right, out.dtype, out.dtype)
        expected = accuracy.reference(a, b, model=model, out_dtype=out.dtype)
        for operand in (b, calls.packed(library, which, b)):
            out[...] = 9
            run(library, which, a, operand, out, 1 << 24, threads=1 + i % 3)
            assert expected.ratio(out).max() <= 1, (left, right, m, n, k)


def test_every_second_byte_is_not_read_as_a_word_of_16_bits(unit, rng) -> None:  # noqa: F811
    """Rows and columns with the strides of bfloat16, which AMX reads in place."""
    library, which = unit
    kind = wider(which)
    for name, (m, n, k) in itertools.product(DECODED, ((64, 40, 64), (5, 64, 320))):
        a, b = drawn(rng, KINDS[name], m, 2 * k)[:, ::2], drawn(rng, KINDS[name], n, 2 * k)[:, ::2].T
        for left, right in ((a, drawn(rng, kind, k, n)), (drawn(rng, kind, m, k), b)):
            out = np.full((m, n), 9, np.float32)
            run(library, which, left, right, out)
            model = accuracy.error_model(left.dtype, right.dtype, out.dtype, out.dtype)
            assert accuracy.reference(left, right, model=model, out_dtype=out.dtype).ratio(out).max() <= 1


@pytest.mark.parametrize("left", ["float8_e4m3fn", "bfloat16", "float16"])
@pytest.mark.parametrize("right", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_scaled_products(left: str, right: str, open_gates, rng) -> None:  # noqa: F811
    """fp8 by fp8, and 16 bits by a quantized weight: packed and not, in stacks, and with pinned rows."""
    if "float32 on AVX2" not in probe.look().native:
        pytest.skip("no kernels of its own here")
    m, n, k = 37, 75, 200
    a, b = (drawn(rng, np.dtype(getattr(ml_dtypes, x, x)), *shape) for x, shape in ((left, (2, m, k)), (right, (k, n))))
    scale_a, scale_b = (rng.random(shape, np.float32) / 8 for shape in ((2, m, 1), (1, n)))
    options: dict[str, Any] = {"scale_a": scale_a, "scale_b": scale_b, "out_dtype": "bfloat16", "activation": "relu"}
    model = accuracy.error_model(a.dtype, b.dtype, BF16, np.dtype(np.float32))
    expected = accuracy.reference(
        a, b, model=model, out_dtype=BF16, scale_a=scale_a, scale_b=scale_b, activation="relu"
    )
    for promise in (None, "batch"):
        packed = gemmhub.pack(b, a_dtype=left, backend="cpu", reproducible=promise)
        results = [gemmhub.matmul(a, x, reproducible=promise, backend="cpu", **options) for x in (b, packed)]
        assert all(expected.ratio(x).max() <= 1 for x in results)
        if promise:
            row = gemmhub.matmul(
                a[1, 5:6], b, reproducible=promise, backend="cpu", **{**options, "scale_a": scale_a[1, 5:6]}
            )
            for x in (*results, np.broadcast_to(row, a.shape[:-1] + (n,))):
                assert np.array_equal(x[1, 5].view(np.uint16), results[0][1, 5].view(np.uint16))


def test_which_unit_multiplies(rng) -> None:  # noqa: F811
    backend = CpuBackend(probe.Machine(2, frozenset({"bfloat16 on AMX", "float32 on AVX2", "int8 on AVX2"})))

    def unit_of(left: str, right: str, out: str) -> str | None:
        asked = problem(8, 8, 8, left, out)
        dtype = np.dtype(getattr(ml_dtypes, right, right))
        mixed = replace(asked, b=replace(asked.b, dtype=dtype), compute_dtype=np.dtype(np.float32))
        found = backend.unit(mixed)
        return None if found is None else found.name

    assert unit_of("float8_e4m3fn", "float8_e5m2", "float32") == "bfloat16 on AMX"
    assert unit_of("bfloat16", "int8", "bfloat16") == "bfloat16 on AMX"
    assert unit_of("float16", "float8_e4m3fn", "float32") == "float32 on AVX2"
    assert unit_of("float16", "int8", "float16") == "float32 on AVX2"
