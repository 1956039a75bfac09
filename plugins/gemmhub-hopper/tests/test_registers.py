"""The kernel's a through registers: fragments, choice, float32's accuracy, and mutations that the tests detect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.cost import choose
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import tensor_map
from gemmhub_hopper.variants.config import Form, Shape, Variant
from gemmhub_hopper.variants.shapes import REGISTER_SHAPES, SHAPES, shapes
from gemmhub_nvidia.scratch import COUNTERS
from problems import H200, LIMIT, problem
from products import SPLIT, Product
from runs import Run
from test_addresses import tma_box
from test_float32 import data, errors, multiply, ratio, sgemm, specials
from test_kernel import notices

pytestmark = pytest.mark.compiler

R = {"registers": True}


# --- fragments: models apart from the kernel's source -----------------------------------------------------------


def swizzled(offset):
    return offset ^ (offset >> 7 & 7) << 4


def at_k_major(row, k):
    return swizzled(128 * row + 4 * k)


def at_mn_major(row, k):
    return swizzled(row // 32 * 4096 + 128 * k + 4 * (row % 32))


def tiles():
    """For 64 rows x 32 along K: (memory after TMA wrote its boxes, the place of an element)."""
    values = np.arange(64 * 32, dtype=np.uint32).reshape(64, 32)
    k_passes = [tma_box(np.ascontiguousarray(values[32 * s : 32 * s + 32].T), 128) for s in range(2)]
    return values, ((tma_box(values, 128), at_k_major), (np.concatenate(k_passes), at_mn_major))


def test_elements_of_a_tile():
    values, both = tiles()
    for memory, place in both:
        got = [[memory[place(row, k) :][:4].view(np.uint32)[0] for k in range(32)] for row in range(64)]
        assert (np.array(got) == values).all()


def wavefronts(addresses, width):
    """Passes that shared memory takes for a warp's loads of ``width`` bytes: 128 bytes of distinct banks each."""
    passes = 0
    for lanes in np.array_split(addresses, width // 4):
        banks = [{} for _ in range(32)]
        for address in lanes:
            for word in range(address // 4, (address + width) // 4):
                banks[word % 32][word] = 1
        passes += max(map(len, banks))
    return passes


def test_bank_conflicts():
    """Loads of one element have no bank conflicts; loads of pairs have two-way conflicts."""
    lanes = np.arange(32)
    g, t = lanes // 4, lanes % 4
    for row in (0, 8, 16, 56):
        for step in range(4):
            later = lanes >= 16
            k = 8 * step + t + 4 * later
            assert wavefronts(at_mn_major(row + g, k), 4) == 1
            assert wavefronts(at_mn_major(row + g, k ^ 4), 4) == 1
            assert wavefronts(at_mn_major(row + g, 8 * step + t), 4) == 2  # which is why
        for k in (0, 1, 8, 16, 25):
            assert wavefronts(at_mn_major(row + g, 2 * t + k), 4) == 1
        for k in (0, 8, 16, 24):
            assert wavefronts(at_k_major(row + g, 2 * t + k), 8) == 4


# --- which problems ---------------------------------------------------------------------------------------------


def lowerings(asked):
    """Return the lowerings through registers, by whether they are swapped."""
    others = [x for x in lower.lowerings(asked)[2:] if x.form.input != "f16x3"]
    return {lowering.swapped: lowering for lowering in others if not lowering.form.split_planes_b}


def float32(m, n, k, precision="ieee", **given):
    return replace(problem(m, n, k, "float32", **given), precision=precision)


@pytest.mark.parametrize(("a", "b", "swapped"), [("row", "row", [True]), ("row", "col", []), ("col", "col", [False])])
def test_tf32(a, b, swapped):
    """An operand that is contiguous along M or N goes through registers; the other one need not."""
    found = lowerings(float32(64, 72, 100, "tf32", a=a, b=b))
    assert list(found) == swapped
    for lowering in found.values():
        assert (lowering.form.mn_major_a, lowering.form.mn_major_b, lowering.form.registers_a) == (True, False, True)
        assert not lowering.copied
        assert (lowering.a.direct.inner, lowering.a.direct.outer) == ((72 if lowering.swapped else 64), 100)
        assert lowering.nbytes == lower.lowerings(float32(64, 72, 100, "tf32", a=a, b=b))[0].nbytes


def test_tf32_of_two_such_operands():
    """One of two such operands is copied."""
    found = lowerings(float32(64, 72, 100, "tf32", a="col"))
    assert {swapped: [x.name for x in lowering.copied] for swapped, lowering in found.items()} == {
        False: ["b"],
        True: ["a"],
    }


@pytest.mark.parametrize("a", ["row", "col"])
@pytest.mark.parametrize("b", ["row", "col"])
def test_float32(a, b):
    """Either operand, in either order; the other one is split by the pre-pass."""
    found = lowerings(float32(64, 72, 100, a=a, b=b))
    assert (found[False].form.mn_major_a, found[True].form.mn_major_a) == (a == "col", b == "row")
    for swapped, lowering in found.items():
        assert lowering.form.registers_a
        assert lowering.copied == (lowering.b,)
        assert lowering.b.name == ("a" if swapped else "b")
        assert lowering.a.direct.count == 1
        assert lowering.nbytes == 4 * lowering.m * 100 + 6 * lowering.n * 100 + 4 * 64 * 72


def test_others_go_through_shared_memory():
    """16-bit operands that TMA takes; others that it does not; products without k."""
    for asked in (
        problem(64, 72, 104), float32(64, 72, 0), float32(63, 71, 99), float32(63, 71, 99, a="col"),
        float32(63, 62, 99, "tf32"),
    ):  # fmt: skip
        assert lowerings(asked) == {}
    assert list(lowerings(float32(64, 71, 100))) == [False]
    asked = float32(64, 72, 100)
    assert list(lowerings(replace(asked, a=replace(asked.a, alignment=4)))) == [True]


def test_a_packed_b():
    """Its plain copy is read: 4 bytes an element, not 6."""
    found = lowerings(replace(float32(8, 72, 101), packed_by="hopper"))
    assert list(found) == [True]
    assert found[True].a.packed
    assert not found[True].form.mn_major_a
    assert (found[True].a.direct.count, found[True].a.direct.ld) == (1, 416)
    assert lowerings(replace(float32(8, 72, 101, "tf32"), packed_by="hopper")) == {}


def test_maps():
    """float32 as it is where it is split later; rounded to tf32 by TMA where not. Boxes of 128 bytes."""
    lowering = lowerings(float32(64, 72, 100))[True]
    made = tensor_map.operand(lowering.a.direct, lowering.form, True, 128, 2, True)
    assert (made.type, made.box, made.swizzle) == (7, (32, 16, 1), 3)
    made = tensor_map.operand(lowering.a.direct, lowering.form, False, 128, 2, True)
    assert (made.type, made.box, made.swizzle) == (7, (32, 64, 1), 3)
    lowering = lowerings(float32(64, 72, 100, "tf32"))[True]
    made = tensor_map.operand(lowering.a.direct, lowering.form, True, 128, 1, True)
    assert (made.type, made.box, made.swizzle) == (11, (32, 32, 1), 3)


@pytest.mark.parametrize("kind", ["tf32", "split"])
def test_shapes(kind):
    form = Form(True, False, kind, "float32", registers_a=True)
    assert shapes(form) == (REGISTER_SHAPES if kind == "split" else SHAPES)
    assert len({shape.name for shape in REGISTER_SHAPES}) == len(REGISTER_SHAPES)
    for shape in shapes(form):
        for mn_major_b in (False, True) if kind == "split" else (False,):
            variant = Variant(shape, Form(True, mn_major_b, kind, "float32", registers_a=True))
            few = "no registers for elements of a"
            assert variant.refusal is None or (kind == "tf32" and few in variant.refusal)


def test_what_cannot_be():
    form = Form(True, False, "split", "float32", registers_a=True)
    assert "elements of a" in Variant(Shape(128, 128, 3), form).refusal
    assert "elements of a" in Variant(Shape(256, 192, 3), replace(form, input="tf32")).refusal
    assert "contiguous along K" in Variant(Shape(128, 128, 3), replace(form, input="bfloat16")).refusal
    tf32 = replace(form, input="tf32", mn_major_a=False)  # rows that TMA takes go through shared memory
    assert "shifted rows" in Variant(Shape(128, 128, 3), tf32).refusal


def names(asked):
    return [x.choice.name for x in choose.ranked(lower.lowerings(asked), H200, LIMIT)]


def test_candidates():
    """Both kinds, with names of their own; the narrow side is the kernel's n."""
    for asked in (float32(4096, 4096, 4096, "tf32"), float32(16, 8192, 8192), float32(8192, 64, 4096)):
        found = names(asked)
        assert len(set(found)) == len(found)
        assert "r" in found[0]
        assert any("r" not in name for name in found)
    assert "rt" in names(float32(16, 8192, 8192))[0]
    assert "rt" not in names(float32(8192, 16, 8192))[0]


def test_a_candidate_by_name():
    backend = Home().backend()
    for asked, name, words in (
        (
            float32(512, 512, 512, "tf32"),
            "128x96x6rt",
            "6 stages, operands swapped, b through registers",
        ),
        (float32(512, 64, 512), "128x64x7r/2", "a through registers, float32 split"),
    ):
        assert words in backend.prepare(asked, name, LIMIT).description
    for name in ("128x96x6r", "128x96x7rt"):
        assert "no kernel called" in backend.prepare(float32(512, 512, 512, "tf32"), name, LIMIT).reason


# --- float32's accuracy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "m", "n", "k"),
    [
        ("normal", 64, 64, 512),
        ("positive", 64, 64, 512),
        ("wide", 64, 64, 512),
        ("cancelling", 64, 64, 512),
        ("worst", 64, 64, 200),
        ("positive", 64, 8, 4096),
    ],
)
def test_errors_compared_with_an_sgemm(kind, m, n, k):
    a, b = data(kind, m, n, k)
    for changes in ({}, {"a": "col"}):
        result = multiply(a, b, **changes, **R)
        assert errors(result, a, b) <= 1.5 * errors(sgemm(a, b), a, b) + 2.0**-24
        assert ratio(result, a, b) <= 0.6


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 17])
def test_short_sums(k):
    for kind in ("normal", "worst"):
        a, b = data(kind, 64, 64, k)
        assert ratio(multiply(a, b, a="col", **R), a, b) <= 1


