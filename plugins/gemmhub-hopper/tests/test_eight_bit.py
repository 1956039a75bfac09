"""Products of 8-bit operands: exact sums, errors within the bound, special values, scales, refusals, and mistakes."""

from __future__ import annotations

import ctypes
import mmap
import signal
from dataclasses import replace
from multiprocessing import get_context

import fake_cuda
import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.candidates.candidate import named
from gemmhub_hopper.launches.launch import place_scales
from gemmhub_hopper.lowering import lower
from problems import bias, operand, problem
from products import EIGHT_BIT_PRODUCTS, SMALL, EightBitProduct, Shape
from runs import Run, detected

from gemmhub.accuracy import problem_model, reference
from gemmhub.capability import Refusal
from gemmhub.operands import Scale

pytestmark = pytest.mark.emulator
_K_MAJOR = {"b": "col"}


@pytest.mark.parametrize("asked", EIGHT_BIT_PRODUCTS, ids=str)
def test_exact_products(asked):
    run = Run(asked)
    for _ in range(2):
        run.check()


def ratios(run, a, b):
    """Return errors of ``run`` for these operands over the bound."""
    product = run.product
    scales = {name: np.asarray(x) for name, x in product.scales().items()}
    expected = reference(a, b, model=problem_model(product.problem), out_dtype=product.problem.out.dtype, **scales)
    return expected.ratio(run.of(a, b))


def drawn(rng, asked, exponents, positive=False):
    """Return operands whose elements have that many exponents."""

    def draw(dtype, *shape):
        if dtype == np.int8:
            return rng.integers(-128, 128, shape).astype(dtype)
        x = np.ldexp(rng.standard_normal(shape), -rng.integers(0, exponents, shape))
        return (np.abs(x) if positive else x).astype(dtype)

    a, b = asked.problem.a.dtype, asked.problem.b.dtype
    return draw(a, asked.m, asked.k), draw(b, asked.k, asked.n)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "asked",
    [
        EightBitProduct(SMALL, 72, 72, 1000, dtype="float8_e4m3fn"),
        EightBitProduct(SMALL, 71, 72, 272, dtype="float8_e5m2", scale_a="1x128", scale_b="128x128", **_K_MAJOR),
        EightBitProduct(SMALL, 72, 72, 272, dtype="float8_e5m2", dtype_b="float8_e4m3fn", splits=2, out="bfloat16"),
        EightBitProduct(SMALL, 72, 71, 272, dtype="float8_e4m3fn", scale_a="row", scale_b="column", swapped=True),
        EightBitProduct(SMALL, 72, 72, 272, dtype="int8", scale_a="row", scale_b="column", out="float16"),
        EightBitProduct(SMALL, 72, 72, 1000, dtype="int8", out="int32", splits=3),
    ],
    ids=str,
)
def test_errors(asked, seed):
    run, rng = Run(asked, seed=seed), np.random.default_rng(seed)
    for exponents in (1, 7):
        assert ratios(run, *drawn(rng, asked, exponents)).max() <= 1


LONG = EightBitProduct(SMALL, 64, 64, 4096, dtype="float8_e4m3fn", **_K_MAJOR)


def test_long_sums():
    """Positive terms: of 14 bits that are never promoted, whole products would be cut off."""
    assert ratios(Run(LONG), *drawn(np.random.default_rng(0), LONG, 1, positive=True)).max() <= 1


def test_long_sums_detect_a_missing_promotion(monkeypatch, tmp_path):
    home = mutated(
        monkeypatch, tmp_path, "eight_bit.cuh",
        ("    clear(acc);\n", "    clear(acc);\n    Sum part[BLOCK_N / 2] = {};\n"),
        ("            Sum part[BLOCK_N / 2] WRITTEN_BY_WGMMA;\n", ""),
        ("step * kStepBytesB / 16, step > 0);", "step * kStepBytesB / 16, block > 0 || step > 0);"),
        ("            scales[0].promote(acc[i], part, at, ctx, i);\n",
         "            if (block + 1 == work.k_blocks) scales[0].promote(acc[i], part, at, ctx, i);\n"),
    )  # fmt: skip
    assert ratios(Run(LONG, home), *drawn(np.random.default_rng(0), LONG, 1, positive=True)).max() > 1


def test_int32_sums_wrap():
    """As the result's dtype does: 2^17 products of -128 by -128 are 2^31."""
    asked = EightBitProduct(SMALL, 2, 16, 2**17, dtype="int8", out="int32", splits=4, **_K_MAJOR)
    a, b = np.full((2, 2**17), -128, np.int8), np.full((2**17, 16), -128, np.int8)
    assert (Run(asked).of(a, b) == -(2**31)).all()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("scales", [{}, {"scale_a": "1x128", "scale_b": "128x1"}, {"scale_a": "row"}], ids=str)
