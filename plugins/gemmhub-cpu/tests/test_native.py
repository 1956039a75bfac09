"""Our own kernels: within the bound for any sizes, strides and values, on every unit, from threads and after a fork."""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import amx
import calls
import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import library, limits, model, native_engine, probe
from gemmhub_cpu.backend import CpuBackend
from gemmhub_cpu.native_engine import NativeGemm
from gemmhub_cpu.units import UNITS, Unit

import gemmhub
from gemmhub import accuracy
from gemmhub.capability import Refusal
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES
from gemmhub.numpy_backend import backend as numpy_backend
from gemmhub.numpy_backend import probe as numpy_probe
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.numpy_backend.probe import cpu_flags
from gemmhub.testing.problems import problem

pytestmark = pytest.mark.compiler
BF16 = np.dtype(ml_dtypes.bfloat16)
LIBRARY, NAMES, _ = library.load()


@pytest.fixture(scope="module")
def emulator():
    """The emulator of AMX."""
    library = amx.emulator()
    if isinstance(library, Refusal):
        pytest.skip(library.reason)
    return library


HERE = [unit for unit in UNITS if ("NEON" in unit.name) == (platform.machine() == "aarch64")]


@pytest.fixture(params=HERE, ids=lambda unit: unit.name)
def unit(request):
    """(library, unit): every unit of this architecture and CPU; AMX emulated where the CPU has none."""
    if request.param.name in NAMES:
        yield LIBRARY, request.param
    elif "AMX" in request.param.name and NAMES and "amx_tile" not in cpu_flags():
        with amx.emulated(request.getfixturevalue("emulator")):
            yield LIBRARY, request.param
    elif "AVX-VNNI" in request.param.name:
        pytest.skip("a signal for each product of vectors is too slow: see the test of its own")
    elif not request.param.vendor or not set(request.param.flags) <= cpu_flags():
        pytest.skip(f"no {request.param.name} here")
    else:
        yield LIBRARY, request.param


@pytest.fixture
def rng():
    return np.random.default_rng()


def operands(rng, unit: Unit, m: int, n: int, k: int):
    """(a, b, dtype of the sums)."""
    if unit.pair == "int8":
        return *(rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (k, n))), np.dtype(np.int32)
    if unit.exact:
        dtype = np.dtype(f"{'u' * int(rng.integers(2))}{unit.pair}")
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return *(rng.integers(low, high, shape, dtype, endpoint=True) for shape in ((m, k), (k, n))), dtype
    if unit.pair == "float":
        kinds = [[np.float16, BF16, np.float32][i] for i in rng.integers(0, 3, 2)]
    else:
        kinds = [{"bfloat16": BF16, "float16": np.float16, "float64": np.float64}[unit.pair]] * 2
    a, b = (
        (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)).astype(kind)
        for shape, kind in zip(((m, k), (k, n)), kinds)
    )
    return a, b, np.dtype(np.float64 if unit.pair == "float64" else np.float32)


def finishes(unit: Unit) -> bool:
    """Whether the kernels have the epilogue of its sums; NumPy finishes others."""
    return not unit.exact and unit.pair != "float64"


def laid_out(x, how: int):
    """``x`` in C order, in Fortran order, or with gaps and backwards."""
    if how == 0:
        return x
    if how == 1:
        return np.asfortranarray(x)
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
    wide[::-2, ::3] = x
    return wide[::-2, ::3]


def right(a, b, out) -> bool:
    if out.dtype.kind in "iu":
        return bool(np.array_equal(out, (a.astype(np.int64) @ b.astype(np.int64)).astype(out.dtype)))
    sums = np.dtype(np.float64 if out.dtype == np.float64 else np.float32)
    model = accuracy.error_model(a.dtype, b.dtype, out.dtype, sums)
    return bool(accuracy.reference(a, b, model=model, out_dtype=out.dtype).ratio(out).max(initial=0) <= 1)


def run(library, unit: Unit, a, b, out, nbytes: int = 1 << 22, threads: int = 2, **epilogue):
    memory = np.full(nbytes + 64, 0xFF, np.uint8)  # NaN
    call = calls.described(unit, a, b, out, workspace=(memory.ctypes.data, nbytes), threads=threads, **epilogue)
    assert library.gemmhub_cpu_multiply(call) == 0
    assert (memory[nbytes:] == 0xFF).all()  # nothing is written beyond the workspace