def check_special_values(**changes):
    """Infinities, NaNs and overflow."""
    a, b = (np.ascontiguousarray(x) for x in specials())
    a, b = np.ascontiguousarray(a[:, :160]), np.ascontiguousarray(b[:160, :132])
    result = multiply(a, b, **changes)
    assert ratio(result, a, b) <= 1
    assert np.isnan(result).any()
    assert np.isposinf(result).any()
    assert np.isneginf(result).any()
    assert np.isfinite(result[50:, 80:]).all()


@pytest.mark.parametrize(
    "changes", [{}, {"swapped": True}, {"limit": COUNTERS + 2**17}, {"splits": 2}, {"b": "col"}], ids=str
)
def test_infinities_nans_and_overflow(changes):
    check_special_values(**changes, **R)


def test_what_rounds_to_infinity():
    """Elements of a that bfloat16 has no number for."""
    a, b = data("normal", 64, 64, 64)
    a[5], b[:, 7] = np.float32(3.4028235e38), 1e-3
    assert ratio(multiply(a, b, **R), a, b) <= 1


def small_beside_large():
    """Lossy elements of a meet large ones of b: all over, or in one row."""
    rng = np.random.default_rng(0)
    a, b = data("normal", 152, 140, 72)
    tiny = np.ldexp(1 + rng.random(a.shape), rng.integers(-149, -105, a.shape)).astype(np.float32)
    for large, rows in ((200.0, slice(None)), (2.0**100, slice(None)), (2.0**100, slice(30, 31))):
        x = a.copy()
        x[rows] = tiny[rows]
        yield x, (b * large).astype(np.float32)


