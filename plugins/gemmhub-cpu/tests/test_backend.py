"""Gates, decisions and numbers of the cpu backend."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import limits, model, probe
from gemmhub_cpu.backend import CpuBackend
from gemmhub_cpu.units import UNITS

import gemmhub
from gemmhub import accuracy
from gemmhub._call.describe import describe
from gemmhub._call.options import request
from gemmhub.backend import Kernel, Offer, answer
from gemmhub.capability import Absent, Refusal
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem

BF16 = np.dtype(ml_dtypes.bfloat16)
EVERY_UNIT = frozenset(unit.name for unit in UNITS)


def operands(m: int, n: int, k: int, dtype: object) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng()
    return tuple((rng.standard_normal(shape) * 20).astype(dtype) for shape in ((m, k), (k, n)))


def problem(m: int, n: int, k: int, dtype: object, **options: object) -> GemmProblem:
    a, b = (np.empty(shape, dtype) for shape in ((m, k), (k, n)))
    return describe(a, b, None, request(options)).problem


@pytest.mark.parametrize("activation", ["geglu", "swiglu"])
def test_activations_that_it_does_not_take_are_refused(activation: str) -> None:
    for dtype in (BF16, np.float16, np.float32):
        asked = replace(problem(512, 512, 512, dtype), activation=activation)
        assert f"no activation {activation}" in answer(CpuBackend(), asked).reason


@pytest.mark.parametrize(
    ("dtype", "here", "gate"),
    [
        (BF16, probe.Machine(2, EVERY_UNIT), ""),
        (np.int8, probe.Machine(2, EVERY_UNIT), ""),
        (np.float16, probe.Machine(2, EVERY_UNIT), ""),
        (np.int8, probe.Machine(2, why_no_native="the CPU has no avx2"), "the CPU has no avx2"),
        (BF16, probe.Machine(2, frozenset({"int8 on AVX2"}), "no other"), "no other"),
    ],
)
def test_gates(dtype: object, here: probe.Machine, gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a unit large operands are converted by all cores, and small ones are refused: both show the reason."""
    monkeypatch.setattr(model, "sgemm_rate", lambda: 4e11)  # not that of a busy machine
    backend = CpuBackend(here)
    offer = backend.offer(problem(4096, 4096, 4096, dtype))
    assert offer.names == (("convert",) if gate else ("native", "convert"))
    assert gate in offer.remark("convert")
    small = backend.offer(problem(16, 16, 16, dtype))
    assert isinstance(small, Refusal) == bool(gate)
    if isinstance(small, Refusal):
        assert gate in small.reason
        assert small.remedy == "use the numpy backend"


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.int64])
def test_what_needs_no_conversion_stays_with_numpy(dtype: object) -> None:
    refusal = CpuBackend().offer(problem(8, 8, 8, dtype))
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


@pytest.mark.parametrize(
    ("name", "dtype", "unpinned", "pinned"),
    [
        ("bfloat16 on AMX", BF16, True, False),
        ("float32 on AVX2", BF16, True, True),
        ("float64 on AVX2", np.float64, True, True),
        ("int8 on AVX2", np.int8, True, True),
        ("int64 on AVX2", np.int64, False, False),
    ],
)
def test_which_vectors_are_read_in_place(name: str, dtype: object, unpinned: bool, pinned: bool) -> None:
    unit = next(unit for unit in UNITS if unit.name == name)
    for m, n in ((1, 64), (64, 1)):
        assert model.by_vector(problem(m, n, 64, dtype), unit) == unpinned
        assert model.by_vector(problem(m, n, 64, dtype, reproducible="batch"), unit) == pinned


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8])
def test_estimates_never_prefer_numpy_where_this_is_faster(dtype: object) -> None:
    masked = CpuBackend(probe.Machine(2), by_cost=False)
    asked = problem(700, 700, 700, dtype)
    assert masked.offer(asked).first.seconds < masked._numpy.offer(asked).first.seconds


def test_each_candidate_has_its_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "sgemm_rate", lambda: 4e11)
    offer = CpuBackend(probe.Machine(2, EVERY_UNIT)).offer(problem(1024, 1024, 1024, np.int8))
    assert offer.names == ("native", "convert")
    native, convert = [candidate.seconds for candidate in offer.candidates]
    assert 0 < native < convert


