"""The cost model: what it prefers, and the arithmetic of choices."""

from __future__ import annotations

import pytest
from gemmhub_cuda.candidate import Choice, named
from gemmhub_cuda.cost import batch_model, model, wave_model
from gemmhub_cuda.launch import Params, params
from gemmhub_cuda.lower import lowered
from gemmhub_cuda.variants import batch as batches
from gemmhub_cuda.variants import sgemm
from gemmhub_cuda.variants.card import Card
from gemmhub_nvidia.scratch import COUNTERS
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import problem

H200 = Card(132, 1.98e9, 4.8e12, (9, 0), 232448, 233472, 2048)
H100 = Card(132, 1.98e9, 3.35e12, (9, 0), 232448, 233472, 2048)
A100 = Card(108, 1.41e9, 2.0e12, (8, 0), 166912, 167936, 2048)
RTX = Card(82, 1.7e9, 0.94e12, (8, 6), 101376, 102400, 1536)
LIMIT = 64 * 2**20


def chosen(m, n, k, card=H200, **given):
    return model.choices(lowered(problem(m, n, k, **given), card.capability), card, LIMIT)


@pytest.mark.parametrize(("card", "peak"), [(H200, 67e12), (A100, 19.5e12), (RTX, 35.7e12)])
def test_large_products_take_large_tiles(card, peak):
    seconds, choice = chosen(8192, 8192, 8192, card)[0]
    assert choice.shape.m * choice.shape.n >= 64 * 128
    assert choice.splits == 1
    assert 0.6 * peak < 2 * 8192**3 / seconds < 0.9 * peak


@pytest.mark.parametrize(("card", "peak"), [(H200, 0.62 * 989e12), (A100, 312e12)])
def test_tensor_cores(card, peak):
    seconds, choice = chosen(8192, 8192, 8192, card, dtype="bfloat16")[0]
    assert choice.shape.m * choice.shape.n >= 128 * 128
    assert 0.5 * peak < 2 * 8192**3 / seconds < peak


def test_few_rows_read_b_at_memory_speed():
    seconds, choice = chosen(4, 8192, 8192)[0]
    assert choice.shape.m <= 32
    assert 4 * 8192 * 8192 / 4.8e12 < seconds < 2.5 * 4 * 8192 * 8192 / 4.8e12


def test_few_tiles_split_k():
    _, choice = chosen(256, 256, 16384)[0]
    assert choice.splits > 1


def test_one_tile_with_a_huge_k_uses_most_sms():
    _, choice = chosen(16, 16, 4_000_000)[0]
    assert 66 < choice.splits <= 128


def test_no_split_without_workspace():
    lowering = lowered(problem(256, 256, 16384), (9, 0))
    assert all(choice.splits == 1 for _, choice in model.choices(lowering, H200, 0))


def test_launches_are_paid_for():
    one = chosen(64, 64, 64, batch=(65535,))[0][0]
    two = chosen(64, 64, 64, batch=(65536,))[0][0]
    assert two > one + 0.5 * wave_model.LAUNCH


# Recorded: card, dtype, how a and b are stored, m, n, k, microseconds.
MISALIGNED = (
    (H100, "bfloat16", "tn", 5206, 252, 727, 23.6), (H100, "float16", "tn", 355, 75, 8485, 22.2),
    (H200, "bfloat16", "nt", 107, 3281, 961, 24.9), (H200, "float16", "nn", 623, 6334, 11031, 633.2),
)  # fmt: skip
ORDERS = {"n": "row", "t": "col"}


@pytest.mark.parametrize(("card", "dtype", "orders", "m", "n", "k", "microseconds"), MISALIGNED)
def test_misaligned_rows_are_slow(card, dtype, orders, m, n, k, microseconds):
    """Within a factor of 1.4; without the factor estimates are 1.6 to 2.8 times too low."""
    seconds = chosen(m, n, k, card, dtype=dtype, a=ORDERS[orders[0]], b=ORDERS[orders[1]])[0][0]
    assert microseconds / 1.4 < seconds * 1e6 < microseconds * 1.4


