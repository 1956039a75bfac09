"""Scales in the last store: of rows, columns and tensors, on every unit, along every path, to the last column."""

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
from gemmhub_cpu.units import UNITS
from test_native import emulator, finishes, laid_out, open_gates, operands, rng, run, unit  # noqa: F401  fixtures

import gemmhub
from gemmhub import accuracy
from gemmhub._call.describe import describe
from gemmhub._call.options import request
from gemmhub.backend import answer
from gemmhub.capability import Refusal

pytestmark = pytest.mark.compiler
Array = Any
BF16 = np.dtype(ml_dtypes.bfloat16)
RESULTS = (np.dtype(np.float32), BF16, np.dtype(np.float16))
SIZES = (
    (1, 1, 1), (1, 83, 40), (83, 1, 40), (9, 29, 130), (5, 45, 320), (32, 33, 64), (70, 3, 64), (33, 49, 1100),
    (131, 201, 63), (129, 47, 600),
)  # fmt: skip
"""One row and one column, few rows and few columns, tiles and blocks of k that are not whole."""


def drawn(random: Any, *shape: int) -> Array:
    """Scales of both signs over many powers of 2."""
    return (random.standard_normal(shape) * 2.0 ** random.integers(-12, 4, shape)).astype(np.float32)


def epilogue(sums: Array, dtype: Any, options: dict[str, Any]) -> Array:
    """The epilogue of exact ``sums`` step by step in float32, in the order of the kernels."""
    x = sums.astype(np.float32)
    if options.get("alpha", 1) == 0:
        x = np.zeros_like(x)
    else:
        for name in ("scale_a", "scale_b"):
            x = x * options[name] if options.get(name) is not None else x
        x = x * np.float32(options.get("alpha", 1))
    if options.get("c") is not None:
        x = x + options["c"].astype(np.float32) * np.float32(options["beta"])
    if options.get("bias") is not None:
        x = x + options["bias"]
    if options.get("activation") == "relu":
        x = np.where(x > 0, x, np.where(np.isnan(x), x, np.float32(0)))
    if options.get("scale_out") is not None:
        x = x * options["scale_out"]
    return x.astype(dtype)