def test_sizes_and_strides(unit, rng) -> None:
    """Around the micro-tiles and the blocks, and any others; b packed in each call, by tasks, and beforehand."""
    library, which = unit
    sizes = [(m, n, k) for m in (1, 3, 33, 129) for n in (1, 47, 50, 193) for k in (1, 5, 63, 130)]
    sizes += [(131, 201, 1100), (5, 60, 2050), (257, 31, 517)]
    sizes += [tuple(int(x) for x in rng.integers(1, 250, 3)) for _ in range(30)]
    for i, (m, n, k) in enumerate(sizes):
        a, b, sums = operands(rng, which, m, n, k)
        a, b = laid_out(a, i % 3), laid_out(b, i // 3 % 3)
        whole = np.full((m + 2, n + 3), 77, sums)
        out = whole[1:-1, 1:-2]
        packed = calls.packed(library, which, b)
        for right_operand in (b, packed):
            out[...] = 99
            run(library, which, a, right_operand, out, threads=1 + i % 3)
            assert right(a, b, out), (m, n, k)
        out[...] = 77
        assert (whole == 77).all()


def test_rows_that_are_read_where_they_lie(unit, rng) -> None:
    """Short rows in whole blocks are read in place: memory between them and behind the last one is not used."""
    library, which = unit
    if "AMX" not in which.name:
        pytest.skip("other units pack every row")
    cases = (32, 64, 0), (64, 256, 32), (193, 128, 16), (150, 192, 40), (300, 64, 192), (97, 160, 0), (70, 72, 24)
    for m, k, gap in cases:
        a, b, sums = operands(rng, which, m, 45, k)
        whole = np.full((m, k + gap), 127 if which.pair == "int8" else np.nan, a.dtype)
        whole[:, :k] = a
        rows = whole[:, :k]
        for right_operand in (b, calls.packed(library, which, b)):
            out = np.full((m, 45), 99, sums)
            run(library, which, rows, right_operand, out, threads=2)
            assert right(a, b, out), (m, k, gap)


def test_bits_do_not_depend_on_threads_workspace_or_packing(unit, rng) -> None:
    library, which = unit
    a, b, sums = operands(rng, which, 300, 500, 700)
    results = []
    for threads, nbytes in ((1, 1 << 24), (3, 1 << 22), (2, (1 << 20) + (1 << 18)), (1, 1 << 19)):
        out = np.empty((300, 500), sums)
        run(library, which, a, b, out, nbytes, threads)
        results.append(out)
    out = np.empty((300, 500), sums, order="F")  # not summed in place
    run(library, which, a, calls.packed(library, which, b), out)
    assert all(
        np.array_equal(x.view(np.uint8), results[0].view(np.uint8)) for x in [*results, np.ascontiguousarray(out)]
    )


@pytest.mark.skipif("int8 on AVX2" not in NAMES, reason="no AVX2 here")
@pytest.mark.parametrize("name", ["int8 on AVX-VNNI", "int8 on AVX-VNNI-INT8"])
def test_avx_vnni(name, emulator, rng) -> None:
    """Emulated where the CPU has none: a few products, as each instruction is a signal."""
    which = next(unit for unit in UNITS if unit.name == name)
    with amx.emulated(emulator) as executed:
        before = executed()
        for i, (m, n, k) in enumerate(((1, 1, 1), (3, 25, 5), (5, 50, 63), (9, 23, 1100), (33, 47, 130))):
            a, b, sums = operands(rng, which, m, n, k)
            if i == 3:
                a[...], b[...] = -128, -128
            a, b = laid_out(a, i % 3), laid_out(b, (i + 1) % 3)
            for right_operand in (b, calls.packed(LIBRARY, which, b)):
                out = np.full((m, n), 99, sums)
                run(LIBRARY, which, a, right_operand, out, threads=1 + i % 2)
                assert right(a, b, out), (m, n, k)
        assert name in NAMES or executed() > before + 1000


def test_vectors(unit, rng) -> None:
    """A row or a column by a matrix that lies in any way: read as it is where it is contiguous somehow."""
    library, which = unit
    sizes = [(1, 1, 1), (1, 7, 5), (1, 9000, 130), (1, 3, 70_000), (1, 700, 1025), (1, 4097, 17)]
    for m, n, k in sizes + [(n, m, k) for m, n, k in sizes]:
        for how in range(3):
            a, b, sums = operands(rng, which, m, n, k)
            a, b = laid_out(a, int(rng.integers(3)) if n == 1 else 0), laid_out(b, how)
            whole = np.full((m + 2, n + 3), 77, sums)
            out = whole[1:-1, 1:-2]
            run(library, which, a, b, out, 1 << 24, threads=1 + how)
            assert right(a, b, out), (m, n, k)
            again = np.empty_like(out)
            run(library, which, a, b, again, 1 << 25, threads=3 - how)
            assert np.array_equal(again.view(np.uint8), np.ascontiguousarray(out).view(np.uint8))
            out[...] = 77
            assert (whole == 77).all()


@pytest.mark.parametrize("activation", [None, *ELEMENTWISE])
def test_epilogues(unit, activation, rng) -> None:
    """Bias along either dimension, an addend with strides, results with and without them."""
    library, which = unit
    if not finishes(which):
        pytest.skip("finished by NumPy")
    alpha = 2.0**-9 if which.pair == "int8" else 0.5  # within the range of float16
    alpha *= 2.0**-4 if activation == "relu_squared" else 1
    for kind in (np.dtype(np.float16), BF16, np.dtype(np.float32)):
        a, b, _ = operands(rng, which, 37, 61, 90)
        c = laid_out(rng.standard_normal((37, 61)).astype(kind), 2)
        bias = rng.standard_normal([(37, 1), (1, 61)][int(rng.integers(2))]).astype(np.float32)
        out = laid_out(np.full((37, 61), 9, kind), int(rng.integers(3)))
        spread = np.broadcast_to(bias, out.shape)
        run(library, which, a, b, out, c=c, bias=spread, activation=activation, alpha=alpha, beta=-2.0)
        x = alpha * (a.astype(float) @ b.astype(float)) - 2.0 * c.astype(float) + bias
        exact = accuracy.activate(x, activation)
        size = alpha * (abs(a.astype(float)) @ abs(b.astype(float))) + 2 * abs(c.astype(float)) + abs(bias)
        function = EPILOGUES[activation] if activation else None
        error = 2.0**-23 * 100 * size
        if function:
            error = function.bound((x,), (error,), function.evaluation * 2.0**-24, 0.0, 0.0)
        error += float(ml_dtypes.finfo(kind).eps) * abs(exact) + 1e-7
        overflowed = np.isposinf(out) & (exact + error >= float(ml_dtypes.finfo(kind).max))  # of relu_squared
        assert (overflowed | (abs(out.astype(float) - exact) <= error)).all()


def test_activations_at_their_ends(unit) -> None:
    """Arguments from the smallest to the largest numbers, of both signs, infinities and NaN."""
    library, which = unit
    if not finishes(which):
        pytest.skip("finished by NumPy")
    size = np.geomspace(2.0**-126, 2.0**127, 1000, dtype=np.float32)
    x = np.concatenate([[0, np.inf, np.nan], size, [-np.inf], -size]).astype(np.float32)[np.newaxis]
    kind = np.dtype({"bfloat16": BF16, "int8": np.int8}.get(which.pair, np.float16))
    a, b, out = np.zeros((1, 4), kind), np.zeros((4, x.size), kind), np.empty_like(x)
    for name in ELEMENTWISE:
        run(library, which, a, b, out, c=x, activation=name, beta=1.0)
        exact = accuracy.activate(x.astype(np.float64), name)
        assert np.array_equal(np.isnan(out), np.isnan(x))
        assert np.array_equal(out[np.isinf(x)], exact[np.isinf(x)])
        finite = np.isfinite(x) & (abs(exact) < np.finfo(np.float32).max)
        wide, function = x[finite].astype(np.float64), EPILOGUES[name]
        error = function.bound((wide,), (np.zeros_like(wide),), function.evaluation * 2.0**-24, 0.0, 2.0**-126)
        assert (abs(out[finite] - exact[finite]) <= error).all(), name
        assert np.isposinf(out[exact > np.finfo(np.float32).max]).all()


def test_results_beyond_the_caches_are_streamed(unit, rng) -> None:
    """Whole lines are written past the caches, from any address on, the others through them; gaps stay as they are."""
    library, which = unit
    m, n, k = 2100, 1056, 3  # more than 4 MiB, of 16 bits too
    a, b, sums = operands(rng, which, m, n, k)
    for kind in (sums, np.dtype(np.float16), BF16) if finishes(which) else (sums,):
        for columns in (n, n - 40, n - 37):
            whole = np.full((m, n), 77, kind)
            first = int(rng.integers(n - columns + 1))
            out = whole[:, first : first + columns]
            run(library, which, a, b[:, :columns], out, 1 << 24)
            if kind == sums:
                assert right(a, b[:, :columns], out)
            else:
                exact = a.astype(float) @ b[:, :columns].astype(float)
                size = abs(a.astype(float)) @ abs(b[:, :columns].astype(float))
                assert (abs(out.astype(float) - exact) <= 2.0**-20 * size + 2.0**-8 * abs(exact) + 1e-7).all()
            assert (whole[:, :first] == 77).all()
            assert (whole[:, first + columns :] == 77).all()


def test_empty_and_no_k(unit) -> None:
    library, which = unit
    kinds = {"int8": (np.int8, np.int32), "bfloat16": (BF16, np.float32), "float": (np.float16, np.float32)}
    kind, sums = kinds.get(which.pair, (which.pair, "float32" if which.pair == "float16" else which.pair))
    out = np.full((9, 50), 5, sums)
    run(library, which, np.zeros((9, 0), kind), np.zeros((0, 50), kind), out)
    assert (out == 0).all()
    run(library, which, np.zeros((0, 3), kind), np.zeros((3, 50), kind), out[:0])


def test_a_workspace_that_is_too_small_is_refused(unit, rng) -> None:
    library, which = unit
    a, b, sums = operands(rng, which, 200, 200, 5000)
    out = np.full((200, 200), 3, sums)
    memory = np.empty(1 << 17, np.uint8)
    call = calls.described(which, a, b, out, workspace=(memory.ctypes.data, memory.nbytes), threads=1)
    assert library.gemmhub_cpu_multiply(call) == 1
    assert (out == 3).all()


def test_nothing_is_written_beyond_the_workspace(unit, rng) -> None:
    """The workspace has the size that the kernels ask for; each thread packs blocks of b for itself, or all do it."""
    library, which = unit
    function = library.gemmhub_cpu_workspace
    function.restype = ctypes.c_int64
    for m, n, k in ((127, 166, 533), (140, 100, 1100)):
        a, b, sums = operands(rng, which, m, n, k)
        out = np.full((m, n), 99, sums)
        limit = calls.described(which, a, b, out, workspace=(0, 1 << 20), threads=2)
        nbytes = function(limit)
        assert nbytes > 0
        memory = np.full(nbytes + (1 << 18), 0xFF, np.uint8)
        call = calls.described(which, a, b, out, workspace=(memory.ctypes.data, nbytes), threads=2)
        assert library.gemmhub_cpu_multiply(call) == 0
        assert (memory[nbytes:] == 0xFF).all()
        assert right(a, b, out), (m, n, k)


def test_integers_at_their_ends_and_beyond(unit) -> None:
    library, which = unit
    if which.pair != "int8":
        pytest.skip("of int8")
    for k, value in ((4096, -128), (4096, 127), (140000, -128)):  # 2.3e9: beyond int32
        a, b = np.full((9, k), -128, np.int8), np.full((k, 50), value, np.int8)
        out = np.empty((9, 50), np.int32)
        run(library, which, a, b, out, 1 << 25)
        assert right(a, b, out)


def test_nan_and_infinity(unit, rng) -> None:
    library, which = unit
    if which.pair.startswith("int"):
        pytest.skip("of floats")
    a, b, _ = operands(rng, which, 20, 70, 40)
    a[3, 5], a[7, 0], b[2, 60] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    for kind in (np.dtype(np.float16), BF16, np.dtype(np.float32)) if finishes(which) else (a.dtype,):
        out = np.zeros((20, 70), kind)
        run(library, which, a, b, out)
        unclear = ~np.isfinite(expected)
        assert np.array_equal(np.isnan(out[unclear]), np.isnan(expected[unclear]))
        assert np.isfinite(out[~unclear].astype(np.float64)).all()


@pytest.fixture
def open_gates(monkeypatch):
    """No estimate, which other work on the machine changes, keeps products from the native kernels."""
    monkeypatch.setattr(CpuBackend.__init__, "__defaults__", (None, False))
    gemmhub.reload()


needs_units = pytest.mark.skipif(not NAMES, reason="no kernels of its own here")


@needs_units
def test_the_backend_chooses_the_best_unit(monkeypatch) -> None:
    for module in (model, numpy_backend):  # measured, it would be another one on a busy machine
        monkeypatch.setattr(module, "sgemm_rate", lambda: 2e11)
    every = frozenset(unit.name for unit in UNITS)
    large = problem(1024, 1024, 1024, "int8", "int32")
    for hidden, expected in (
        (set(), "int8 on AMX"),
        ({"int8 on AMX"}, "int8 on AVX-512 VNNI"),
        ({"int8 on AMX", "int8 on AVX-512 VNNI"}, "int8 on AVX-VNNI-INT8"),
        ({"int8 on AMX", "int8 on AVX-512 VNNI", "int8 on AVX-VNNI-INT8"}, "int8 on AVX-VNNI"),
        ({unit.name for unit in UNITS if unit.pair == "int8"} - {"int8 on AVX2"}, "int8 on AVX2"),
    ):
        backend = CpuBackend(probe.Machine(2, native=every - hidden))
        offer = backend.offer(large)
        assert offer.first.name == "native"
        assert offer.remark("native") == expected
    backend = CpuBackend(probe.Machine(2, native=every))
    assert backend.offer(problem(999, 999, 999, "bfloat16")).remark("native") == "bfloat16 on AMX"
    assert backend.offer(problem(999, 999, 999, "float16")).remark("native") == "float16 on AMX"
    backend = CpuBackend(probe.Machine(2, native=every - {"float16 on AMX"}))
    assert backend.offer(problem(999, 999, 999, "float16")).remark("native") == "float32 on AVX-512"
    assert backend.unit(problem(64, 64, 64, "float32")) is None
    for name, expected in (("float32", "float32 on AVX-512"), ("float64", "float64 on AVX-512")):
        unit = backend.unit(problem(64, 64, 64, name, reproducible="batch"))
        assert unit is not None
        assert unit.name == expected
    masked = CpuBackend(probe.Machine(2, why_no_native="masked")).offer(problem(4096, 4096, 4096, "int8", "int32"))
    assert masked.names == ("convert",)
    assert "masked" in masked.remark("convert")


def test_the_smallest_products_are_not_refused(monkeypatch) -> None:
    """A call of the built-in backend, which converts, takes longer than one of the kernels."""
    for module in (model, numpy_backend):
        monkeypatch.setattr(module, "sgemm_rate", lambda: 2e11)
    backend = CpuBackend(probe.Machine(2, native=frozenset(unit.name for unit in UNITS)))
    for asked in (
        problem(8, 8, 8, "int8", "int32"), problem(64, 1, 64, "bfloat16"), problem(1, 32, 32, "float16"),
        problem(128, 128, 128, "int8", "int32"), problem(1, 512, 512, "float16"),
        problem(16, 16, 16, "bfloat16", batch=(64,)),
    ):  # fmt: skip
        assert backend.offer(asked).first.name == "native"


@pytest.mark.parametrize(
    ("m", "n", "k", "name"),
    [(200, 100, 3000, "float16"), (33, 33, 3000, "float16"), (9, 1000, 1000, "float16"), (200, 100, 3000, "bfloat16")],
)
def test_a_blas_whose_threads_contend_does_not_change_the_choice(m, n, k, name, monkeypatch) -> None:
    """The probe's large products then run at 7 Gflop/s; most of the small ones, on one core, are undisturbed."""
    backend = CpuBackend(probe.Machine(2, native=frozenset(unit.name for unit in UNITS if "AMX" not in unit.name)))
    asked = problem(m, n, k, name)
    chosen = []
    for slow in (2e11, 7e9):
        calls = itertools.count()

        def seconds(a, b, out, slow=slow, calls=calls):
            rate = slow if len(a) > 64 or next(calls) % 4 == 0 else 9e10
            return 2 * len(a) ** 3 / rate

        monkeypatch.setattr(numpy_probe, "_seconds", seconds)
        numpy_probe.sgemm_rate.cache_clear()
        offer = backend.offer(asked)
        assert offer.first.seconds < NumpyBackend().offer(asked).first.seconds
        chosen.append(offer.names)
    numpy_probe.sgemm_rate.cache_clear()
    assert chosen[0] == chosen[1]
    assert chosen[0][0] == "native"


def test_a_refusal_gives_the_reason_that_decided(monkeypatch) -> None:
    for module in (model, numpy_backend):
        monkeypatch.setattr(module, "sgemm_rate", lambda: 7e9)
    asked = problem(200, 100, 1000, "float16")
    refused = CpuBackend(probe.Machine(2, native=frozenset({"float32 on AVX-512"}))).offer(asked)
    assert isinstance(refused, Refusal)
    assert refused.reason == "packing would cost more than it saves"
    refused = CpuBackend(probe.Machine(2)).offer(asked)
    assert isinstance(refused, Refusal)
    small = "the operands are too small for several cores to help with conversion"
    assert refused.reason == f"no kernels of its own for float16 by float16; {small}"
    large = problem(200, 100, 3000, "float16")
    for here, reason in (
        (probe.Machine(2, native=frozenset({"float32 on AVX-512"})), "packing would cost more than it saves"),
        (probe.Machine(2, why_no_native="no compiler"), "no compiler"),
        (probe.Machine(2), "no kernels of its own for float16 by float16"),
    ):
        assert CpuBackend(here).offer(large).remark("convert") == f"{reason}; converted blocks through SGEMM"


@needs_units
@pytest.mark.parametrize("dtype", [np.int8, np.float16, BF16])
def test_scratch_memory_is_bounded(dtype) -> None:
    """And suffices, by default, for every epilogue."""
    name = np.dtype(dtype).name
    for m, n, k in ((4096, 4096, 4096), (3, 5, 100_000), (70_000, 64, 64), (64, 70_000, 300), (5000, 5000, 20_000)):
        for changes in ({}, {"activation": "gelu"}, {"alpha_is_one": False}):
            if "activation" in changes and name == "int8":
                continue
            asked = problem(m, n, k, name, "int32" if name == "int8" else name, **changes)
            backend = CpuBackend(by_cost=False)
            unit = backend.unit(asked)
            assert unit is not None
            assert NativeGemm(asked, unit, 1 << 22).scratch_bytes <= 1 << 22
            assert 0 < NativeGemm(asked, unit, 1 << 26).scratch_bytes <= 1 << 26


@needs_units
def test_what_numpy_finishes_in_several_parts(rng) -> None:
    """Parts of columns and of rows have the bits of one part."""
    m, n, k = 700, 1100, 600
    asked = problem(m, n, k, "int8", out="float64")
    a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (k, n)))
    unit = CpuBackend(by_cost=False).unit(asked)
    results = []
    for limit in (1 << 26, 1 << 22, 1 << 21, 1 << 20):
        gemm = NativeGemm(asked, unit, limit)
        assert 0 < gemm.scratch_bytes <= limit
        out = np.full((m, n), 7, asked.out.dtype)
        gemm(a, b, out, 1, 0, None)
        results.append(out)
    width, height = gemm._workspace(m, n, k)[2:]
    assert width < n
    assert height < m
    assert all(np.array_equal(x, results[0]) for x in results)
    assert np.array_equal(results[0], (a.astype(np.int32) @ b.astype(np.int32)).astype(np.float64))


