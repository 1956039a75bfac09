"""Gates, decisions and numbers of the cpu backend."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import limits, model, numkong_engine, probe
from gemmhub_cpu.backend import CpuBackend

import gemmhub
from gemmhub import accuracy
from gemmhub._call.describe import describe
from gemmhub._call.options import request
from gemmhub.problem import GemmProblem

BF16 = np.dtype(ml_dtypes.bfloat16)
ALL_UNITS = frozenset((*probe.BF16_UNITS, *probe.INT8_UNITS))


def operands(m: int, n: int, k: int, dtype: object) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng()
    return tuple((rng.standard_normal(shape) * 20).astype(dtype) for shape in ((m, k), (k, n)))


def problem(m: int, n: int, k: int, dtype: object, **options: object) -> GemmProblem:
    a, b = (np.empty(shape, dtype) for shape in ((m, k), (k, n)))
    return describe(a, b, None, request(options)).problem


def machine(units: frozenset[str] = ALL_UNITS, numkong: str = "7.8.6", cores: int = 2) -> probe.Machine:
    return probe.Machine(cores, units, numkong, "" if numkong else "numkong is not installed")


def test_activations_without_a_formula_are_refused():
    for dtype in (BF16, np.float16, np.float32):
        asked = replace(problem(512, 512, 512, dtype), activation="tanh")
        assert "no activation tanh" in CpuBackend().supports(asked).reason


@pytest.mark.parametrize(
    ("dtype", "size", "here", "gate"),
    [
        (BF16, 512, machine(), None),
        (BF16, 512, machine(frozenset({"icelake", "genoa"})), "no AMX"),
        (np.int8, 512, machine(frozenset({"icelake"})), None),
        (np.int8, 512, machine(frozenset({"haswell"})), "no VNNI"),
        (BF16, 512, machine(numkong=""), "not installed"),
        (BF16, 64, machine(), "packing b would cost more"),
        (BF16, 2048, machine(cores=16), "16 cores"),
        (np.float16, 512, machine(), "no library beats conversion"),
    ],
)
def test_gates(
    dtype: object, size: int, here: probe.Machine, gate: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "sgemm_rate", lambda: 4e11)  # not that of a busy machine
    backend = CpuBackend(here)
    asked = problem(size, size, size, dtype)
    reason = backend.why_not_numkong(asked)
    assert (reason is None) if gate is None else (reason is not None and gate in reason)
    first = backend.candidates(asked)[0]
    assert first == ("numkong" if gate is None else "convert")
    if gate is not None:
        assert gate in backend.remark(asked, first)


def test_few_rows_do_not_pay_for_packing_b(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "sgemm_rate", lambda: 4e11)
    backend = CpuBackend(machine())
    assert "packing" in (backend.why_not_numkong(problem(4, 4096, 4096, BF16)) or "")
    assert backend.why_not_numkong(problem(4096, 4096, 4096, BF16)) is None
    assert backend.candidates(problem(4, 4096, 4096, BF16))[0] == "convert"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.int64])
def test_what_needs_no_conversion_stays_with_numpy(dtype: object) -> None:
    refusal = CpuBackend(machine()).supports(problem(8, 8, 8, dtype))
    assert refusal is not None
    assert refusal.reason
    assert "numpy" in refusal.remedy


def test_the_decision_shows_the_gate() -> None:
    a, b = operands(300, 300, 300, BF16)
    verdict = gemmhub.explain(a, b)["cpu"]
    assert verdict.status in ("chosen", "refused")
    assert verdict.remark or ("too small" in verdict.reason and "use the numpy backend" in verdict.remedy)
    a, b = operands(1100, 1100, 1100, np.float16)
    verdict = gemmhub.explain(a, b)["cpu"]
    assert verdict.status == "chosen"
    assert verdict.remark


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8])
def test_estimates_never_prefer_numpy_where_this_is_faster(dtype: object) -> None:
    masked = CpuBackend(probe.Machine(2))
    asked = problem(700, 700, 700, dtype)
    assert masked.estimate(asked) < masked._numpy.estimate(asked)


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8])
@pytest.mark.parametrize("order", ["C", "F"])
def test_products_larger_than_a_panel(dtype: object, order: str) -> None:
    """Sizes beyond the kit's: several panels, tiles and threads, under a small workspace."""
    if not probe.look().numkong:
        pytest.skip(probe.look().why_no_numkong)
    a, b = operands(333, 517, 401, dtype)
    b = np.asarray(b, order=order)
    here = probe.look()
    backend = CpuBackend(machine(numkong=here.numkong), by_cost=False)
    call = describe(a, b, None, request({}))
    expected = accuracy.reference(a, b, model=accuracy.problem_model(call.problem), out_dtype=call.problem.out.dtype)
    for limit in (1 << 21, 1 << 24, 1 << 26):
        for candidate in backend.candidates(call.problem):
            out = np.full((333, 517), 77, call.problem.out.dtype)
            kernel = backend.prepare(call.problem, candidate, limit)
            kernel.run(a, b, out, None, None, 1, 0, None)
            assert expected.ratio(out).max() <= 1, (candidate, limit)


@pytest.mark.parametrize("dtype", [BF16, np.int8])
def test_panel_width_respects_the_limit(dtype: object) -> None:
    for size in (64, 1000, 10_000, 300_000):
        asked = problem(64, 4096, size, dtype)
        for limit in (1 << 22, 1 << 26):
            gemm = numkong_engine.NumkongGemm(asked, limit)
            assert gemm.width == 0 or gemm.scratch_bytes <= limit