@pytest.mark.parametrize(("n", "aligned"), [(4096, 16), (4100, 8), (4098, 4), (4097, 2)])
def test_the_factor_of_alignment(n, aligned):
    lowering = lowered(problem(512, n, 512, "bfloat16"), (9, 0))
    assert lowering.form.alignment == aligned
    near = chosen(512, 4096, 512, dtype="bfloat16")[0][0]
    ratio = (chosen(512, n, 512, dtype="bfloat16")[0][0] - wave_model.LAUNCH) / (near - wave_model.LAUNCH)
    # Besides the factor: one more column of tiles, and no shapes with more than 64 accumulators per thread.
    assert 0.99 < ratio / wave_model.MISALIGNED.get(aligned, 1) < 1.4


def test_names_of_choices():
    lowering = lowered(problem(512, 512, 4096), (9, 0))
    for _, choice in model.choices(lowering, H200, LIMIT):
        assert named(lowering, choice.name) == choice


@settings(deadline=None, max_examples=60)
@given(
    m=st.integers(1, 700), n=st.integers(1, 700), k=st.integers(0, 3000), batch=st.sampled_from([(), (3,)]),
    dtype=st.sampled_from(["float32", "bfloat16"]), card=st.sampled_from([H200, A100, RTX]),
)  # fmt: skip
def test_every_choice_can_run(m, n, k, batch, dtype, card):
    found = chosen(m, n, k, card, dtype=dtype, batch=batch)
    assert found
    names = [choice.name for _, choice in found]
    assert len(set(names)) == len(names)
    for seconds, choice in found:
        assert seconds > (batch_model.LAUNCH if isinstance(choice.shape, batches.Shape) else wave_model.LAUNCH)
        assert choice.refusal(card, LIMIT) is None
        rows, columns = choice.tiles
        assert rows * choice.shape.m >= choice.lowering.m
        assert columns * choice.shape.n >= choice.lowering.n
        assert 1 <= choice.splits <= choice.k_blocks
        ctas_per_sm = choice.ctas_per_sm(card)
        assert ctas_per_sm * choice.variant.shared_bytes <= card.shared_per_sm
        assert 1 <= choice.group(ctas_per_sm * card.sms) <= rows


def test_workspace():
    """Split-K takes a float32 for each element of each split of each tile, after the counters."""
    choice = Choice(lowered(problem(256, 512, 4096), (9, 0)), sgemm.SHAPES[3], 3)
    assert choice.workspace_bytes == COUNTERS + 2 * 4 * 3 * 128 * 128 * 4
    assert "workspace" in choice.refusal(H200, choice.workspace_bytes - 1)
    assert choice.refusal(H200, choice.workspace_bytes) is None
    assert "fewer than 600 splits" in Choice(choice.lowering, choice.shape, 600).refusal(H200, 2**40)
    many = Choice(lowered(problem(2**15, 2**15, 4096), (9, 0)), sgemm.SHAPES[3], 2)
    assert "65536 counters: there are 16384" in many.refusal(H200, 2**40)


def test_parameters():
    choice = Choice(lowered(problem(100, 512, 4096, d="col", batch=(2,)), (9, 0)), sgemm.SHAPES[3], 3)
    found = params(choice, 264)
    assert (found.m, found.n, found.k, found.splits, found.batch) == (512, 100, 4096, 3, 2)
    assert (found.tiles_m, found.tiles_n) == (4, 1)
    assert (found.a_ld, found.b_ld, found.d_ld) == (512, 4096, 100)
    assert (found.a_batch, found.b_batch, found.d_batch) == (4096 * 512, 100 * 4096, 100 * 512)
    assert Params.a.offset == 40  # behind 8 ints and 2 floats