@needs_units
@pytest.mark.parametrize("name", [unit.name for unit in HERE if unit.name in NAMES and not unit.pair.startswith("int")])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_one_order_are_equal(name, dtype, rng) -> None:
    """Whatever m, n, the batch and the workspace are, and whether b was packed."""
    backend = CpuBackend(probe.Machine(2, native=frozenset({name})), by_cost=False)
    k = 1037
    unit = backend.unit(problem(2, 2, 2, dtype, "float32"))
    if unit is None:
        pytest.skip(f"{name} does not take {dtype}")
    a, b = (
        rng.standard_normal(shape).astype(BF16 if dtype == "bfloat16" else dtype) for shape in ((3, 150, k), (k, 210))
    )
    whole = np.full((3, 150, 210), 7, np.float32)
    for m, n, batch, packed_by, limit in (
        (150, 210, (3,), None, 1 << 26), (150, 210, (3,), None, 1 << 20), (2, 210, (3,), None, 1 << 26),
        (150, 2, (3,), None, 1 << 22), (3, 5, (), None, 1 << 26), (5, 50, (2,), "cpu", 1 << 26),
        (1, 210, (3,), "cpu", 1 << 26), (37, 1, (), "cpu", 1 << 20),
    ):  # fmt: skip
        asked = problem(m, n, k, dtype, "float32", batch=batch, packed_by=packed_by)
        first = backend.offer(asked).first
        assert first.order == unit.order
        left = a[: batch[0], :m] if batch else a[0, :m]
        right = np.ascontiguousarray(b[:, :n])
        if packed_by:
            right = backend.pack(right, problem(m, n, k, dtype, "float32"))
            assert isinstance(right, native_engine.Packed)
        out = np.full((*batch, m, n), 9, np.float32)
        backend.prepare(asked, first.name, limit).run(left, right, out, 1, 0, None)
        if (m, n, limit) == (150, 210, 1 << 26):
            whole[...] = out
        expected = whole[: batch[0], :m, :n] if batch else whole[0, :m, :n]
        assert np.array_equal(out.view(np.int32), np.ascontiguousarray(expected).view(np.int32)), (m, n, batch)