@pytest.mark.parametrize("splits", [1, 2])
def test_the_least_and_the_largest_numbers(splits):
    """Marks of either operand are found."""
    for x, y in small_beside_large():
        assert ratio(multiply(x, y, splits=splits, **R), x, y) <= 1
        assert ratio(multiply(y.T, x.T, a="col", splits=splits, **R), y.T, x.T) <= 1
        assert ratio(multiply(y.T, x.T, swapped=True, splits=splits, **R), y.T, x.T) <= 1


def check_marks(product, **cuda):
    """What one part of a split k has found the others must know, and it is left clear: also in a slow call's wake."""
    a, b = data("normal", product.m, product.n, product.k)
    x, y = np.full_like(a, 1e-43), b * np.float32(2.0**120)
    x[:, 64:] = 0  # a part without marks
    home = Home(**cuda)
    run = Run(product, home)
    for left, right in ((x, y), (a, b), (x, b), (x, y)):
        run.give(left, right)
        for _ in range(3):
            assert ratio(run(), left, right) <= 1
        assert home.counters_are_clear()


def test_marks_are_left_clear():
    check_marks(Product(SPLIT, 8, 64, 128, dtype="float32", splits=2, **R))


# fmt: off
LOST = {
    "marks are not kept": ("fragments.cuh", ("if (watched) {", "if (false) {"), 1),
    "marks of one lane only": ("emulation.cuh", ("warp_or(a.marks());", "a.marks();"), 1),
    "marks are not handed on": ("emulation.cuh", ("mark(p.a_marks, marks & 3), mark(words.a, marks & 3);", ";"), 2),
}
# fmt: on


