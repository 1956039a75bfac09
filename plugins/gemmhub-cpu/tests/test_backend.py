"""Gates, decisions and numbers of the cpu backend."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import limits, model, numkong_engine, panels, probe
from gemmhub_cpu.backend import CpuBackend
from gemmhub_cpu.units import UNITS

import gemmhub
from gemmhub import accuracy
from gemmhub._call.describe import describe
from gemmhub._call.options import request
from gemmhub.backend import Kernel, Offer, answer
from gemmhub.capability import Refusal
from gemmhub.layout import MatrixLayout
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


@pytest.mark.parametrize("activation", ["tanh", "swiglu"])
def test_activations_that_it_does_not_take_are_refused(activation: str) -> None:
    for dtype in (BF16, np.float16, np.float32):
        asked = replace(problem(512, 512, 512, dtype), activation=activation)
        assert f"no activation {activation}" in answer(CpuBackend(), asked).reason


@pytest.mark.parametrize(
    ("dtype", "size", "here", "gate"),
    [
        (BF16, 512, machine(), None),
        (BF16, 4096, machine(frozenset({"icelake", "genoa"})), "no AMX"),
        (np.int8, 512, machine(frozenset({"icelake"})), None),
        (np.int8, 4096, machine(frozenset({"haswell"})), "no VNNI"),
        (BF16, 4096, machine(numkong=""), "not installed"),
        (BF16, 4096, machine(cores=16), "16 cores"),
        (np.float16, 1024, machine(), "no library beats conversion"),
    ],
)
def test_gates(
    dtype: object, size: int, here: probe.Machine, gate: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "sgemm_rate", lambda: 4e11)  # not that of a busy machine
    backend = CpuBackend(here)
    offer = backend.offer(problem(size, size, size, dtype))
    assert offer.names == (("numkong", "convert") if gate is None else ("convert",))
    if gate is not None:
        assert gate in offer.remark("convert")
        assert isinstance(backend.offer(problem(512, 512, 512, dtype)), Refusal)  # too small to be converted by two


def test_few_rows_do_not_pay_for_packing_b(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "sgemm_rate", lambda: 4e11)
    backend = CpuBackend(machine())
    few = backend.offer(problem(4, 4096, 4096, BF16))
    assert "packing" in few.remark("convert")
    assert few.names == ("convert",)
    assert backend.offer(problem(4096, 4096, 4096, BF16)).first.name == "numkong"
    assert isinstance(backend.offer(problem(64, 64, 64, BF16)), Refusal)
    assert isinstance(backend.offer(problem(4, 512, 512, BF16)), Refusal)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.int64])
def test_what_needs_no_conversion_stays_with_numpy(dtype: object) -> None:
    refusal = CpuBackend(machine()).offer(problem(8, 8, 8, dtype))
    assert isinstance(refusal, Refusal)
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
    masked = CpuBackend(probe.Machine(2), by_cost=False)
    asked = problem(700, 700, 700, dtype)
    assert masked.offer(asked).first.seconds < masked._numpy.offer(asked).first.seconds


def test_each_candidate_has_its_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine whose time is modelled is asked once."""
    monkeypatch.setattr(model, "sgemm_rate", lambda: 4e11)
    asked: list[str] = []

    def counted(name: str) -> Callable[..., float]:
        method = getattr(model.Estimates, name)

        def count(*arguments: object) -> float:
            asked.append(name)
            return method(*arguments)

        return count

    for name in ("native", "numkong"):
        monkeypatch.setattr(model.Estimates, name, counted(name))
    every = replace(machine(), native=frozenset(unit.name for unit in UNITS), torch="2")
    offer = CpuBackend(every).offer(problem(1024, 1024, 1024, np.int8))
    assert offer.names == ("native", "numkong", "convert", "torch")
    assert asked == ["native", "numkong"]
    *modelled, of_torch = [candidate.seconds for candidate in offer.candidates]
    assert sorted(modelled) == modelled
    assert len(set(modelled)) == 3
    assert of_torch is None