@needs_units
def test_a_workspace_serves_the_whole_bucket_or_is_refused() -> None:
    """A kernel runs every size of the bucket that its problem is in."""
    backend = CpuBackend(by_cost=False)
    for name, out in (("int8", "int32"), ("int8", "float32"), ("float16", "float16")):
        first, last = problem(200, 90, 66_000, name, out), problem(200, 92, 67_584, name, out)
        for limit in range(1 << 18, 1 << 24, 1 << 18):
            kernels = [backend.prepare(asked, "native", limit) for asked in (first, last)]
            assert isinstance(kernels[0], Refusal) == isinstance(kernels[1], Refusal), (name, limit)


@needs_units
def test_calls_from_many_threads(rng, open_gates) -> None:
    a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((300, 400), (400, 500)))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: gemmhub.matmul(a, b, backend="cpu"), range(64)))
    assert all(right(a, b, x) for x in results)


@needs_units
def test_packed_and_epilogues_of_python(rng, open_gates) -> None:
    a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((600, 400), (400, 500)))
    assert right(a, b, gemmhub.matmul(a, gemmhub.pack(b, m=600, backend="cpu")))
    c = rng.integers(-1000, 1000, (600, 500), dtype=np.int32)
    exact = a.astype(np.int32) @ b.astype(np.int32)
    assert np.array_equal(gemmhub.matmul(a, b, alpha=2, beta=3, c=c, backend="cpu"), 2 * exact + 3 * c)
    x, y = (rng.standard_normal(shape).astype(BF16) for shape in ((600, 400), (400, 500)))
    for options in ({"activation": "gelu"}, {"activation": "silu", "bias": rng.standard_normal(500).astype(BF16)}):
        packed = gemmhub.matmul(x, gemmhub.pack(y, m=600, backend="cpu"), **options)
        assert np.array_equal(packed, gemmhub.matmul(x, y, backend="cpu", **options))


