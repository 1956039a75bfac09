"""float32 whose b is split in shared memory: planes, marks, accuracy, and mutations that the tests detect."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import mutated
from gemmhub_hopper.candidates.candidate import Choice, named, runnable
from gemmhub_hopper.cost import choose
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants import tensor_map
from gemmhub_hopper.variants.config import Form, Shape, Variant
from gemmhub_hopper.variants.shapes import SMALL_SHAPES, shapes
from gemmhub_nvidia.scratch import COUNTERS
from problems import H200, LIMIT, problem
from products import Product
from runs import Run
from test_float32 import data, errors, multiply, ratio, sgemm
from test_kernel import notices
from test_registers import (
    at_k_major,
    at_mn_major,
    check_marks,
    check_special_values,
    float32,
    small_beside_large,
    wavefronts,
)

pytestmark = pytest.mark.emulator

S = {"registers": True, "split_planes_b": True}
SMALL = Shape(64, 64, 2, consumers=1)
SHARED_K = Shape(64, 32, 3, consumers=1, cluster_k=2)
TWO = Shape(128, 32, 2)


# --- which problems ---------------------------------------------------------------------------------------------


def lowered(asked):
    """Return the lowerings with a split b, by whether they are swapped."""
    return {lowering.swapped: lowering for lowering in lower.lowerings(asked) if lowering.form.split_planes_b}


@pytest.mark.parametrize("a", ["row", "col"])
@pytest.mark.parametrize("b", ["row", "col"])
def test_lowerings(a, b):
    """Operands of either order need no copies."""
    found = lowered(float32(64, 72, 100, a=a, b=b))
    assert (found[False].form.mn_major_a, found[False].form.mn_major_b) == (a == "col", b == "row")
    assert (found[True].form.mn_major_a, found[True].form.mn_major_b) == (b == "row", a == "col")
    for lowering in found.values():
        assert lowering.copied == ()
        assert lowering.nbytes == 4 * (64 * 100 + 72 * 100 + 64 * 72)
        passes = runnable(Choice(lowering, SMALL, 1), 0)
        assert passes.nbytes == 0


def test_others_have_none():
    """What TMA does not take is split by the pre-pass; tf32 and 16 bits are not split."""
    for asked in (
        problem(64, 72, 99), float32(64, 72, 0), float32(64, 71, 100), float32(63, 72, 99),
        float32(64, 72, 100, "tf32"),
    ):  # fmt: skip
        assert lowered(asked) == {}


def test_a_packed_b():
    """Its plain copy is read."""
    found = lowered(replace(float32(8, 72, 104), packed_by="hopper"))
    assert set(found) == {False, True}
    assert found[False].b.direct.count == 1
    assert found[False].b.direct.ld == 416


def test_shapes():
    form = Form(True, True, "split", "float32", registers_a=True, split_planes_b=True)
    assert shapes(form) == SMALL_SHAPES
    assert len({shape.name for shape in SMALL_SHAPES}) == len(SMALL_SHAPES)
    for mn_major_b in (False, True):
        assert all(Variant(shape, replace(form, mn_major_b=mn_major_b)).refusal is None for shape in SMALL_SHAPES)
    for changed in (
        Variant(SMALL, replace(form, registers_a=False)), Variant(SMALL, replace(form, input="tf32")),
        Variant(Shape(64, 64, 2, consumers=1, cluster_m=2), form),
    ):  # fmt: skip
        assert "b is split in shared memory only where" in changed.refusal


def test_maps():
    """float32 as it is, in boxes of 128 bytes; also where the tile has fewer columns."""
    lowering = lowered(float32(64, 72, 100))[False]
    made = tensor_map.operand(lowering.b.direct, lowering.form, True, 16, 1, True)
    assert (made.type, made.box, made.swizzle) == (7, (32, 32, 1), 3)
    made = tensor_map.operand(lowering.a.direct, lowering.form, False, 64, 1, True)
    assert (made.type, made.box, made.swizzle) == (7, (32, 64, 1), 3)


def test_candidates():
    """Small products have such candidates, and their names are found again."""
    found = {x.choice.name for x in choose.ranked(lower.lowerings(float32(64, 432, 1024)), H200, LIMIT)}
    assert {"64x32x8k4rs", "64x16x8k4rst", "64x48x8rs/16"} <= found
    for name in ("64x32x8k4rs", "64x16x8k4rst", "64x48x8rs/16"):
        assert named(lower.lowerings(float32(64, 432, 1024)), name).name == name


def test_split_k_of_clusters_that_share_k():
    """Few tiles and a long K use as many CTAs as there are SMs, each with at least two blocks of K."""
    lowerings = lower.lowerings(float32(64, 64, 16384))
    found = [x.choice for x in choose.ranked(lowerings, H200, LIMIT) if x.choice.lowering.form.split_planes_b]
    assert "64x48x8k8rs/15" in {x.name for x in found}
    for choice in found:
        assert choice.splits * choice.shape.cluster_k * 2 <= choice.lowering.k_blocks
        if choice.splits > 1:
            passes = runnable(choice, LIMIT)
            assert passes.nbytes == COUNTERS + choice.partial_bytes
    lowerings = lower.lowerings(float32(64, 64, 7168))
    refused = runnable(named(lowerings, "64x48x8k8rs/30"), LIMIT)
    assert refused == "a K pass has 224 blocks of K: fewer than the 240 CTAs for them"


# --- shared memory ----------------------------------------------------------------------------------------------


def at_plane(row, k):
    """Of an element of 16 bits, as test_addresses.py finds wgmma to read K-major tiles of 64 bytes."""
    offset = 64 * row + 2 * k
    return offset ^ (offset >> 7 & 3) << 4


@pytest.mark.parametrize("n", [16, 32, 48, 64, 96])
def test_bank_conflicts(n):
    """A K-major b has no bank conflicts; of others, loads have none, and stores take twice the passes."""
    for warp in range(4):
        task = 32 * warp + np.arange(32)
        row, four = task // 8, task % 8
        assert wavefronts(at_k_major(row, 4 * four), 16) == 4
        assert wavefronts(at_plane(row, 4 * four), 8) == 2
        row, four = task % n, task // n
        if four.max() < 8:
            assert wavefronts(at_mn_major(row, 4 * four), 4) <= 2
            assert wavefronts(at_plane(row, 4 * four), 8) <= 4


# --- float32's accuracy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "m", "n", "k"),
    [("normal", 64, 64, 512), ("wide", 64, 64, 512), ("cancelling", 64, 64, 512), ("worst", 64, 64, 200)],
)
def test_errors_compared_with_an_sgemm(kind, m, n, k):
    a, b = data(kind, m, n, k)
    for changes in ({"shape": SMALL}, {"shape": SMALL, "b": "col"}, {"shape": SHARED_K}):
        result = multiply(a, b, **changes, **S)
        assert errors(result, a, b) <= 1.5 * errors(sgemm(a, b), a, b) + 2.0**-24
        assert ratio(result, a, b) <= 0.6


@pytest.mark.parametrize("k", [4, 8])
def test_short_sums(k):
    for kind in ("normal", "worst"):
        a, b = data(kind, 64, 64, k)
        assert ratio(multiply(a, b, shape=SMALL, **S), a, b) <= 1


@pytest.mark.parametrize("k", [1, 3])
def test_the_shortest_sums(k):
    """All special values are recomputed."""
    a, b = data("worst", 64, 64, k)
    assert ratio(multiply(a, b, shape=SMALL, a="col", **S), a, b) <= 1


@pytest.mark.parametrize("changes", [{}, {"swapped": True}, {"shape": SHARED_K}, {"shape": TWO, "b": "col"}], ids=str)
def test_infinities_nans_and_overflow(changes):
    check_special_values(**{"shape": SMALL, **changes}, **S)


@pytest.mark.parametrize("shape", [SMALL, SHARED_K, TWO], ids=lambda shape: shape.name)
def test_the_least_and_the_largest_numbers(shape):
    """Marks of either operand are found."""
    for x, y in small_beside_large():
        assert ratio(multiply(x, y, shape=shape, **S), x, y) <= 1
        assert ratio(multiply(y.T, x.T, shape=shape, a="col", **S), y.T, x.T) <= 1


@pytest.mark.parametrize("shape", [SMALL, SHARED_K], ids=lambda shape: shape.name)
def test_marks_of_splits(shape):
    check_marks(Product(shape, 8, 64, 256, dtype="float32", splits=2, **S))


# fmt: off
LOST = {
    "marks of one lane only": (SMALL, 1, "b_planes.cuh", (
        ("return warp_or(a.seen.marks() | b.seen.marks() << 2);", "return a.seen.marks() | b.seen.marks() << 2;"),)),
    "marks are not told": (SMALL, 1, "emulation.cuh", (
        ("mark_address(ctx.smem, 0, warp), marks)", "mark_address(ctx.smem, 0, warp), 0)"),)),
    "marks are not told to other blocks": (SHARED_K, 1, "cluster.cuh", (
        ("{__uint_as_float(emulation.marks), 0.0f,", "{0.0f, 0.0f,"),)),
    "marks of one block only": (SHARED_K, 1, "b_planes.cuh", (
        ("first < kClusterK * 4 * kWarpgroupsPerTile", "first < 4 * kWarpgroupsPerTile"),
        ("if (i < kClusterK * 4 * kWarpgroupsPerTile)", "if (i < 4 * kWarpgroupsPerTile)"))),
    "the least is not noted": (SMALL, 1, "split_planes.cuh", (
        ("if (twice - 1 < smallest) smallest = twice - 1;", ""),)),
    "b's marks are not handed on": (SMALL, 2, "emulation.cuh", (
        ("mark(p.b_marks, marks >> 2), mark(words.b, marks >> 2);", ";"),)),
    "a's marks are not handed on": (SMALL, 2, "emulation.cuh", (
        ("mark(p.a_marks, marks & 3), mark(words.a, marks & 3);", ";"),)),
}
"""Mutations: (shape, splits, file, changes)."""
# fmt: on


@pytest.mark.parametrize("mutation", LOST, ids=lambda name: name.replace(" ", "-"))
def test_lost_bits_would_be_noticed(mutation, monkeypatch, tmp_path):
    """A plane of one element of a, in the second half of K, loses bits that count against b's."""
    shape, splits, file, changes = LOST[mutation]
    home = mutated(monkeypatch, tmp_path, file, *changes)
    x, y = np.zeros((8, 128), np.float32), np.full((128, 64), 2.0**100 * 1.1, np.float32)
    x[:, 69] = 2.0**-140 * 1.37
    if splits > 1:  # the first part finds neither what is lossy nor what is large
        y[:64] *= 2.0**-100
    assert max(ratio(multiply(x, y, home, shape=shape, splits=splits, **S), x, y) for _ in range(8)) > 1