def drawn_options(random: Any, i: int, m: int, n: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "scale_a": drawn(random, *[(m, 1), (1, 1), (m, 1)][i % 3]) if i % 5 else None,
        "scale_b": drawn(random, *[(1, n), (1, n), (1, 1)][i % 3]) if i % 5 != 1 else None,
    }
    if i % 2:
        options |= {"alpha": [0.5, -2.0, 1.0][i % 3], "bias": drawn(random, *[(1, n), (m, 1)][i // 2 % 2])}
    if i % 3 == 1:
        options |= {"activation": "relu", "scale_out": drawn(random, 1)}
    if i % 4 == 2:
        options |= {"c": drawn(random, m, n), "beta": -0.5}
    return options


def same(x: Array, y: Array) -> bool:
    """Whether two results have the same bits, but for those of a NaN."""
    x, y = (z.astype(np.float64) for z in (x, y))
    return bool(np.array_equal(x, y, equal_nan=True))


def test_integers_are_scaled_by_the_steps_of_the_definition(unit, rng) -> None:  # noqa: F811
    """Bit for bit: a sum is rounded once to float32, and each step after it; b is packed by the call and before."""
    library, which = unit
    if which.pair != "int8":
        pytest.skip("of int8")
    for i, (m, n, k) in enumerate([*SIZES, *(tuple(int(x) for x in rng.integers(1, 160, 3)) for _ in range(20))]):
        a, b, _ = operands(rng, which, m, n, k)
        a, b, sums = laid_out(a, i % 3), laid_out(b, i // 3 % 3), a.astype(np.int64) @ b.astype(np.int64)
        options, dtype = drawn_options(rng, i, m, n), RESULTS[i % 2]  # of float16 many would be infinite
        expected = epilogue(sums, dtype, options)
        whole = np.full((m + 2, n + 3), 77, dtype)
        out = whole[1:-1, 1:-2]
        for right in (b, calls.packed(library, which, b)):
            out[...] = 99
            run(library, which, a, right, out, threads=1 + i % 3, **options)
            assert same(out, expected), (m, n, k, i)
        out[...] = 77
        assert (whole == 77).all()


def test_every_choice_of_scales_and_bias(unit, rng) -> None:  # noqa: F811
    """Alone, without alpha, an addend and an activation: the epilogue that the kernels have without branches."""
    library, which = unit
    if which.pair != "int8":
        pytest.skip("of int8")
    for m, n, k in ((9, 50, 130), (1, 83, 40), (70, 3, 64), (33, 49, 64)):
        a, b, _ = operands(rng, which, m, n, k)
        shapes = itertools.product(((m, 1), (1, 1), None), ((1, n), (1, 1), None), ((1, n), (m, 1), None))
        for i, chosen in enumerate(shapes):
            factors = zip(("scale_a", "scale_b", "bias"), chosen)
            options = {name: None if shape is None else drawn(rng, *shape) for name, shape in factors}
            out = np.full((m, n), 9, RESULTS[i % 2])
            run(library, which, a, b, out, **options)
            assert same(out, epilogue(a.astype(np.int64) @ b.astype(np.int64), out.dtype, options)), (m, n, chosen)


def test_sums_of_floats_are_scaled_within_the_bound(unit, rng) -> None:  # noqa: F811
    library, which = unit
    if not finishes(which) or which.pair == "int8":
        pytest.skip("of floats")
    for i, (m, n, k) in enumerate(SIZES):
        a, b, sums = operands(rng, which, m, n, k)
        options = drawn_options(rng, i, m, n)
        out = laid_out(np.full((m, n), 9, RESULTS[i % 2]), i % 3)
        model = accuracy.error_model(a.dtype, b.dtype, out.dtype, sums)
        expected = accuracy.reference(a, b, model=model, out_dtype=out.dtype, **options)
        for right in (laid_out(b, i % 3), calls.packed(library, which, b)):
            out[...] = 9
            run(library, which, a, right, out, **options)
            assert expected.ratio(out).max() <= 1, (m, n, k, i)


def test_nan_and_infinite_scales(unit, rng) -> None:  # noqa: F811
    """A scale that is not finite changes its own row or column alone, and with alpha 0 none."""
    library, which = unit
    if not finishes(which):
        pytest.skip("finished by NumPy")
    for m, n, k in ((20, 50, 40), (1, 50, 40), (50, 1, 40), (70, 3, 64)):
        a, b, _ = operands(rng, which, m, n, k)
        a[...], b[...] = 1, 1
        scale_a, scale_b = np.ones((m, 1), np.float32), np.ones((1, n), np.float32)
        scale_a[-1], scale_b[0, -1] = np.nan, np.inf
        for alpha in (1.0, 0.0):
            out = np.full((m, n), 9, np.float32)
            run(library, which, a, b, out, scale_a=scale_a, scale_b=scale_b, alpha=alpha)
            with np.errstate(invalid="ignore"):
                expected = k * scale_a * scale_b if alpha else np.zeros_like(out)
            assert np.array_equal(out, expected, equal_nan=True), (m, n)


def test_int32_addends_of_a_floating_result(open_gates, rng) -> None:  # noqa: F811
    """A bias and an addend of the accumulator's dtype are rounded to float32."""
    if not probe.look().native:
        pytest.skip("no kernels of its own here")
    q, p = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((40, 70), (70, 50)))
    c, bias = rng.integers(-(2**31), 2**31, (40, 50)).astype(np.int32), rng.integers(-1000, 1000, 50).astype(np.int32)
    scale_a, scale_b = drawn(rng, 40, 1), drawn(rng, 1, 50)
    options = {"scale_a": scale_a, "scale_b": scale_b, "c": c, "beta": 0.5, "bias": bias}
    got = gemmhub.matmul(q, p, out_dtype="float32", backend="cpu", **options)
    sums = q.astype(np.int64) @ p.astype(np.int64)
    assert same(got, epilogue(sums, np.float32, {**options, "bias": bias.astype(np.float32)}))


SHAPES = ((), (1,), (1, 1), "row", "matrix", "stack", "one each")


@pytest.mark.parametrize("name", ["scale_a", "scale_b"])
@pytest.mark.parametrize("kind", SHAPES, ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_shapes(name: str, kind: Any, batch: tuple[int, ...], open_gates, rng) -> None:  # noqa: F811
    """Every shape of a scale, of stacks and matrices, in cold and warm calls, by b itself, and packed; with strides."""
    if not probe.look().native:
        pytest.skip("no kernels of its own here")
    for m in (1, 17):
        n, k = 35, 40
        own = m if name == "scale_a" else n
        matrix = (own, 1) if name == "scale_a" else (1, own)
        named = {"row": (own,), "matrix": matrix, "stack": (*batch, *matrix), "one each": (*batch, 1, 1)}
        shape = named.get(kind, kind)
        q = rng.integers(-128, 128, (*batch, m, k), dtype=np.int8)
        scale = drawn(rng, *(2 * x for x in shape))[tuple(slice(None, None, -2) for _ in shape)]
        stacked = scale[:, np.newaxis] if kind == "row" and name == "scale_a" else scale
        for stack_of_b in {False, bool(batch)}:
            p = rng.integers(-128, 128, (*(batch if stack_of_b else ()), k, n), dtype=np.int8)
            expected = ((q.astype(np.int64) @ p.astype(np.int64)).astype(np.float32) * stacked).astype(BF16)
            rights = (p,) if stack_of_b else (p, gemmhub.pack(p, m=m, backend="cpu"))
            for right in rights:
                for _ in range(3):
                    got = gemmhub.matmul(q, right, out_dtype="bfloat16", backend="cpu", **{name: scale})
                    assert got.dtype == BF16
                    assert same(got, expected)


@pytest.mark.parametrize("dtype", [np.int8, BF16], ids=str)
def test_a_row_keeps_its_bits(dtype: Any, open_gates, rng) -> None:  # noqa: F811
    """With pinned bits, whatever m, the position, the batch, and whether b is packed."""
    if not probe.look().native:
        pytest.skip("no kernels of its own here")
    m, n, k = 150, 70, 333
    a, b = ((rng.standard_normal(shape) * 40).astype(dtype) for shape in ((m, k), (k, n)))
    scale_a, scale_b, bias = drawn(rng, m, 1), drawn(rng, 1, n), drawn(rng, n).astype(BF16)
    options = {"scale_b": scale_b, "bias": bias, "activation": "silu", "alpha": 0.7, "reproducible": "batch"}
    options |= {"out_dtype": "bfloat16", "backend": "cpu"}
    whole = gemmhub.matmul(a, b, scale_a=scale_a, **options)
    packed = gemmhub.pack(b, backend="cpu", reproducible="batch")
    for rows in (slice(3, 4), slice(40, 47), slice(0, 32), slice(5, 120)):
        for right in (b, np.asfortranarray(b), packed):
            part = gemmhub.matmul(a[rows], right, scale_a=scale_a[rows], **options)
            assert np.array_equal(part.view(np.uint16), whole[rows].view(np.uint16)), rows
    stack = gemmhub.matmul(a.reshape(3, 50, k), b, scale_a=scale_a.reshape(3, 50, 1), **options)
    assert np.array_equal(stack.reshape(m, n).view(np.uint16), whole.view(np.uint16))


def test_out_may_overlap_a_scale(open_gates, rng) -> None:  # noqa: F811
    if not probe.look().native:
        pytest.skip("no kernels of its own here")
    q, p = (rng.integers(-128, 128, (32, 32), dtype=np.int8) for _ in range(2))
    for name in ("scale_a", "scale_b", "scale_out"):
        for _ in range(2):
            memory = drawn(rng, 40, 32)
            scale = {"scale_a": memory[2:34, 5], "scale_b": memory[7], "scale_out": memory[9, 9:10]}[name]
            expected = gemmhub.matmul(q, p, out_dtype="float32", backend="cpu", **{name: scale.copy()})
            assert gemmhub.matmul(q, p, out=memory[:32], backend="cpu", **{name: scale}) is not None
            assert np.array_equal(memory[:32], expected)


def asked(m: int, n: int, k: int, dtype: Any, **options: Any) -> Any:
    a, b = np.empty((m, k), dtype), np.empty((k, n), dtype)
    return describe(a, b, None, request(options)).problem


def test_what_is_refused() -> None:
    """Scales of blocks of columns, amax, results of float64: with the reason, and not converted where b is packed."""
    backend = CpuBackend(probe.Machine(2, frozenset(x.name for x in UNITS)), by_cost=False)
    scale = np.ones((64, 1), np.float32)
    assert backend.offer(asked(64, 64, 256, np.int8, out_dtype="bfloat16", scale_a=scale)).first.order == "exact"
    for changes, reason in (
        ({"scale_b": np.ones((1, 2), np.float32)}, "form 'column blocks'"),
        ({"amax": np.empty(1, np.float32)}, "amax="),
    ):
        refused = answer(backend, asked(64, 256, 256, np.int8, out_dtype="float32", **changes))
        assert isinstance(refused, Refusal)
        assert reason in refused.reason
        assert refused.remedy
    double = asked(64, 64, 256, np.int8, out_dtype="float64", scale_a=scale)
    assert backend.offer(double).names == ("convert",)
    refused = backend.offer(replace(double, packed_by="cpu"))
    assert isinstance(refused, Refusal)
    assert "scale results in float32, not in float64" in refused.reason
    pinned = backend.offer(replace(double, reproducible="batch"))
    assert isinstance(pinned, Refusal)
