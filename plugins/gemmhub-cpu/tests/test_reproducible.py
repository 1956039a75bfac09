"""reproducible="batch": the bits of a row depend on nothing but that row and b, on every unit."""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amx
import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import library, limits, native_engine, probe, sources
from gemmhub_cpu.backend import CpuBackend
from gemmhub_cpu.units import UNITS, Unit

import gemmhub
from gemmhub import accuracy
from gemmhub.capability import Refusal
from gemmhub.epilogues import ELEMENTWISE
from gemmhub.kit import native
from gemmhub.numpy_backend.probe import cpu_flags
from gemmhub.testing.problems import problem

pytestmark = pytest.mark.compiler
Array = Any
BF16 = np.dtype(ml_dtypes.bfloat16)
NAMES = library.load().units
HERE = [unit for unit in UNITS if ("NEON" in unit.name) == (platform.machine() == "aarch64")]
DTYPES = {
    "float": [(np.float32, np.float32), (np.float16, np.float16), (BF16, np.float32)], "float64": [(np.float64,) * 2],
    "bfloat16": [(BF16, BF16)], "float16": [(np.float16,) * 2], "int8": [(np.int8,) * 2], "int32": [(np.int32,) * 2],
    "int64": [(np.uint64,) * 2],
}  # fmt: skip
"""Dtypes of operands by a unit's pair."""


@pytest.fixture(scope="module")
def emulator():
    library = amx.emulator()
    if isinstance(library, Refusal):
        pytest.skip(library.reason)
    return library


@pytest.fixture(params=HERE, ids=lambda unit: unit.name)
def unit(request, monkeypatch):
    """Every unit of this architecture that this CPU has, AMX emulated where it has none; products go to that unit."""
    name = request.param.name
    monkeypatch.setattr(CpuBackend.__init__, "__defaults__", (probe.Machine(2, native=frozenset({name})), True))
    gemmhub.reload()
    if name in NAMES:
        yield request.param
    elif "AMX" in name and NAMES and "amx_tile" not in cpu_flags():
        with amx.emulated(request.getfixturevalue("emulator")):
            yield request.param
    else:
        pytest.skip(f"no {name} here")


@pytest.fixture
def rng():
    return np.random.default_rng()


@pytest.fixture(scope="module")
def chain() -> Callable[[Array, Array], Array]:
    """The product of two float32 or float64 matrices by the definition of "fma.f32" and "fma.f64"."""
    source = Path(__file__).parent / "chain.cpp"
    flags = ("-O2", "-std=c++17", "-fPIC", "-shared", "-ffp-contract=off")
    built = native.build(native.Recipe(("g++",), flags, (source,), (), name="chain"))
    assert isinstance(built, Path)
    functions = native.load(built)

    def multiply(a: Array, b: Array) -> Array:
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        out = np.empty((a.shape[0], b.shape[1]), a.dtype)
        sizes = map(ctypes.c_int64, (*out.shape, a.shape[1]))
        getattr(functions, f"chain_{a.dtype.name}")(*sizes, *(ctypes.c_void_p(x.ctypes.data) for x in (a, b, out)))
        return out

    return multiply