def test_special_values(dtype, scales):
    asked = EightBitProduct(SMALL, 72, 72, 272, dtype=dtype, **scales, **_K_MAJOR)
    a, b = drawn(np.random.default_rng(0), asked, 5)
    a[3, 5], b[270, 8] = np.nan, np.nan
    a[9, :], b[:, 11] = 0, 0
    if dtype == "float8_e5m2":
        a[4, 100], a[6, 7], b[7, 12] = np.inf, -np.inf, 0
    assert ratios(Run(asked), a, b).max() <= 1


def test_scales_are_not_read_where_alpha_is_0():
    asked = EightBitProduct(
        SMALL, 72, 136, 272, dtype="float8_e4m3fn", alpha=0, beta=2, scale_a="row", scale_b="column", **_K_MAJOR
    )
    run = Run(asked)
    for memory in run.scales.values():
        memory[:] = 0xFF
    run.check()


# --- scales at the end of their memory --------------------------------------------------------------------------


class AtEnd(Run):
    """A product whose scales end where readable memory does."""

    def place(self, scales):
        size = mmap.PAGESIZE
        pages = mmap.mmap(-1, 2 * size)
        memory = np.frombuffer(pages, np.uint8)
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(memory.ctypes.data + size), size, 0) == 0
        start = size - scales.nbytes
        np.ndarray(scales.shape, np.float32, memory.data, start, scales.strides)[...] = scales
        return memory[start:size]


ENDING = (
    EightBitProduct(SMALL, 70, 70, 272, dtype="float8_e4m3fn", scale_a="row", scale_b="column"),
    EightBitProduct(SMALL, 70, 70, 272, dtype="float8_e4m3fn", scale_a="1x128", scale_b="128x1", mn_major_scales=True),
    EightBitProduct(
        SMALL, 70, 200, 272, dtype="float8_e4m3fn", scale_a="1x128", scale_b="128x128", mn_major_scales=True
    ),
)


def run_at_end(number, changes):
    """Run in a process of its own."""
    fake_cuda.CHANGES = changes
    AtEnd(ENDING[number], Home()).check()


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (0, ()),
        (1, ()),
        (2, ()),
        (0, (("epilogue.cuh", "scales.at != nullptr && element < end &&", "scales.at != nullptr &&"),)),
        (1, (("eight_bit.cuh", "batch), element < end);", "batch), true);"),)),
        (2, (("eight_bit.cuh", "((element < end ? element : end - 1) >>", "(element >>"),)),
    ],
)
def test_no_scale_is_read_beyond_the_last(number, changes):
    process = get_context("spawn").Process(target=run_at_end, args=(number, changes))
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGSEGV if changes else 0)


# --- mistakes that exact products detect -------------------------------------------------------------------------

