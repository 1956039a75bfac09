"""What the model of the machine prefers, and the arithmetic of its choices."""

from __future__ import annotations

import pytest
from gemmhub_hopper import cost_model, forms
from gemmhub_hopper.config import SHAPES, Form, Shape, Variant
from gemmhub_hopper.cost_model import Card, Choice
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import problem

from gemmhub.native.cuda_scratch import COUNTERS

H200 = Card(sms=132, clock=1.98e9, bandwidth=4.8e12)
LIMIT = 64 * 2**20


def chosen(m, n, k, **given):
    return cost_model.choices(forms.lowered(problem(m, n, k, **given)), H200, LIMIT)


def test_large_products_take_large_tiles():
    seconds, choice = chosen(8192, 8192, 8192)[0]
    assert choice.shape.m * choice.shape.n >= 128 * 192
    assert choice.splits == 1
    peak = 132 * 4096 * 1.98e9
    assert 0.4 * peak < 2 * 8192**3 / seconds < peak


@pytest.mark.parametrize("m", [1, 8, 16])
def test_decoding_reads_b_at_memory_speed(m):
    """The narrow side becomes the kernel's n, and b streams."""
    seconds, choice = chosen(m, 8192, 8192)[0]
    assert choice.way.swapped
    assert choice.shape.n <= 32
    assert 2 * 8192 * 8192 / 4.8e12 < seconds < 2.2 * 2 * 8192 * 8192 / 4.8e12


def test_few_tiles_split_k():
    _, choice = chosen(256, 256, 16384)[0]
    assert choice.splits > 1
    assert choice.pieces <= 2 * 132


def test_no_split_without_workspace():
    ways = forms.lowered(problem(256, 256, 16384))
    assert all(choice.splits == 1 for _, choice in cost_model.choices(ways, H200, 0))


@settings(deadline=None, max_examples=50)
@given(m=st.integers(1, 700), n=st.integers(1, 90), k=st.integers(0, 300), batch=st.sampled_from([(), (3,)]))
def test_every_choice_can_run(m, n, k, batch):
    found = chosen(m, 8 * n, 8 * k, batch=batch)
    assert found
    names = [choice.name for _, choice in found]
    assert len(set(names)) == len(names)
    for seconds, choice in found:
        assert seconds > cost_model.LAUNCH
        assert cost_model.refusal(choice, LIMIT) is None
        rows, columns = choice.tiles
        shape, way = choice.shape, choice.way
        assert rows * shape.m * shape.cluster_m >= way.m
        assert columns * shape.n * shape.cluster_n >= way.n
        assert 1 <= choice.splits <= way.k_blocks
        assert choice.grid(132) % shape.cluster == 0
        assert 0 < choice.grid(132) <= 132
        assert choice.group(132) >= 1


def test_workspace():
    """A float32 for every element of every part of every tile, behind the counters."""
    way, _ = forms.lowered(problem(256, 512, 4096))
    choice = Choice(way, Shape(128, 256, 4), 3)
    assert choice.slots == 2 * 2 * 2
    assert choice.workspace_bytes == COUNTERS + 3 * 4 * 128 * 256 * 4
    assert cost_model.refusal(choice, choice.workspace_bytes) is None
    assert "workspace" in cost_model.refusal(choice, choice.workspace_bytes - 1)
    assert "fewer than 65 parts" in cost_model.refusal(Choice(way, choice.shape, 65), 2**40)


def test_all_shapes_can_be_compiled_with_every_major():
    for shape in SHAPES:
        for a_mn in (False, True):
            for b_mn in (False, True):
                for transposed in (False, True):
                    variant = Variant(shape, Form(a_mn, b_mn, "bfloat16", "bfloat16", transposed))
                    assert variant.refusal is None
                    assert variant.shared_bytes <= 232448
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)


@pytest.mark.parametrize(
    ("shape", "changes", "why"),
    [
        (Shape(64, 64, 4), {}, "64 of each of 2"),
        (Shape(128, 264, 2), {}, "264 columns"),
        (Shape(128, 8, 4), {}, "8 columns"),
        (Shape(256, 256, 2), {}, "accumulators"),
        (Shape(256, 192, 3), {"scaled": True}, "the plainest epilogue only"),
        (Shape(128, 128, 1), {}, "two stages"),
        (Shape(128, 256, 5), {}, "bytes of shared memory"),
        (Shape(128, 128, 4, cluster_m=2, cluster_n=2), {}, "clusters of one or two"),
        (Shape(128, 128, 4), {"input": "tf32", "b_mn": True}, "tf32"),
        (Shape(128, 128, 4), {"output": "float32"}, "stored from registers"),
    ],
)
def test_what_cannot_be(shape, changes, why):
    form = Form(**{"a_mn": False, "b_mn": False, "input": "bfloat16", "output": "bfloat16", **changes})
    assert why in Variant(shape, form).refusal