def drawn(rng, shape, dtype) -> Array:
    """Values of many magnitudes, so that each order of sums has bits of its own."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-5, 4, shape)).astype(dtype)


def laid_out(x: Array, how: int) -> Array:
    """``x`` as it is, column-major, with gaps and backwards, with a padded leading dimension, or unaligned."""
    if how == 1:
        return np.asfortranarray(x)
    if how == 2:
        wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), x.dtype)
        wide[::-2, ::3] = x
        return wide[::-2, ::3]
    if how == 3:
        wide = np.zeros((x.shape[0], x.shape[1] + 5), x.dtype)
        wide[:, 2:-3] = x
        return wide[:, 2:-3]
    if how == 4:
        memory = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        memory[...] = x
        return memory
    return x


def same(x: Array, y: Array) -> bool:
    """Whether two results have the same bits; NaN is NaN."""
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    if x.dtype.kind not in "iu":
        nan = np.isnan(x)
        if not np.array_equal(nan, np.isnan(y)):
            return False
        x, y = np.where(nan, x.dtype.type(0), x), np.where(nan, y.dtype.type(0), y)
    return x.dtype == y.dtype and x.shape == y.shape and np.array_equal(x.view(np.uint8), y.view(np.uint8))


Multiply = Callable[..., Array]


def keeps_rows(multiply: Multiply, rng, a: Array, b: Array, whole: Array, **options: Any) -> str:
    """The first call of ``multiply`` in which a row of ``a`` has other bits than in ``whole``; empty where none has."""
    rows, k = a.shape
    n = whole.shape[-1]
    for turn in range(12):
        m = int(rng.integers(1, 10 if turn % 2 else rows + 1))
        first, how, of_b = int(rng.integers(rows - m + 1)), turn % 5, int(rng.integers(3))
        part = slice(first, first + m)
        out = laid_out(np.empty((m, n), whole.dtype), int(rng.integers(5))) if turn % 3 else None
        got = multiply(laid_out(a[part], how), laid_out(b, of_b), out=out, **options)
        if not same(got, whole[part]):
            return f"{m} rows from {first} on, a and b laid out {how}, {of_b}"
    for of_b in range(3):
        i = int(rng.integers(rows))
        if not same(multiply(a[i], laid_out(b, of_b), **options), whole[i]):
            return f"a vector, b laid out {of_b}"
    for shape in ((3, rows // 3), (2, 2, rows // 4), (rows, 1)):
        stack = a[: int(np.prod(shape))].reshape(*shape, k)
        expected = whole[: int(np.prod(shape))].reshape(*shape, n)
        every = np.broadcast_to(b, (*shape[:-1], *b.shape)) if shape[0] == 3 else b
        for right in (b, np.ascontiguousarray(every)):
            if not same(multiply(stack, right, **options), expected):
                return f"a stack of {shape}"
    return ""


def pinned(a: Array, b: Array, out: Array | None = None, out_dtype: Any = None, **options: Any) -> Array:
    """The product, in float32 where operands of 16 bits would be rounded: that hides most of the bits of a sum."""
    if out is not None:
        out_dtype = None
    elif out_dtype is None and a.dtype.itemsize == 2:
        out_dtype = "float32"
    return gemmhub.matmul(a, b, out=out, out_dtype=out_dtype, reproducible="batch", backend="cpu", **options)


def sizes(rng, unit: Unit) -> list[tuple[int, int, int]]:
    """Rows, columns and inner sizes beyond a tile and a block of k."""
    if "AMX" in unit.name and unit.name not in NAMES:
        return [(150, 70, 700)]
    return [(300, int(rng.integers(1, 230)), int(rng.integers(1, 1500))), (300, 31, 2100), (96, 210, 33)]


def test_a_row_has_the_same_bits_for_every_m(unit, rng, monkeypatch) -> None:
    """At any position, in stacks, by vectors, with any strides and alignment, with out, on one and on more threads."""
    for left, right in DTYPES[unit.pair]:
        for m, n, k in sizes(rng, unit):
            a, b = drawn(rng, (m, k), left), drawn(rng, (k, n), right)
            whole = pinned(a, b)
            assert gemmhub.explain(a, b, reproducible="batch").chosen == "cpu"
            for threads in (1, 3):
                monkeypatch.setattr(limits, "_chosen", threads)
                monkeypatch.setattr(limits, "ceiling", lambda: 3)
                assert keeps_rows(pinned, rng, a, b, whole) == "", (left, right, threads)
            assert same(pinned(a, b[:, : n // 2 + 1]), whole[:, : n // 2 + 1])
            assert same(pinned(a, b[:, n // 2]), whole[:, n // 2])


def test_many_rows(unit, rng) -> None:
    if unit.name not in NAMES:
        pytest.skip("too slow on an emulator")
    for left, right in DTYPES[unit.pair]:
        a, b = drawn(rng, (2048, 300), left), drawn(rng, (300, 301), right)
        whole = pinned(a, b)
        assert keeps_rows(pinned, rng, a, b, whole) == ""


@pytest.mark.parametrize("activation", [None, *ELEMENTWISE])
def test_the_epilogue_does_not_depend_on_the_position(unit, activation, rng) -> None:
    """In every lane and tail, with scalars, a bias and an addend."""
    left, right = DTYPES[unit.pair][0]
    if np.dtype(left).kind in "iu" and activation not in (None, "relu"):
        pytest.skip("of floats")
    a, b = drawn(rng, (150, 300), left), drawn(rng, (300, 77), right)
    alpha = 2 if np.dtype(left).kind in "iu" else 0.37
    natural = pinned(a[:1], b).dtype
    for out in [natural] if natural.kind in "iu" or natural == np.float64 else [np.float32, np.float16, BF16]:
        bias = drawn(rng, 77, out)
        options = {"activation": activation, "alpha": alpha, "out_dtype": np.dtype(out).name, "bias": bias}
        whole = pinned(a, b, **options)
        assert keeps_rows(pinned, rng, a, b, whole, **options) == ""
        c = drawn(rng, (150, 77), out)
        added = pinned(a, b, c=c, beta=alpha, **options)
        for m in (1, 2, 5, 33, 149):
            assert same(pinned(a[-m:], b, c=laid_out(c[-m:], m % 5), beta=alpha, **options), added[-m:])


def test_packed_b(unit, rng) -> None:
    for left, right in DTYPES[unit.pair]:
        if left != right:
            continue
        a, b = drawn(rng, (150, 411), left), drawn(rng, (411, 77), right)
        whole = pinned(a, b)
        packed = gemmhub.pack(b, backend="cpu", reproducible="batch")
        assert keeps_rows(lambda a, b, packed=packed, out=None: pinned(a, packed, out), rng, a, b, whole) == ""


def test_the_order_is_stated_and_is_that_of_every_size(unit) -> None:
    backend = CpuBackend()
    for left, right in DTYPES[unit.pair]:
        names = np.dtype(left).name, np.dtype(right).name
        if names[0] != names[1]:
            continue
        out = "int32" if unit.pair == "int8" else names[0]
        orders = set()
        for m, n, k in ((1024, 1024, 1024), (1, 1, 1), (1, 4000, 3), (3, 1, 7), (4, 4, 4)):
            for changes in ({}, {"a": "col"}, {"b": "col"}, {"batch": (3,)}, {"alpha_is_one": False}):
                offer = backend.offer(problem(m, n, k, names[0], out, reproducible="batch", **changes))
                assert not isinstance(offer, Refusal), offer
                assert offer.names == ("native",)
                orders.add(offer.first.order)
        assert orders == {unit.order}


@pytest.mark.skipif(not NAMES, reason="no kernels of its own here")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_are_one_chain(dtype, chain, rng) -> None:
    """Sums are those of the definition: subnormal numbers, signed zeros, infinities; matrices and vectors."""
    for m, n, k in (
        (70, 90, 700), (1, 333, 1031), (333, 1, 1031), (37, 29, 8), (5, 3, 1), (33, 100, 2050), (1, 1, 77), (1, 6, 77),
    ):  # fmt: skip
        tiny = np.finfo(dtype).tiny
        for special in range(3):
            a, b = drawn(rng, (m, k), dtype), drawn(rng, (k, n), dtype)
            if special:  # sums of subnormal numbers; or only zeros of both signs, to which products underflow
                a[:, :: 3 - special] *= tiny
                b *= np.sqrt(tiny)
            if special == 1:
                a[::3, 0] = 0
                a[m // 2, k // 2], b[k // 2, n // 2] = np.inf, -np.inf
            with np.errstate(all="ignore"):
                expected = chain(a, b)
            for how in range(5):
                for of_b in range(5):
                    assert same(pinned(laid_out(a, how), laid_out(b, of_b)), expected), (m, n, k, how, of_b)
            assert same(pinned(a[0], b), expected[0])
            assert same(pinned(a, b[:, 0]), expected[:, 0])
            assert same(pinned(a[0], np.asfortranarray(b)), expected[0])
    sixteen = drawn(rng, (70, 300), np.float16), drawn(rng, (300, 90), BF16)
    if dtype == np.float32:
        wide = chain(*(x.astype(np.float32) for x in sixteen))
        assert same(pinned(*sixteen, out_dtype="float32"), wide)
        assert same(pinned(sixteen[0][:1], sixteen[1], out_dtype="float32"), wide[:1])


@pytest.mark.skipif(not NAMES, reason="no kernels of its own here")
@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_only_pinned_vectors_along_k_are_one_chain(dtype) -> None:
    """A chain loses 1 beside 2**24, which lanes keep apart: they are faster, and unpinned products have no order."""
    chained = next(unit for unit in UNITS if unit.name in NAMES and unit.order == "fma.f32")
    a, b = np.zeros((1, 16), dtype), np.zeros((16, 9), dtype, order="F")
    a[0, [0, 1, 8]] = 4096, 1, -4096
    b[[0, 1, 8]] = [[4096], [1], [4096]]
    for reproducible, expected in ((None, 1), ("batch", 0)):
        along_k = problem(1, 9, 16, np.dtype(dtype).name, "float32", b="col", reproducible=reproducible)
        product = native_engine.NativeGemm(along_k, chained, 1 << 24).direct
        assert (product(a, b, None) == expected).all()
        assert (product(b.T, a.T, None) == expected).all()


@pytest.mark.skipif(not NAMES, reason="no kernels of its own here")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_chains_are_within_the_bound(dtype, rng) -> None:
    for m, n, k in ((3, 200, 5000), (100, 100, 1)):
        a, b = drawn(rng, (m, k), dtype), drawn(rng, (k, n), dtype)
        model = accuracy.error_model(a.dtype, b.dtype, a.dtype, a.dtype)
        assert accuracy.reference(a, b, model=model, out_dtype=a.dtype).ratio(pinned(a, b)).max() <= 1


FAULTS = {
    "threads": lambda a: a.shape[-2] > 32 if a.ndim > 1 else False,
    "vectors": lambda a: a.ndim == 1,
    "stacks": lambda a: a.ndim > 2,
    "strides": lambda a: not a.flags.c_contiguous,
}
"""Operands whose products a planted fault adds in another order."""


@pytest.mark.skipif(not NAMES, reason="no kernels of its own here")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_order_of_sums_is_noticed(fault, rng) -> None:
    """Split along k where a product is large, a vector, a stack or has strides."""
    a, b = drawn(rng, (100, 900), np.float32), drawn(rng, (900, 60), np.float32)

    def planted(a: Array, b: Array, out: Array | None = None) -> Array:
        if not FAULTS[fault](a):
            return pinned(a, b, out=out)
        halves = pinned(a[..., :450], b[..., :450, :]), pinned(a[..., 450:], b[..., 450:, :])
        return np.add(*halves, out=out)

    whole = pinned(a, b)
    assert keeps_rows(pinned, rng, a, b, whole) == ""
    assert keeps_rows(planted, rng, a, b, whole) != ""


@pytest.mark.skipif("float32 on AVX2" not in NAMES, reason="no AVX2 here")
def test_a_fault_in_the_kernel_is_noticed(monkeypatch, tmp_path: Path, chain, rng) -> None:
    """A micro-kernel that adds blocks of k to the result, as the kernels once did, does not add in one chain."""
    source = (sources.FOLDER / "x86_64" / "float_avx2.cpp").read_text()
    planted = re.sub(r"(multiply_4_rows<Product>)(?=, )", "planted", source).replace(
        "const gemmhub::Unit",
        """namespace {
void planted(const uint32_t* a, const uint32_t* b, int64_t words, const int32_t* start, bool first, void* out,
             int64_t stride, int64_t rows, int64_t columns) {
  float sums[4 * 24];
  multiply_4_rows<Product>(a, b, words, start, true, sums, 24, rows, columns);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      float& at = static_cast<float*>(out)[i * stride + j];
      at = first ? sums[24 * i + j] : at + sums[24 * i + j];
    }
}
}
const gemmhub::Unit""",
        1,
    )
    folder = tmp_path / "x86_64"
    folder.mkdir()
    (folder / "float_avx2.cpp").write_text(planted)
    code, headers = sources.files()
    code = tuple(folder / path.name if path.name == "float_avx2.cpp" else path for path in code)
    flags = (*sources.FLAGS, f"-I{sources.FOLDER / 'x86_64'}")
    built = native.build(native.Recipe(("g++",), flags, code, headers, name="planted"))
    assert isinstance(built, Path), built
    faulty = native.load(built)
    library._declare(faulty)
    a, b = drawn(rng, (20, 700), np.float32), drawn(rng, (700, 60), np.float32)
    expected = chain(a, b)
    asked = problem(20, 60, 700, reproducible="batch")
    which = next(unit for unit in UNITS if unit.name == "float32 on AVX2")
    gemm = native_engine.NativeGemm(asked, which, 1 << 26)
    assert same(gemm.direct(a, b, None), expected)
    monkeypatch.setattr(gemm, "_library", faulty)
    assert not same(gemm.direct(a, b, None), expected)


@pytest.mark.skipif(not NAMES, reason="no kernels of its own here")
def test_what_has_no_order_is_refused() -> None:
    """Complex numbers and mixtures with float64; every dtype where no kernel runs."""
    x = np.ones((4, 4), np.float32)
    for a, b, out in (
        (x.astype(np.complex64), x, None), (x.astype(ml_dtypes.float8_e4m3fn),) * 2 + ("float64",),
        (x.astype(np.float64), x, None), (x.astype(np.int8), x.astype(np.int8), "int64"),
    ):  # fmt: skip
        with pytest.raises(gemmhub.NoBackendError, match=r'order in which BLAS adds .* ask for reproducible="run"'):
            pinned(a, b, out_dtype=out)
    for name in ("float32", "float64", "bfloat16", "int8"):
        out = "int32" if name == "int8" else name
        refused = CpuBackend(probe.Machine(2, why_no_native="no compiler")).offer(
            problem(64, 64, 64, name, out, reproducible="batch")
        )
        assert isinstance(refused, Refusal)
        assert refused.reason.startswith("no compiler, and the order in which BLAS adds")