SWAPPED = EightBitProduct(
    SMALL, 72, 136, 400, dtype="float8_e4m3fn", scale_a="row", scale_b="column", swapped=True, **_K_MAJOR
)
BLOCKS = EightBitProduct(
    Shape(128, 64, 2), 264, 136, 656, dtype="float8_e4m3fn", scale_a="1x128", scale_b="128x1", **_K_MAJOR
)
WIDE = next(x for x in EIGHT_BIT_PRODUCTS if x.shape.n == 192 and x.scale_b == "128x128")
MUTATIONS = {
    "rows have the columns' scales": (
        SWAPPED,
        "epilogue.cuh",
        ("scale(p, p.row_scales, row + kRowsApart * h, p.m)", "scale(p, p.column_scales, row + kRowsApart * h, p.m)"),
        ("fragment.scale(p, p.column_scales, ", "fragment.scale(p, p.row_scales, "),
    ),
    "the last block of K has the scales before": (
        BLOCKS,
        "eight_bit.cuh",
        ("work.first_k_block + block + ahead, blocks++)",
         "work.first_k_block + block + (block + 2 < work.k_blocks), blocks++)"),
    ),
    "there is one buffer of scales": (
        BLOCKS,
        "eight_bit.cuh",
        ("number % 2", "number % 1"),
    ),
    "the next scales replace those that others still read": (
        BLOCKS,
        "eight_bit.cuh",
        (
            "                scales[0].arrive(ctx);\n                if (block + ahead < work.k_blocks)",
            "                if (block + ahead < work.k_blocks)",
        ),
        (
            "work.first_k_block + block + ahead, blocks++);\n",
            "work.first_k_block + block + ahead, blocks++);\n                scales[0].arrive(ctx);\n",
        ),
    ),
    "nobody waits for scales": (BLOCKS, "eight_bit.cuh", ("        copy_wait<0>();\n", "")),
    "blocks of columns are single ones": (
        replace(BLOCKS, scale_b="128x128"), "eight_bit.cuh", (": end - 1) >> scales.shift)", ": end - 1))"),
    ),
    "columns of two blocks have one scale": (WIDE, "eight_bit.cuh", (": 16 - column0 / 8 % 16;", ": BLOCK_N / 8;")),
    "scales of two blocks of K are one block late": (
        WIDE, "eight_bit.cuh", ("scales[i] = scales[i + 1];", "scales[i] = scales[ahead];"),
    ),
    "every tile begins with a block of columns": (WIDE, "eight_bit.cuh", ("16 - column0 / 8 % 16;", "16;")),
    "a stage is released before it is read": (
        BLOCKS,
        "eight_bit.cuh",
        ("            wgmma_wait<0>();\n", "            ctx.release(pipe.stage);\n            wgmma_wait<0>();\n"),
        ("            if (i + 1 == kNumFragments) ctx.release(pipe.stage);\n", ""),
    ),
    "CTAs that share K have the scales of their slice": (
        replace(BLOCKS, shape=Shape(64, 64, 3, consumers=1, cluster_k=4)),
        "eight_bit.cuh",
        ("at.column0 - rank_k(ctx.cta_rank) * OUT_N;", "at.column0;"),
    ),
    "partial sums of integers replace each other": (
        EightBitProduct(SMALL, 72, 136, 1040, dtype="int8", splits=3, out="int32", **_K_MAJOR),
        "epilogue.cuh",
        ("static_cast<int>(static_cast<u32>(v[r]) + words[r])", "static_cast<int>(words[r])"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_exact_products_detect(monkeypatch, tmp_path, name):
    asked, file, *changes = MUTATIONS[name]
    assert detected(Run(asked, mutated(monkeypatch, tmp_path, file, *changes)), 6)


def test_a_pass_begins_at_its_own_scales(monkeypatch):
    """Of a product in several K passes."""
    asked = next(x for x in EIGHT_BIT_PRODUCTS if x.passes.count > 2 and x.scale_b == "128x1")
    run = Run(asked)
    run.check()
    monkeypatch.setattr(
        "gemmhub_hopper.launches.staged.place_scales",
        lambda p, lowering, scales, first_block=0: place_scales(p, lowering, scales),
    )
    assert detected(run, 1)


# --- problems ---------------------------------------------------------------------------------------------------

ROWS, COLUMNS = Scale("m"), Scale("n")


def test_a_new_m_keeps_the_kernel():
    asked = replace(problem(64, 512, 1024, "float8_e4m3fn", "bfloat16", b="col"), operands={}).having(
        scale_a=Scale("m", 8, True, 1), scale_b=Scale("n blocks", 8, True, 1)
    )
    for name in ("64x64x12", "64x64x12t"):
        choice = named(lower.lowerings(asked), name)
        other = choice.with_rows(200)
        assert other.lowering == named(lower.lowerings(asked.with_rows(200)), name).lowering
        assert other.variant is choice.variant


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (replace(problem(64, 64, 64, "int8", "int32"), b=operand("float8_e4m3fn", 64, 64)), "int8 by float8_e4m3fn"),
        (problem(64, 64, 64, "int8", "int32", bias=bias("int32")), "an int32 result has no epilogue"),
        (problem(64, 64, 64, "int8", "int32", scale_a=ROWS), "an int32 result has no epilogue"),
        (problem(64, 64, 256, "int8", "float32", scale_a=Scale("m", 2, True, 1)), "scales for blocks of k"),
        (problem(64, 64, 64, "bfloat16", scale_b=COLUMNS), "bfloat16 by bfloat16 has no quantization scales"),
        (problem(64, 64, 64, "float8_e4m3fn", "float64"), "a result of float64"),
        (
            problem(64, 64, 64, "float8_e4m3fn", "float32", (2, 3), scale_a=Scale("m", 1, batch_strides=(0, 64))),
            "the batch of scale_a is not evenly spaced",
        ),
    ],
)  # fmt: skip
def test_refusals(asked, reason):
    refusal = lower.lowerings(asked)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason


def test_copies_are_listed():
    lowerings = lower.lowerings(problem(64, 64, 65, "float8_e4m3fn", "float32"))
    assert {x.name: x.why for x in lowerings[0].copied} == {
        "a": "copied: its leading dimension is 65 elements (65 bytes), and TMA takes multiples of 16",
        "b": "copied: tensor cores take only 8-bit operands that are contiguous along K",
    }


NAMES = ("64x64x12", "64x64x12t", "64x64x12/4", "64x64x12k4")


def test_orders():
    orders = {
        dtype: {
            x.order for x in (named(lower.lowerings(problem(64, 64, 4096, dtype, "float32")), name) for name in NAMES)
        }
        for dtype in ("float8_e4m3fn", "int8")
    }
    assert orders == {"float8_e4m3fn": {"wgmma.k32.p128", "wgmma.k32.p128/s4"}, "int8": {"exact"}}