@needs_units
def test_packed_integers_have_every_result(rng, open_gates) -> None:
    """Integers of 32 bits and less wrap; wider ones, for which the packed form does not do, are refused."""
    a, b = (rng.integers(-128, 128, shape, dtype=np.int8) for shape in ((600, 400), (400, 500)))
    packed, exact = gemmhub.pack(b, m=600, backend="cpu"), a.astype(np.int64) @ b.astype(np.int64)
    for dtype in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "float64"):
        got = gemmhub.matmul(a, packed, out_dtype=dtype)
        assert np.array_equal(got, exact.astype(dtype)), dtype
        assert np.array_equal(gemmhub.matmul(a, b, out_dtype=dtype), got)
    for dtype in ("int64", "uint64"):
        with pytest.raises(gemmhub.NoBackendError, match="32 bits"):
            gemmhub.matmul(a, packed, out_dtype=dtype)


@needs_units
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_integers_wrap_through_matmul(dtype, rng, open_gates) -> None:
    """Batches, epilogues, every layout and a packed b, modulo 2**32 and 2**64."""
    ends = np.iinfo(dtype)

    def drawn(*shape: int):
        return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)

    for m, n, k, batch in ((70, 90, 300, ()), (1, 333, 50, ()), (333, 1, 50, ()), (20, 30, 40, (3,)), (5, 9, 0, ())):
        a, b, c, bias = drawn(*batch, m, k), drawn(k, n), drawn(m, n), drawn(n)
        with np.errstate(over="ignore"):
            exact = a @ b
            ended = np.maximum(exact * np.array(3, dtype) + c * np.array(2, dtype) + bias, 0)
        for how in range(3):
            right_operand = laid_out(b, how)
            assert np.array_equal(gemmhub.matmul(a, right_operand, backend="cpu"), exact)
            got = gemmhub.matmul(a, right_operand, alpha=3, beta=2, c=c, bias=bias, activation="relu", backend="cpu")
            assert np.array_equal(got, ended)
        if k:
            assert np.array_equal(gemmhub.matmul(a, gemmhub.pack(b, m=m, backend="cpu")), exact)