def test_nothing_is_recomputed_without_need(monkeypatch, tmp_path):
    """Without this, recomputing could hide wrong planes."""
    home = mutated(monkeypatch, tmp_path, "repair.cuh", ("sum = exact.sum,", "sum = 77 + exact.sum,"))
    for shape in (SMALL, SHARED_K, TWO):
        product = Product(shape, 136, 140, 264, dtype="float32", **S)
        run = Run(product, home)
        assert not product.wrong(run(), run.exact).any()


# --- mistakes ---------------------------------------------------------------------------------------------------

# fmt: off
MUTATIONS = {
    "planes are read before all are written": ("b_planes.cuh", (
        ("async_fence();\n        named_sync(TILE_SYNC, 128 * kWarpgroupsPerTile);", "async_fence();"),)),
    "wgmma is not told of planes": ("b_planes.cuh", (
        ("async_fence();\n        named_sync(TILE_SYNC", "named_sync(TILE_SYNC"),)),
    "one set of planes": ("b_planes.cuh", (
        ("SMEM_PLANES_B_OFFSET + set * SMEM_PLANES_B_BYTES", "SMEM_PLANES_B_OFFSET"),)),
    "a stage is released before its b is split": ("emulation.cuh", (
        ("splitter.split(next + SMEM_B_OFFSET, planes_address(ctx.smem, (block + 1) % 2));",
         "ctx.release(pipe.stage), splitter.split(next + SMEM_B_OFFSET, planes_address(ctx.smem, (block + 1) % 2));"),
        ("if constexpr (kSplitPlanesB) ctx.release(now);", "if (block == 0) ctx.release(now);"))),
    "a plane of the wrong rows": ("b_planes.cuh", (
        ("swizzled(row * BLOCK_K_BYTES", "swizzled((row ^ 1) * BLOCK_K_BYTES"),)),
    "another swizzle": ("b_planes.cuh", (("four * 8, BLOCK_K_BYTES)", "four * 8, 128)"),)),
    "b's tile is taken for three boxes": ("tma_load.cuh", (("if (plane < kNumPlanesB)", ""),)),
}
# fmt: on


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_the_emulator_notices(mutation, monkeypatch, tmp_path):
    file, changes = MUTATIONS[mutation]
    notices(Product(SMALL, 136, 136, 264, dtype="float32", **S), file, changes, monkeypatch, tmp_path)


def test_what_is_left_of_a_plane_counts(monkeypatch, tmp_path):
    """The integers of the others are whole in the first plane."""
    change = "take_plane(high, x[2], x[3]);", ""
    home = mutated(monkeypatch, tmp_path, "b_planes.cuh", change)
    a, b = data("normal", 64, 64, 64)
    assert ratio(multiply(a, b, home, shape=SMALL, **S), a, b) > 1


@pytest.mark.parametrize(
    "product",
    [
        Product(SMALL, 200, 136, 264, dtype="float32", **S),
        Product(SMALL, 200, 136, 296, a="col", b="col", dtype="float32", swapped=True, **S),
        Product(TWO, 264, 136, 264, dtype="float32", **S),
        Product(Shape(64, 16, 2, consumers=1, cluster_k=4), 72, 36, 456, dtype="float32", **S),
        Product(Shape(64, 16, 2, consumers=1, cluster_k=2), 72, 36, 456, dtype="float32", splits=3, **S),
    ],
    ids=str,
)
def test_interleavings(product):
    """A ring of two stages, several work tiles of a CTA."""
    run = Run(product)
    for _ in range(3):
        run.check()