@pytest.mark.parametrize(
    ("dtype", "orders"),
    [(np.int8, ["exact"] * 4), (BF16, ["bfloat16 on AMX", None, None, None]), (np.float16, ["float32 on AVX-512"])],
)
def test_orders(dtype: object, orders: list[str | None]) -> None:
    """Integers have one; the kernels of a unit have one but for vectors, which they read as they lie."""
    every = replace(machine(), native=frozenset(unit.name for unit in UNITS), torch="2")
    backend = CpuBackend(every, by_cost=False)
    asked = problem(64, 64, 64, dtype)
    found = [candidate.order for candidate in backend.offer(asked).candidates]
    assert found[: len(orders)] == orders
    assert all(order in (orders[0], None) for order in found)
    packed = replace(asked, packed_by="cpu")
    assert backend.offer(packed).first.order == orders[0]
    for m, n in ((1, 64), (64, 1)):
        exact = orders[0] if orders[0] == "exact" else None
        assert backend.offer(problem(m, n, 64, dtype)).first.order == exact
        assert backend.offer(replace(problem(m, n, 64, dtype), packed_by="cpu")).first.order == orders[0]
    wide = problem(64, 64, 64, dtype, out_dtype="float32", alpha=1e-40)  # summed in float64
    assert {candidate.order for candidate in backend.offer(wide).candidates} == {None}


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}, {"out_dtype": "float32"}], ids=str)
def test_a_candidate_runs_in_any_workspace(dtype: object, options: dict) -> None:
    """Others are refused, not replaced."""
    if options.get("activation") and dtype == np.int8:
        pytest.skip("of floats")
    here = probe.look()
    backend = CpuBackend(replace(machine(numkong=here.numkong), native=here.native), by_cost=False)
    if np.dtype(dtype) == np.dtype(ml_dtypes.float8_e4m3fn):
        options = {**options, "out_dtype": "float32"}
    for sizes in ((40, 50, 60), (300, 200, 3000), (1, 700, 900)):
        asked = problem(*sizes, dtype, **options)
        for limit in (0, 1 << 12, 1 << 17, 1 << 20, 1 << 26):
            kernels = {name: backend.prepare(asked, name, limit) for name in backend.offer(asked).names}
            assert isinstance(kernels["convert"], Kernel)
            assert "converted" in kernels.pop("convert").description
            for name, kernel in kernels.items():
                if isinstance(kernel, Refusal):
                    assert limit < 1 << 26
                    assert f"{limit / 2**20:.4g} MiB" in kernel.reason
                    assert "workspace_mib" in kernel.remedy
                else:
                    assert kernel.workspace_bytes <= limit
                    assert "converted" not in kernel.description, name


def test_a_candidate_that_was_not_offered_is_refused() -> None:
    asked = problem(64, 64, 64, np.float16)
    for name in ("native", "numkong", "torch", "fastest"):
        refused = CpuBackend(machine()).prepare(asked, name, 1 << 26)
        assert isinstance(refused, Refusal)
        assert name in refused.reason
        assert refused.remedy