@needs_units
def test_the_smallest_integer_products_are_numpys(rng) -> None:
    backend = CpuBackend(probe.Machine(2, native=frozenset(unit.name for unit in UNITS)))
    small, large = (backend.offer(problem(n, n, n, "int64", "int64")) for n in (4, 200))
    assert isinstance(small, Refusal)
    assert small.any_layout
    assert (large.names, large.first.order, large.remark("native")) == (("native",), "exact", "int64 on AVX2")


@needs_units
@pytest.mark.parametrize("dtype", [np.int8, np.float16, BF16])
def test_empty_k_of_a_batch(dtype) -> None:
    backend = CpuBackend(by_cost=False)
    name = np.dtype(dtype).name
    for batch, m, n in (((4,), 30, 50), ((2, 3), 1, 7), ((3,), 7, 1)):
        asked = problem(m, n, 0, name, "int32" if name == "int8" else name, batch=batch)
        for candidate in backend.offer(asked).names:
            out = np.full((*batch, m, n), 7, asked.out.dtype)
            kernel = backend.prepare(asked, candidate, 1 << 26)
            for b in (np.zeros((0, n), dtype), np.zeros((*batch, 0, n), dtype)):
                out[...] = 7
                kernel.run(np.zeros((*batch, m, 0), dtype), b, out, 1, 0, None)
                assert (out == 0).all(), candidate


