"""Symmetric products: tiles below the diagonal, mirrored, on every unit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from calls import described
from gemmhub_cpu import library
from gemmhub_cpu.backend import CpuBackend
from gemmhub_cpu.units import UNITS

import gemmhub
from gemmhub import accuracy
from gemmhub.backend import Offer, answer
from gemmhub.testing.problems import operand, problem

pytestmark = pytest.mark.compiler
BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
LIBRARY, NAMES, _ = library.load()
KINDS = {"int8": np.int8, "bfloat16": BF16, "float16": np.float16, "float": F32, "float64": np.float64}
"""The dtype of the operands, by the pair of a unit; those of exact units have the pair's name."""
SUMS = {"int8": np.int32, "bfloat16": F32, "float16": F32, "float": F32, "float64": np.float64}


@pytest.fixture
def rng():
    return np.random.default_rng()


def drawn(rng, n: int, k: int, kind):
    """A matrix and an array of its transpose, in storage orders of their own."""
    kind = np.dtype(kind)
    wide = rng.integers(-100, 100, (n, k)) if kind.kind == "i" else rng.standard_normal((n, k))
    a, b = wide.astype(kind), wide.T.astype(kind)
    return tuple(np.asfortranarray(x) if rng.integers(2) else np.ascontiguousarray(x) for x in (a, b))


def is_symmetric(x) -> bool:
    bits = np.ascontiguousarray(x).view(f"u{x.itemsize}")
    return bool(np.array_equal(bits, np.swapaxes(bits, -1, -2)))


def worst(a, b, out, **more) -> float:
    accumulator = np.dtype(np.float64) if out.dtype == np.float64 else F32
    model = accuracy.error_model(a.dtype, b.dtype, out.dtype, accumulator)
    return float(accuracy.reference(a, b, model=model, out_dtype=out.dtype, **more).ratio(out).max(initial=0))


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.name in NAMES], ids=lambda unit: unit.name)
def test_every_unit(unit, rng) -> None:
    """Sizes around the micro-tiles, the tiles and the mirrored blocks; results of any strides; little workspace."""
    sizes = [1, 2, 3, 31, 33, 63, 65, 127, 129, 200, 257, 385, 520, *(int(x) for x in rng.integers(1, 400, 6))]
    kind, sums = (np.dtype(x.get(unit.pair, unit.pair)) for x in (KINDS, SUMS))
    for i, n in enumerate(sizes):
        k = int(rng.choice([1, 7, 64, 130, 700]))
        a, b = drawn(rng, n, k, kind)
        results = [np.empty((n, n), sums), np.empty((2 * n, 3 * n), sums)[::2, ::3], np.empty((n, n), sums, "F")]
        results += (
            [np.empty((n, n + 3), x)[:, :n] for x in (np.float16, BF16)] if unit.pair in ("bfloat16", "float16") else []
        )
        for out in results:
            out[...] = 77
            size = 1 << (24 if i % 2 else 21)
            memory = np.full(size + 64, 0xFF, np.uint8)  # NaN
            call = described(
                unit, a, b, out, workspace=(memory.ctypes.data, size), threads=1 + i % 3, symmetric=True
            )  # fmt: skip
            assert LIBRARY.gemmhub_cpu_multiply(call) == 0
            assert is_symmetric(out), (n, k)
            if sums.kind == "i":
                assert np.array_equal(out, a.astype(np.int64) @ b.astype(np.int64))
            else:
                assert worst(a, b, out) <= 1, (n, k)


@pytest.mark.parametrize("kind", [BF16, np.float16, np.int8, F32], ids=str)
def test_through_the_backend(kind, rng) -> None:
    """With alpha, beta and an addend, in place too; stacks, which share b or not."""
    for n in (5, 70, 300, 513):
        a, b = drawn(rng, n, 90, kind)
        half = rng.integers(-9, 9, (n, n)).astype(np.int32 if np.dtype(kind).kind == "i" else kind)
        c = np.where(np.tri(n, dtype=bool), half, half.T)
        scalars = {"alpha": 3, "beta": -2} if half.dtype == np.int32 else {"alpha": 0.5, "beta": -1.25}
        for more in ({}, {**scalars, "c": c}):
            out = gemmhub.matmul(a, b, symmetric=True, backend="cpu" if kind in (BF16, np.float16) else None, **more)
            assert is_symmetric(out)
            assert gemmhub.spot_check(a, b, out, **more)
        out = c.copy()
        gemmhub.matmul(a, b, symmetric=True, out=out, c=out, **scalars)
        assert is_symmetric(out)
        assert gemmhub.spot_check(a, b, out, c=c, **scalars)
    stack, other = (np.stack(x) for x in zip(*(drawn(rng, 270, 33, kind) for _ in range(3))))
    shared = np.stack([stack[0]] * 3), np.ascontiguousarray(other[0])  # whose rows are not folded
    for left, right in ((stack, other), shared):
        out = gemmhub.matmul(left, right, symmetric=True, backend="numpy" if kind == F32 else "cpu")
        assert is_symmetric(out)
        assert gemmhub.spot_check(left, right, out)


def test_what_the_kernels_do_not_finish_is_not_theirs() -> None:
    """Addends of integers and of float64 are added by NumPy, which multiplies blocks of the triangle itself."""
    backend = CpuBackend(by_cost=False)
    backend.probe()
    for dtype, out in (("int8", "int32"), ("float64", "float64")):
        asked = problem(64, 64, 64, dtype, out, symmetric=True)
        plain = answer(backend, asked)
        assert "native" not in getattr(answer(backend, asked.having(c=operand(out, 64, 64))), "names", ())
        assert not isinstance(plain, Offer) or "native" not in plain.names or "half" in plain.remark("native")