@pytest.mark.parametrize("mutation", LOST, ids=lambda name: name.replace(" ", "-"))
def test_lost_bits_would_be_noticed(mutation, monkeypatch, tmp_path):
    file, change, splits = LOST[mutation]
    x, y = np.zeros((8, 128), np.float32), np.full((128, 64), 2.0**100 * 1.1, np.float32)
    x[:, 5] = 2.0**-140 * 1.37
    home = mutated(monkeypatch, tmp_path, file, change)
    assert max(ratio(multiply(x, y, home, splits=splits, **R), x, y) for _ in range(8)) > 1


# --- mistakes ---------------------------------------------------------------------------------------------------

TF32 = Product(Shape(64, 64, 2, consumers=1), 136, 136, 264, dtype="tf32", swapped=True, **R)
PLANES = Product(Shape(64, 64, 2, consumers=1), 136, 136, 264, dtype="float32", **R)
# fmt: off
MUTATIONS = {
    "fragments change before they are read": (TF32, "mainloop.cuh", (
        ("wgmma_wait<1>();\n            if (half == 0 && block > 0) ctx.release",
         "if (half == 0 && block > 0) ctx.release"),)),
    "both halves have the same registers": (TF32, "mainloop.cuh", (
        ("wgmma_wait<1>();\n            if (half == 0 && block > 0) ctx.release",
         "if (half == 0) wgmma_wait<1>();\n            if (half == 0 && block > 0) ctx.release"),
        ("a[half][step][i]", "a[0][step][i]"))),
    "a stage is released while its second half is read": (TF32, "mainloop.cuh", (
        ("if (half == 0 && block > 0) ctx.release(before);", "if (half == 1) ctx.release(pipe.stage);"),
        ("    pin_all(acc);\n    ctx.release(before);", "    pin_all(acc);"))),
    "lanes do not change places back": (TF32, "fragments.cuh", (("later ? x[i ^ 2] : x[i]", "x[i]"),)),
    "another step": (TF32, "fragments.cuh", (("step * 1024", "step * 512"),)),
    "the boxes of a are as wide as those of 16-bit elements": (TF32, "tma_load.cuh", (
        ("wide = MN_ROW_BYTES / size", "wide = 64"),)),
    "products are added before they are there": (PLANES, "emulation.cuh", (
        ("wgmma_wait<1>();\n        if constexpr (kSplitPlanesB)", "if constexpr (kSplitPlanesB)"),)),
    "planes change before they are read": (PLANES, "emulation.cuh", (
        ("load_split(a[1], loader, stage, ctx.tile_part(), 1);\n        multiply_planes(part[1], a[1],",
         "load_split(a[0], loader, stage, ctx.tile_part(), 1);\n        multiply_planes(part[1], a[0],"),)),
    "a stage is released before its products are there": (PLANES, "emulation.cuh", (
        ("if constexpr (kSplitPlanesB) ctx.release(now);", "ctx.release(now);"),
        ("if constexpr (!kSplitPlanesB) ctx.release(now);", ""))),
    "the next stage is not waited for": (PLANES, "emulation.cuh", (
        ("pipe.stage);\n            barrier_wait(ctx.full_barrier(pipe.stage), pipe.parity);", "pipe.stage);"),)),
    "a's planes are taken for three boxes": (PLANES, "tma_load.cuh", (("if (plane < kNumPlanesA)", ""),)),
    "a bank conflict's cure where there is none": (PLANES, "fragments.cuh", (("^ (k * 4)", "+ (k * 4)"),)),
}
# fmt: on


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_the_emulator_notices(mutation, monkeypatch, tmp_path):
    product, file, changes = MUTATIONS[mutation]
    notices(product, file, changes, monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "product",
    [
        TF32,
        PLANES,
        replace(PLANES, a="col"),
        Product(Shape(128, 64, 2, cluster_m=2), 136, 264, 264, dtype="tf32", swapped=True, **R),
        Product(Shape(128, 64, 2, cluster_n=2), 136, 264, 264, dtype="float32", swapped=True, splits=2, **R),
        Product(Shape(64, 64, 2, pingpong=True), 200, 136, 392, dtype="tf32", swapped=True, **R),
    ],
    ids=str,
)
def test_interleavings(product):
    """A ring of two stages, several work tiles of a CTA."""
    run = Run(product)
    for _ in range(3):
        run.check()