def test_a_numkong_that_multiplies_wrongly_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if not probe.look().numkong:
        pytest.skip(probe.look().why_no_numkong)
    right = numkong_engine.multiply

    def wrong(a: np.ndarray, packed: object, out: np.ndarray) -> None:
        right(a, packed, out)
        out[0, 0] += 1

    monkeypatch.setattr(numkong_engine, "multiply", wrong)
    version, units, reason = numkong_engine._load()
    assert not version
    assert not units
    assert "wrongly" in reason


def test_another_major_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("numkong")
    fake.__version__ = "8.0.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numkong", fake)
    assert "not one of 7.x" in numkong_engine._load()[2]


def test_torch_is_not_imported_for_this() -> None:
    if "torch" in sys.modules:
        pytest.skip("torch is in this process already")
    a, b = operands(256, 256, 256, BF16)
    gemmhub.matmul(a, b)
    assert "torch" not in sys.modules


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8])
def test_torch_engine(dtype: object) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    gemmhub.reload()
    a, b = operands(190, 130, 140, dtype)
    backend = CpuBackend()
    call = describe(a, b, None, request({}))
    assert "torch" in backend.candidates(call.problem)
    out = np.zeros((190, 130), call.problem.out.dtype)
    backend.prepare(call.problem, "torch", 1 << 26).run(a, b, out, None, None, 1, 0, None)
    expected = accuracy.reference(a, b, model=accuracy.problem_model(call.problem), out_dtype=out.dtype)
    assert expected.ratio(out).max() <= 1


@pytest.mark.parametrize(
    ("dtype", "options"),
    [(np.int8, {"out_dtype": "int64"}), (BF16, {"out_dtype": "float64"}), (BF16, {"alpha": 1e40}),
     (np.int8, {"out_dtype": "float32", "alpha": 1e-40})],
    ids=str,
)  # fmt: skip
def test_what_is_packed_for_numkong_is_not_multiplied_where_32_bits_do_not_do(dtype: object, options: dict) -> None:
    """int8 by int8 into int64 wrapped modulo 2**32."""
    backend = CpuBackend(machine(), by_cost=False)
    asked = replace(problem(64, 64, 1000, dtype, **options), packed_by="cpu")
    assert "32 bits" in backend.supports(asked).reason
    assert backend.supports(replace(asked, packed_by=None)) is None
    assert backend.supports(replace(problem(64, 64, 1000, dtype), packed_by="cpu")) is None
    assert CpuBackend(machine(frozenset()), by_cost=False).supports(asked) is None  # converted, not packed for numkong


@pytest.mark.parametrize(("left", "right"), [(np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8)])
def test_unsigned_bytes_are_exact(left: type, right: type) -> None:
    """At the ends of their range, through every candidate; numkong and torch have no unsigned products here."""
    m, n, k = 190, 130, 4000
    a, b = np.full((m, k), np.iinfo(left).max, left), np.full((k, n), np.iinfo(right).min or 255, right)
    call = describe(a, b, None, request({}))
    backend = CpuBackend(machine(), by_cost=False)
    assert backend.supports(call.problem) is None
    assert set(backend.candidates(call.problem)) == {"convert"}
    out = np.zeros((m, n), call.problem.out.dtype)
    backend.prepare(call.problem, "convert", 1 << 26).run(a, b, out, None, None, 1, 0, None)
    assert out.dtype == np.int32
    assert (out == k * int(a[0, 0]) * int(b[0, 0])).all()


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8])
def test_packed(dtype: object) -> None:
    a, b = operands(20, 1100, 1000, dtype)
    packed = gemmhub.pack(b)
    expected = gemmhub.matmul(a, b)
    b[...] = 0
    model = accuracy.error_model(a.dtype, b.dtype, expected.dtype, np.dtype(np.float32))
    got = gemmhub.matmul(a, packed)
    if model.exact or expected.dtype.kind == "i":
        assert np.array_equal(got, expected)
    else:
        # Two ways to the same number: each within its bound.
        scale = np.abs(a.astype(np.float64)) @ np.full((1000, 1100), 100.0)
        assert (np.abs(got.astype(np.float64) - expected.astype(np.float64)) <= 2.0**-7 * scale).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16, np.int8])
@pytest.mark.parametrize(
    "sizes", [(1024, 600, 700), (64, 600, 700), (8, 600, 700), (1, 600, 700), (1024, 8, 8)], ids=str
)
def test_the_backend_that_multiplies_packs(sizes: tuple[int, int, int], dtype: object) -> None:
    """Or one whose packed product is expected to be faster still; where there is none, b is kept as it is."""
    a, b = operands(*sizes, dtype)
    for right in (b, np.asfortranarray(b)):
        packed = gemmhub.pack(right, m=sizes[0])
        unpacked, found = gemmhub.explain(a, right), gemmhub.explain(a, packed)
        assert unpacked.chosen is not None
        assert found.chosen is not None
        before, after = unpacked[unpacked.chosen].seconds, found[found.chosen].seconds
        assert before is not None
        assert after is not None
        assert after <= before
        if sizes[0] == 1024 and sizes[1] > 8 and dtype != np.float32:
            assert packed.backend == "cpu"


def test_records_name_the_threads_of_both_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(64, 600, 700, np.float16)
    gemmhub.tune(a, b)
    assert gemmhub.explain(a, b)["cpu"].source == "measured"
    own, blas = limits.threads(), probe.blas_threads()
    for module, name in ((limits, "threads"), (probe, "blas_threads")):
        with monkeypatch.context() as patch:
            patch.setattr(limits, "threads", lambda: 9)
            patch.setattr(probe, "blas_threads", lambda: 9)
            patch.setattr(module, name, lambda: 7)
            found = gemmhub.explain(a, b)["cpu"]
            assert found.source == "estimated"
            assert f"a record is not used: measured with threads {own}, BLAS {min(own, blas)}" in found.remark