def test_a_small_workspace_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision shows which candidate ran, and why."""
    if not probe.look().native:
        pytest.skip("no kernels of its own here")
    monkeypatch.setattr(CpuBackend.__init__, "__defaults__", (None, False))
    a, b = operands(8, 60, 130_000, np.int8)
    exact = a.astype(np.int32) @ b.astype(np.int32)
    for mib, refused in (("64", False), ("1", True)):
        monkeypatch.setenv("GEMMHUB_WORKSPACE_MIB", mib)
        gemmhub.reload()
        assert np.array_equal(gemmhub.matmul(a, b, backend="cpu"), exact)
        plan = gemmhub.plan(a, b, backend="cpu")
        assert np.array_equal(plan(a, b), exact)
        verdict = plan.decision["cpu"]
        assert ("native is refused: 1 MiB of workspace" in verdict.remark) == refused
        assert verdict.candidate == ("convert" if refused else "native")
        packed = gemmhub.pack(b, backend="cpu")
        if not refused:
            assert np.array_equal(gemmhub.matmul(a, packed), exact)
            continue
        with pytest.raises(gemmhub.NoBackendError, match="multiply by b itself"):
            gemmhub.matmul(a, packed)


def test_a_packed_operand_is_refused_where_its_engine_has_no_workspace() -> None:
    here = probe.look()
    if not here.native:
        pytest.skip("no kernels of its own here")
    backend = CpuBackend(by_cost=False)
    asked = replace(problem(200, 300, 400, np.int8), packed_by="cpu")
    assert isinstance(backend.prepare(asked, "packed", 1 << 26), Kernel)
    refused = backend.prepare(asked, "packed", 1 << 16)
    assert isinstance(refused, Refusal)
    assert "workspace_mib" in refused.remedy
    refused = backend.pack(None, deep())
    assert isinstance(refused, Refusal)
    assert "64 MiB" in refused.reason
    assert "pack()" in refused.remedy


def deep() -> GemmProblem:
    """A product of so many columns of a that 64 MiB do not hold the few rows that a unit multiplies at once."""
    k = 1 << 23
    asked = problem(1, 1, 1, np.float16)
    a, b = MatrixLayout.contiguous(1, k), MatrixLayout.contiguous(k, 1)
    return replace(asked, k=k, a=replace(asked.a, layout=a), b=replace(asked.b, layout=b))


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
        for candidate in backend.offer(call.problem).names:
            out = np.full((333, 517), 77, call.problem.out.dtype)
            kernel = backend.prepare(call.problem, candidate, limit)
            assert candidate in ("convert", "native") or "numkong" in kernel.description
            kernel.run(a, b, out, 1, 0, None)
            assert expected.ratio(out).max() <= 1, (candidate, limit)


@pytest.mark.parametrize("dtype", [BF16, np.int8])
def test_panel_width_respects_the_limit(dtype: object) -> None:
    for size in (64, 1000, 10_000, 300_000):
        asked = problem(64, 4096, size, dtype)
        for limit in (1 << 22, 1 << 26):
            gemm = numkong_engine.NumkongGemm(asked, limit)
            assert (gemm.width == 0) == (gemm.scratch_bytes == 0)
            assert gemm.scratch_bytes <= limit


@pytest.mark.parametrize("limit", [1 << 20, 1 << 22, 1 << 26])
def test_tiles_of_panels_respect_the_limit(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of a wide result, of b packed within a larger limit, and for many cores."""
    if not probe.look().numkong:
        pytest.skip(probe.look().why_no_numkong)
    m, n, k = 100, 40_000, 8
    a, b = (np.ones(shape, np.int8) for shape in ((m, k), (k, n)))
    asked = problem(m, n, k, np.int8, out_dtype="float32")
    packed = numkong_engine.NumkongGemm(asked, 1 << 26).pack(b)
    sizes: list[int] = []

    class Watched(panels.Scratch):
        def lease(self, nbytes: int) -> object:
            sizes.append(nbytes)
            return super().lease(nbytes)

    monkeypatch.setattr(panels, "_tiles", Watched())
    gemm = numkong_engine.NumkongGemm(asked, limit)
    for right in (b, packed):
        out = np.zeros((m, n), np.float32)
        gemm(a, right, out, 1, 0, None)
        assert (out == k).all()
    assert gemm.scratch_bytes <= limit
    assert max(sizes) * panels.cores() + 2 * gemm.width * k <= gemm.scratch_bytes
    monkeypatch.setattr(panels, "cores", lambda: 256)
    gemm = numkong_engine.NumkongGemm(asked, 1 << 26)
    assert 0 < gemm.scratch_bytes <= 1 << 26


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
    backend = CpuBackend(by_cost=False)
    call = describe(a, b, None, request({}))
    assert "torch" in backend.offer(call.problem).names
    out = np.zeros((190, 130), call.problem.out.dtype)
    backend.prepare(call.problem, "torch", 1 << 26).run(a, b, out, 1, 0, None)
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
    assert "32 bits" in backend.offer(asked).reason
    assert isinstance(backend.offer(replace(asked, packed_by=None)), Offer)
    assert isinstance(backend.offer(replace(problem(64, 64, 1000, dtype), packed_by="cpu")), Offer)
    converts = CpuBackend(machine(frozenset()), by_cost=False)  # b is converted, not packed for numkong
    assert isinstance(converts.offer(asked), Offer)


@pytest.mark.parametrize(("left", "right"), [(np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8)])
def test_unsigned_bytes_are_exact(left: type, right: type) -> None:
    """At the ends of their range, through every candidate; numkong and torch have no unsigned products here."""
    m, n, k = 190, 130, 4000
    a, b = np.full((m, k), np.iinfo(left).max, left), np.full((k, n), np.iinfo(right).min or 255, right)
    call = describe(a, b, None, request({}))
    backend = CpuBackend(machine(), by_cost=False)
    assert set(backend.offer(call.problem).names) == {"convert"}
    out = np.zeros((m, n), call.problem.out.dtype)
    backend.prepare(call.problem, "convert", 1 << 26).run(a, b, out, 1, 0, None)
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
