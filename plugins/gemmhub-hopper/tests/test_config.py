"""Variants of the kernel: which there can be, and their numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemmhub_hopper.candidates.candidate import Choice, named, runnable
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Form, Shape, Variant
from gemmhub_hopper.variants.shapes import REGISTER_SHAPES, SHAPES, SMALL_SHAPES, SPLIT_SHAPES, shapes
from problems import problem


def test_every_shape_is_reachable():
    """A plain product is run by each shape, by its name; and few shapes are kept for 16 bits and tf32."""
    assert len(SHAPES) <= 30
    reached = set()
    for dtype, precision in (("bfloat16", "ieee"), ("float32", "tf32"), ("float32", "ieee")):
        for lowering in lower.lowerings(problem(2048, 2048, 2048, dtype, precision=precision)):
            choices = [Choice(lowering, shape, 1) for shape in shapes(lowering.form)]
            reached |= {(shapes(lowering.form), x.shape) for x in choices if not isinstance(runnable(x, 2**30), str)}
            assert [named((lowering,), x.name) for x in choices] == choices
    for every in (SHAPES, SPLIT_SHAPES, REGISTER_SHAPES, SMALL_SHAPES):
        assert {(every, shape) for shape in every} <= reached


@pytest.mark.parametrize("output", ["bfloat16", "float32"])
def test_all_shapes_can_be_compiled_with_every_major(output):
    for shape in SHAPES:
        for mn_major_a in (False, True):
            for mn_major_b in (False, True):
                for transposed in (False, True):
                    variant = Variant(shape, Form(mn_major_a, mn_major_b, "bfloat16", output, transposed))
                    assert variant.refusal is None
                    assert variant.shared_bytes <= 232448
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)


def test_all_shapes_of_planes_too():
    for shape in SPLIT_SHAPES:
        for mn in (False, True):
            for output in ("float32", "bfloat16"):
                for transposed in (False, True):
                    variant = Variant(shape, Form(mn, mn, "split", output, transposed))
                    assert variant.refusal is None
                    assert variant.shared_bytes <= 232448
    assert len({shape.name for shape in SPLIT_SHAPES}) == len(SPLIT_SHAPES)


@pytest.mark.parametrize(
    ("shape", "changes", "why"),
    [
        (Shape(64, 64, 4), {}, "multiples of 64 for each of 2"),
        (Shape(128, 264, 2), {}, "264 columns"),
        (Shape(128, 8, 4), {}, "8 columns"),
        (Shape(64, 72, 4, 1), {}, "72 columns: allowed are multiples of 16 from 16 to 256"),
        (Shape(256, 256, 2), {}, "accumulators"),
        (Shape(256, 192, 3), {"bias": "m"}, "the plain epilogue only"),
        (Shape(128, 128, 1), {}, "at least 2"),
        (Shape(128, 128, 6, consumers=1, pingpong=True), {}, "ping-pong with 1 consumer warpgroups: it takes 2"),
        (Shape(32, 128, 6, pingpong=True), {}, "multiples of 64 for each of 1"),
        (Shape(128, 256, 4, pingpong=True), {}, "256 accumulators"),
        (Shape(128, 192, 5, pingpong=True), {"bias": "n"}, "the plain epilogue only"),
        (Shape(64, 128, 4, pingpong=True), {"input": "split", "output": "float32"}, "excludes split operands"),
        (Shape(128, 256, 5), {}, "bytes of shared memory"),
        (Shape(128, 192, 4, cluster_m=6), {}, "6 CTAs that multicast"),
        (Shape(192, 144, 4, consumers=3), {}, "3 consumer warpgroups"),
        (Shape(128, 128, 4, cluster_k=3), {}, "3 that share K: allowed are 1 or 2 warpgroups and 1, 2, 4 or 8 CTAs"),
        (Shape(128, 128, 4, cluster_m=4, cluster_k=4), {}, "a cluster of 16 CTAs: at most 8"),
        (Shape(128, 128, 6, pingpong=True, cluster_k=2), {}, "exclude ping-pong"),
        (Shape(64, 64, 6, 1, cluster_k=2), {"input": "split", "output": "float32"}, "that are split beforehand"),
        (Shape(128, 256, 4, cluster_k=2), {}, "those of the CTAs that share K"),
        (Shape(128, 192, 2, cluster_k=4), {}, "do not fit into the ring"),
        (Shape(128, 128, 4), {"input": "tf32", "mn_major_b": True}, "tf32"),
        (
            Shape(128, 128, 6),
            {"input": "e4m3.e4m3", "mn_major_b": True},
            "8-bit operands from shared memory only where",
        ),
        (Shape(64, 128, 4, pingpong=True), {"input": "e5m2.e4m3"}, "excludes 8-bit floats"),
        (Shape(128, 256, 4), {"input": "e4m3.e4m3"}, "128 accumulators"),
        (Shape(128, 128, 6), {"input": "s8.s8", "scales": "blocks"}, "only sums of 8-bit floats are scaled by blocks"),
        (Shape(128, 128, 6), {"input": "s8.s8", "output": "int32", "bias": "n"}, "without an epilogue"),
        (Shape(256, 128, 4), {"input": "s8.s8", "bias": "n"}, "128 accumulators of integers"),
        (Shape(128, 128, 6), {"output": "int32"}, "int32 results are the sums of 8-bit integers"),
        (Shape(256, 192, 3), {"output": "float32", "tma_store": False}, "the plain epilogue only"),
    ],
)
def test_what_cannot_be(shape, changes, why):
    form = Form(**{"mn_major_a": False, "mn_major_b": False, "input": "bfloat16", "output": "bfloat16", **changes})
    assert why in Variant(shape, form).refusal


@pytest.mark.parametrize(
    ("columns", "output", "store_block_n", "count"),
    [(256, "bfloat16", 64, 4), (112, "bfloat16", 64, 2), (176, "float16", 64, 3), (80, "bfloat16", 32, 3),
     (96, "bfloat16", 32, 3), (48, "bfloat16", 16, 3), (16, "bfloat16", 16, 1), (208, "float32", 32, 7)],
)  # fmt: skip
def test_store_blocks(columns, output, store_block_n, count):
    """There are as few as pays; their width need not divide the tile's, except with a c, which may be d."""
    variant = Variant(Shape(64, columns, 3, consumers=1), Form(False, False, "bfloat16", output))
    assert (variant.store_block_n, variant.num_store_blocks) == (store_block_n, count)
    added = replace(variant, form=replace(variant.form, addend=output))
    assert added.refusal is None
    assert columns % added.store_block_n == 0