@pytest.mark.parametrize(
    ("dtype", "units", "orders"),
    [
        (np.int8, EVERY_UNIT, ["exact"] * 2),
        (BF16, EVERY_UNIT, ["amx.tdpbf16ps", None]),
        (np.float16, EVERY_UNIT, ["amx.tdpfp16ps"]),
        (np.float16, frozenset({"float32 on AVX2"}), ["fma.f32"]),
    ],
)
def test_orders(dtype: object, units: frozenset[str], orders: list[str | None]) -> None:
    """Integers have one; the kernels of a unit have one but for vectors, which they read as they lie."""
    backend = CpuBackend(probe.Machine(2, units), by_cost=False)
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
    backend = CpuBackend(by_cost=False)
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
    for name in ("native", "fastest"):
        refused = CpuBackend(probe.Machine(2)).prepare(asked, name, 1 << 26)
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
    refused = backend.prepare(asked, "packed", 1 << 14)
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
def test_products_larger_than_a_tile(dtype: object, order: str) -> None:
    """Sizes beyond the kit's: several tiles and threads, under a small workspace."""
    a, b = operands(333, 517, 401, dtype)
    b = np.asarray(b, order=order)
    backend = CpuBackend(by_cost=False)
    call = describe(a, b, None, request({}))
    expected = accuracy.reference(a, b, model=accuracy.problem_model(call.problem), out_dtype=call.problem.out.dtype)
    for limit in (1 << 21, 1 << 24, 1 << 26):
        for candidate in backend.offer(call.problem).names:
            out = np.full((333, 517), 77, call.problem.out.dtype)
            backend.prepare(call.problem, candidate, limit).run(a, b, out, 1, 0, None)
            assert expected.ratio(out).max() <= 1, (candidate, limit)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [(np.int8, {"out_dtype": "int64"}), (BF16, {"out_dtype": "float64"}), (BF16, {"alpha": 1e40}),
     (np.int8, {"out_dtype": "float32", "alpha": 1e-40})],
    ids=str,
)  # fmt: skip
def test_what_is_packed_for_a_unit_is_not_multiplied_where_32_bits_do_not_do(dtype: object, options: dict) -> None:
    """int8 by int8 into int64 wrapped modulo 2**32."""
    backend = CpuBackend(probe.Machine(2, EVERY_UNIT), by_cost=False)
    asked = replace(problem(64, 64, 1000, dtype, **options), packed_by="cpu")
    assert "32 bits" in backend.offer(asked).reason
    assert isinstance(backend.offer(replace(asked, packed_by=None)), Offer)
    assert isinstance(backend.offer(replace(problem(64, 64, 1000, dtype), packed_by="cpu")), Offer)
    converts = CpuBackend(probe.Machine(2), by_cost=False)  # b is converted, not packed for a unit
    assert isinstance(converts.offer(asked), Offer)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("out", ["float32", "float64"])
def test_what_is_packed_for_exact_integers_is_not_converted(dtype: type, out: str) -> None:
    backend = CpuBackend(probe.Machine(2, EVERY_UNIT), by_cost=False)
    asked = replace(problem(64, 64, 1000, dtype, out_dtype=out), packed_by="cpu")
    assert backend.offer(asked).remedy == f"multiply by the unpacked b, or pass out_dtype={np.dtype(dtype)}"
    assert isinstance(backend.offer(replace(problem(64, 64, 1000, dtype), packed_by="cpu")), Offer)
    converts = CpuBackend(probe.Machine(2), by_cost=False)  # b is converted, not packed for a unit
    assert isinstance(converts.offer(asked), Offer)


@pytest.mark.parametrize(("left", "right"), [(np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8)])
def test_unsigned_bytes_are_exact(left: type, right: type) -> None:
    """At the ends of their range, through every candidate; the kernels have no unsigned products."""
    m, n, k = 190, 130, 4000
    a, b = np.full((m, k), np.iinfo(left).max, left), np.full((k, n), np.iinfo(right).min or 255, right)
    call = describe(a, b, None, request({}))
    backend = CpuBackend(by_cost=False)
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


def test_the_plugin_is_absent_on_other_systems(monkeypatch) -> None:
    for system in ("darwin", "win32"):
        monkeypatch.setattr("sys.platform", system)
        found = CpuBackend().probe()
        assert isinstance(found, Absent)
        assert system in found.reason
        assert found.remedy