FORK = """
import os, sys, threading
import numpy as np, gemmhub
from gemmhub_cpu.backend import CpuBackend
CpuBackend.__init__.__defaults__ = (None, False)  # no estimate of a busy machine decides
a = np.random.default_rng(0).integers(-128, 128, (512, 512), dtype=np.int8)
expected = a.astype(np.int32) @ a.astype(np.int32)
stop = threading.Event()
def busy():
    while not stop.is_set():
        assert np.array_equal(gemmhub.matmul(a, a, backend="cpu"), expected)
thread = threading.Thread(target=busy)
gemmhub.matmul(a, a, backend="cpu")
thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(gemmhub.matmul(a, a, backend="cpu"), expected) else 1)
    codes.append(os.waitpid(child, 0)[1])
stop.set()
thread.join()
sys.exit(any(codes))
"""


@needs_units
def test_forks_while_a_product_runs() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@needs_units
def test_the_threads_sleep_between_calls(rng, open_gates) -> None:
    a, b = (rng.integers(-128, 128, (256, 256), dtype=np.int8) for _ in range(2))
    program = ctypes.CDLL(None)
    assert program is not None
    gemmhub.matmul(a, b, backend="cpu")
    time.sleep(0.2)  # threads of OpenBLAS, by which the rate of SGEMM is measured, spin for some 30 ms each
    before = os.times()
    time.sleep(0.5)
    after = os.times()
    assert (after.user + after.system) - (before.user + before.system) < 0.2


def test_limits(tmp_path: Path, monkeypatch) -> None:
    assert limits._from_environment("3,2") == 3
    assert limits._from_environment("") == limits._from_environment("many") == sys.maxsize
    assert limits.quota(tmp_path) == sys.maxsize
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert limits.quota(tmp_path) == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert limits.quota(tmp_path) == sys.maxsize
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert limits.quota(tmp_path) == sys.maxsize
    monkeypatch.setattr(limits, "_chosen", 1)
    assert limits.threads() == 1