def test_staging_buffers_of_float32():
    """They have as many bytes as with 16 bits, in half as many columns; one buffer where two do not fit."""

    def chosen(shape, kind="bfloat16"):
        variant = Variant(shape, Form(False, False, kind, "float32"))
        return variant.store_block_n, variant.num_store_stages

    assert chosen(Shape(128, 256, 4)) == (32, 2)
    assert chosen(Shape(128, 192, 5)) == (32, 1)
    assert chosen(Shape(128, 16, 9)) == (16, 2)
    assert chosen(Shape(64, 64, 9, consumers=1), "split") == (32, 1)
    for output in ("bfloat16", "float32"):
        staged = Variant(Shape(128, 256, 4), Form(False, False, "bfloat16", output))
        by_warps = replace(staged, form=replace(staged.form, tma_store=False))
        assert staged.shared_bytes == by_warps.shared_bytes == 4 * staged.stage_bytes + 2 * 2 * 8192 + 64 + 8 + 1024


def test_split_k_of_integers_takes_registers():
    form = Form(False, False, "s8.s8", "float32", scales="results")
    assert "of integers and split-K" in Variant(Shape(128, 160, 5, cluster_m=2), form, split_k=True).refusal
    assert (
        "of integers and split-K" in Variant(Shape(128, 128, 6), replace(form, tma_store=False), split_k=True).refusal
    )
    assert Variant(Shape(128, 128, 6), form, split_k=True).refusal is None
    assert Variant(Shape(128, 160, 5, cluster_m=2), form).refusal is None


def test_split_k_of_8_bit_floats_takes_registers():
    form = Form(False, False, "e4m3.e4m3", "bfloat16")
    assert "of 8-bit floats" in Variant(Shape(128, 192, 5, cluster_m=2), form, split_k=True).refusal
    assert Variant(Shape(128, 128, 6), form, split_k=True).refusal is None
