"""Few vectors of 8 bits by a matrix: exact products, errors, special values, what has such kernels, and mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.candidates import gemv
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import sources
from gemmhub_nvidia import nvrtc
from problems import problem
from runs import Run, detected
from tiers import half
from vectors import EIGHT_BIT_VECTORS, eight_bit

from gemmhub.accuracy import problem_model, reference
from gemmhub.kit.corrections import NOTE
from gemmhub.operands import Scale

pytestmark = pytest.mark.emulator
_ROWS, _BLOCKS = {"scale_a": "row", "scale_b": "column"}, {"scale_a": "1x128", "scale_b": "128x128"}


@pytest.mark.parametrize("product", EIGHT_BIT_VECTORS, ids=str)
def test_results_are_exact(product):
    Run(product).check()


def ratios(run, a, b):
    """Return errors of ``run`` for these operands over the bound."""
    product = run.product
    scales = {name: np.asarray(x) for name, x in product.scales().items()}
    expected = reference(a, b, model=problem_model(product.problem), out_dtype=product.problem.out.dtype, **scales)
    return expected.ratio(run.of(a, b)).max()


@pytest.mark.parametrize(
    "asked",
    [
        eight_bit(1, 70, 1000, **_ROWS), eight_bit(3, 70, 656, dtype="float8_e5m2", **_BLOCKS),
        eight_bit(2, 208, 300, b="row", dtype_b="float8_e5m2", out="bfloat16"),
        eight_bit(1, 70, 656, dtype="int8", out="float16", **_ROWS),
    ],
    ids=str,
)  # fmt: skip
def test_errors(asked):
    run, rng = Run(asked), np.random.default_rng()

    def draw(dtype, *shape):
        if dtype == np.int8:
            return rng.integers(-128, 128, shape).astype(dtype)
        return np.ldexp(rng.standard_normal(shape), -rng.integers(0, 9, shape)).astype(dtype)

    a, b = draw(asked.problem.a.dtype, asked.m, asked.k), draw(asked.problem.b.dtype, asked.k, asked.n)
    assert ratios(run, a, b) <= 1
    if a.dtype != np.int8:
        a[0, 3], b[5, 7] = np.nan, np.nan
        assert ratios(run, a, b) <= 1


def test_infinities():
    asked = eight_bit(2, 70, 272, dtype="float8_e5m2", **_ROWS)
    run, rng = Run(asked), np.random.default_rng()
    a, b = (rng.integers(-3, 4, shape).astype(asked.problem.a.dtype) for shape in ((2, 272), (272, 70)))
    a[1, 100] = np.inf
    assert ratios(run, a, b) <= 1


def test_every_code():
    """A row of all codes, by ones in turn: each element is converted exactly."""
    for dtype in ("float8_e4m3fn", "float8_e5m2", "int8"):
        for order in ("col", "row"):
            asked = eight_bit(1, 256, 256, b=order, dtype=dtype)
            run, codes = Run(asked), np.arange(256, dtype=np.uint8).view(asked.problem.a.dtype)
            finite = np.isfinite(codes.astype(float))
            codes = np.where(finite, codes, np.zeros_like(codes))
            result = run.of(np.ones((1, 256), codes.dtype), np.diag(codes.astype(float)).astype(codes.dtype))
            np.testing.assert_array_equal(result[0].astype(float), codes.astype(float))


def test_int32_sums_wrap():
    asked = eight_bit(1, 8, 2**17, dtype="int8", out="int32", spread=2048)
    a, b = np.full((1, 2**17), -128, np.int8), np.full((2**17, 8), -128, np.int8)
    assert (Run(asked).of(a, b) == -(2**31)).all()


def test_scales_are_not_read_where_alpha_is_0():
    run = Run(eight_bit(1, 72, 64, alpha=0, beta=1, **_ROWS))
    for memory in run.scales.values():
        memory[:] = 0xFF
    run.check()


_INT8 = {"dtype": "int8", "out": "int32"}
MUTATIONS = {
    "a load has the scale of the next block": (
        eight_bit(2, 70, 656, **_BLOCKS), "at >> 7, matrix", "(at >> 7) + 1, matrix",
    ),
    "columns have the scales of rows": (
        eight_bit(2, 70, 272, **_ROWS), "result_scale(p.column_scales, column, matrix)",
        "result_scale(p.row_scales, row, matrix)",
    ),
    "integers are added as floats": (
        eight_bit(1, 70, 656, **_INT8), "add_bits(sums[v][i], shuffle_xor(bits_of(sums[v][i]), apart))",
        "sums[v][i] = static_cast<Sum>(bits_of(sums[v][i]) + shuffle_xor(bits_of(sums[v][i]), apart))",
    ),
    "integers have no signs": (
        eight_bit(1, 208, 137, b="row", **_INT8), "static_cast<signed char>(words", "static_cast<int>(words",
    ),
    "two elements are exchanged": (
        eight_bit(1, 70, 656, dtype="float8_e5m2", dtype_b="float8_e4m3fn"),
        "static_cast<u16>(two >> 16 * (i % 2))", "static_cast<u16>(two >> 16 * (1 - i % 2))",
    ),
    "an e5m2 is the lower half": (eight_bit(1, 70, 656, dtype="float8_e5m2"), "& 0xff) << 8));", "& 0xff)));"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_exact_products_detect(monkeypatch, tmp_path, name):
    asked, old, new = MUTATIONS[name]
    assert detected(Run(asked, mutated(monkeypatch, tmp_path, "gemv_kernel.cu", (old, new))), 2)


# --- problems ---------------------------------------------------------------------------------------------------

_FLOAT8 = "float8_e4m3fn"


def kernels(*asked, **changes):
    return [x.kernel for x in gemv.choices(lower.lowerings(problem(*asked, **changes)))]


def test_what_has_kernels():
    assert kernels(1, 64, 256, _FLOAT8, "bfloat16", b="col")
    assert kernels(8, 64, 256, "int8", "int32", b="row")
    assert not kernels(9, 64, 256, _FLOAT8, "bfloat16", b="col")
    assert not kernels(1, 64, 256, _FLOAT8, _FLOAT8, b="col")
    assert not kernels(2, 64, 256, _FLOAT8, "bfloat16", a="col", b="col")
    blocks = {"scale_a": Scale("m", 2, True, 1)}
    assert kernels(1, 64, 256, _FLOAT8, "bfloat16", b="col", **blocks)
    assert not kernels(1, 64, 256, _FLOAT8, "bfloat16", b="row", **blocks)


def test_loads_leave_registers_for_sums():
    def widths(m, b, dtype=_FLOAT8, **scales):
        return {x.load_bytes for x in kernels(m, 64, 256, dtype, "bfloat16", b=b, **scales)}

    blocks = {"scale_a": Scale("m", 2, True, 1)}
    assert [widths(m, "row") for m in (1, 2, 4, 8)] == [{16}, {16}, {8}, {8}]
    assert [widths(m, "col") for m in (4, 8)] == [{16}, {8}]
    assert [widths(m, "col", "int8") for m in (4, 8)] == [{16}, {16}]
    assert [widths(m, "col", **blocks) for m in (4, 8)] == [{16}, {8}]


def test_the_backend_offers_them():
    backend = Home(attributes={16: 132}).backend()
    for asked in (
        problem(1, 4096, 4096, _FLOAT8, "bfloat16", b="col", scale_a=Scale("m"), scale_b=Scale("n")),
        problem(1, 16384, 8192, "int8", "int32", b="row"),
    ):
        offer = backend.offer(asked)
        assert offer.first.name.startswith("gemv"), offer.names
        assert NOTE in offer.remark(offer.first.name)
        assert not offer.first.copies
        assert backend.prepare(asked, offer.first.name, 0).workspace_bytes == 0


KERNELS = sorted({x.choice.kernel for x in EIGHT_BIT_VECTORS}, key=repr)


@pytest.mark.compiler
@pytest.mark.parametrize(
    "kernel", half(KERNELS, sources.gemv(KERNELS[0]).files), ids=lambda x: "-".join(map(str, x.macros.values()))
)
def test_it_compiles(kernel):
    made = nvrtc.load().compile(sources.gemv(kernel), verbose=True)
    assert made.spilled == 0, made.log
    assert made.registers <= 256 // kernel.min_ctas_per_sm, made.log
