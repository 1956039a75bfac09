"""What the model of the machine prefers, and the arithmetic of its choices."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from gemmhub_hopper import cost_model, forms, slabs
from gemmhub_hopper.config import SHAPES, SPLIT_SHAPES, Form, Shape, Variant
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
    assert choice.shape.m * choice.shape.n >= 128 * 144
    assert choice.splits == 1
    peak = 132 * 4096 * 1.98e9
    assert 0.4 * peak < 2 * 8192**3 / seconds < peak


def test_rows_that_begin_within_a_line():
    """Of 2048, 2112, 2080 and 2064 bytes: L2 takes the longer, the less of its lines of 128 they begin with."""
    estimates = []
    for place, k in enumerate((1024, 1056, 1040, 1032)):
        way = forms.lowered(problem(2048, 4096, k, b="col"))[0]
        choice = Choice(way, Shape(64, 64, 12, consumers=1), 1)
        cut = choice.cut(LIMIT)
        loaded = cost_model.work(choice, cut, 132).loaded
        assert loaded[place] == sum(loaded) == 2 * 64 * 128
        estimates.append(cost_model.seconds(choice, cut, H200) / k)
    assert estimates == sorted(estimates)
    assert estimates[1] > 1.1 * estimates[0]


@pytest.mark.parametrize("m", [1, 8, 16])
def test_decoding_reads_b_at_memory_speed(m):
    """The narrow side becomes the kernel's n, and b streams."""
    seconds, choice = chosen(m, 8192, 8192)[0]
    assert choice.way.swapped
    assert choice.shape.n <= 32
    assert 2 * 8192 * 8192 / 4.8e12 < seconds < 2.2 * 2 * 8192 * 8192 / 4.8e12


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_as_before(enabled, monkeypatch):
    """Not while choices are ranked; then as the caller has it, failures or not."""
    asked, found = forms.lowered(problem(512, 512, 512)), []
    monkeypatch.setattr(cost_model, "work", lambda *given: found.append(gc.isenabled()) or 1 / 0)
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError):
            cost_model.ranked(asked, H200, LIMIT)
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert found == [False]


def test_few_tiles_split_k():
    _, choice = chosen(256, 256, 16384)[0]
    assert choice.splits * choice.shape.cluster_k > 1
    assert choice.grid(132) <= 132


def test_blocks_that_share_k():
    """One piece a cluster, all at once, or none; no workspace."""
    found = [choice for _, choice in chosen(128, 512, 8192) if choice.shape.cluster_k > 1]
    assert {choice.shape.cluster_k for choice in found} == {2, 4, 8}
    for choice in found:
        assert choice.grid(132) == choice.pieces * choice.shape.cluster <= 132
        assert choice.splits == 1
    assert not [choice for _, choice in chosen(4096, 4096, 8192) if choice.shape.cluster_k > 1]
    way, _ = forms.lowered(problem(128, 256, 1152))
    choice = cost_model.named((way,), "64x64x12c2x1k4")
    assert choice.shape == Shape(64, 64, 12, 1, 2, cluster_k=4)
    cut = cost_model.runnable(choice, 0)
    assert (cut.blocks, cut.nbytes) == (18, 0)
    facts = cost_model.work(choice, cut, 132)
    assert (facts.blocks, facts.part, facts.doublings, facts.shared_k) == (5, 64 * 16 * 4, 1, 4)
    assert Shape(64, 96, 8, consumers=1, cluster_k=4).columns == 48, "there are no 24 for each of four"
    short, _ = forms.lowered(problem(128, 256, 192))
    assert "fewer than the 4 that" in cost_model.runnable(replace(choice, way=short), 0)
    assert "no other parts" in Variant(choice.shape, way.form, split=True).refusal


def test_short_k_takes_turns():
    """Epilogues take as long as main loops there, and only turns hide them."""
    _, choice = chosen(4096, 32768, 512)[0]
    assert choice.shape.pingpong


@pytest.mark.parametrize("cluster_m", [1, 2])
def test_what_turns_hide(cluster_m):
    """All epilogues but the last; so nothing where a block has one piece."""
    together = Shape(128, 128, 6, cluster_m=cluster_m)
    turns = replace(together, pingpong=True)

    def seconds(shape, m, n, k):
        choice = Choice(forms.lowered(problem(m, n, k))[0], shape, 1)
        return cost_model.seconds(choice, choice.cut(LIMIT), H200)

    for k in (64, 512, 4096):
        one_piece = [seconds(shape, 128 * 12, 128 * 11, k) for shape in (together, turns)]
        assert one_piece[0] <= one_piece[1] <= 1.1 * one_piece[0]
    gains = []
    for k in (512, 1024, 4096, 16384):
        two, many = (
            [seconds(shape, 128 * 12, 128 * 11 * count, k) for shape in (together, turns)] for count in (2, 40)
        )
        assert 1 <= two[0] / two[1] <= many[0] / many[1]
        gains.append(many[0] / many[1])
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.1
    assert gains[-1] < 1.05


def test_candidates_take_turns_and_do_not():
    """Tuning measures both for k of middling length."""
    found = [choice.shape.pingpong for _, choice in chosen(4096, 4096, 2048)[:8]]
    assert {True, False} == set(found)


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
        assert not isinstance(cost_model.runnable(choice, LIMIT), str)
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
    nbytes = COUNTERS + 3 * 4 * 128 * 256 * 4
    assert choice.cut(LIMIT).nbytes == nbytes
    assert cost_model.runnable(choice, nbytes).nbytes == nbytes
    turns = Choice(way, Shape(128, 128, 6, pingpong=True), 3)
    assert turns.slots == 2 * 4  # a tile is one warpgroup's
    assert turns.cut(LIMIT).nbytes == nbytes
    assert "workspace" in cost_model.runnable(choice, nbytes - 1)
    assert "at most 32" in cost_model.runnable(Choice(way, choice.shape, 33), 2**40)
    way, _ = forms.lowered(problem(256, 512, 1024))
    assert "fewer than 17 parts" in cost_model.runnable(Choice(way, choice.shape, 17), 2**40)


def test_float32_is_faster_than_ordinary_instructions():
    """51 TFLOPS are what those reach; six products of bfloat16 make 130 at best."""
    seconds, choice = chosen(8192, 8192, 8192, dtype="float32")[0]
    assert choice.shape.m * choice.shape.n >= 128 * 128
    assert 60e12 < 2 * 8192**3 / seconds < 165e12
    seconds, _ = chosen(4096, 4096, 1024, dtype="float32")[0]
    assert 60e12 < 2 * 4096**2 * 1024 / seconds < 165e12


def test_a_small_workspace_costs_time():
    ways = forms.lowered(problem(2048, 2048, 8192, dtype="float32"))
    times = [cost_model.choices(ways, H200, limit)[0][0] for limit in (2**21, 2**24, 2**28, 2**32)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[1] > times[2] == times[3]


@settings(deadline=None, max_examples=60)
@given(
    m=st.integers(1, 500), n=st.integers(1, 500), k=st.integers(1, 3000), limit=st.integers(0, 2**24),
    parts=st.integers(0, 2**20), out=st.sampled_from(["float32", "bfloat16"]), batch=st.sampled_from([(), (3,)]),
)  # fmt: skip
def test_slabs(m, n, k, limit, parts, out, batch):
    """They cover k, lie beside each other, and fit; fewer would not."""
    way = forms.lowered(problem(m, n, k, "float32", out, batch))[0]
    cut = slabs.cut(way, parts, limit)
    if isinstance(cut, str):
        assert slabs._slabs(way, parts, 1, 2).nbytes > limit
        return
    assert cut.nbytes <= limit
    assert (cut.count - 1) * cut.blocks < way.k_blocks <= cut.count * cut.blocks
    assert (cut.sums is not None) == (cut.count > 1 and out != "float32")
    copies = [x.copy_bytes(way.form, cut.k(way.form)) for x in (way.a, way.b)]
    places = [(cut.a, copies[0]), (cut.b, copies[1]), (cut.partials, parts)]
    places += [(cut.sums, m * n * len(batch or (1,)) * 4)] if cut.sums is not None else []
    end = COUNTERS
    for start, nbytes in sorted(places):
        assert start >= end
        assert start % 256 == 0
        end = start + nbytes
    assert end <= cut.nbytes
    if cut.count > 1:
        fewer = cut.count - 1
        assert slabs._slabs(way, parts, -(-way.k_blocks // fewer), fewer).nbytes > limit


@pytest.mark.parametrize("output", ["bfloat16", "float32"])
def test_all_shapes_can_be_compiled_with_every_major(output):
    for shape in SHAPES:
        for a_mn in (False, True):
            for b_mn in (False, True):
                for transposed in (False, True):
                    variant = Variant(shape, Form(a_mn, b_mn, "bfloat16", output, transposed))
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
        (Shape(64, 64, 4), {}, "64 of each of 2"),
        (Shape(128, 264, 2), {}, "264 columns"),
        (Shape(128, 8, 4), {}, "8 columns"),
        (Shape(128, 100, 4), {}, "multiples of 8"),
        (Shape(64, 72, 4, 1, cluster_k=2), {}, "are multiples of 16"),
        (Shape(64, 72, 4, 1), {"addend": "bfloat16"}, "are multiples of 16"),
        (Shape(256, 256, 2), {}, "accumulators"),
        (Shape(256, 192, 3), {"scaled": True}, "the plainest epilogue only"),
        (Shape(128, 128, 1), {}, "two stages"),
        (Shape(128, 128, 6, consumers=1, pingpong=True), {}, "takes two consumer warpgroups"),
        (Shape(32, 128, 6, pingpong=True), {}, "64 of each of 1"),
        (Shape(128, 256, 4, pingpong=True), {}, "256 accumulators"),
        (Shape(128, 192, 5, pingpong=True), {"bias": "n"}, "the plainest epilogue only"),
        (Shape(64, 128, 4, pingpong=True), {"input": "split", "output": "float32"}, "its turn"),
        (Shape(128, 256, 5), {}, "bytes of shared memory"),
        (Shape(128, 192, 4, cluster_m=6), {}, "clusters of one, two, four or eight"),
        (Shape(128, 128, 4, cluster_k=3), {}, "four or eight"),
        (Shape(128, 128, 4, cluster_m=4, cluster_k=4), {}, "at most eight blocks"),
        (Shape(128, 128, 6, pingpong=True, cluster_k=2), {}, "take no turns"),
        (Shape(64, 64, 6, 1, cluster_k=2), {"input": "split", "output": "float32"}, "no operands split beforehand"),
        (Shape(128, 256, 4, cluster_k=2), {}, "those of the blocks that share k"),
        (Shape(128, 192, 2, cluster_k=4), {}, "the ring has no room"),
        (Shape(128, 128, 4), {"input": "tf32", "b_mn": True}, "tf32"),
        (Shape(256, 192, 3), {"output": "float32", "tma_store": False}, "the plainest epilogue only"),
    ],
)
def test_what_cannot_be(shape, changes, why):
    form = Form(**{"a_mn": False, "b_mn": False, "input": "bfloat16", "output": "bfloat16", **changes})
    assert why in Variant(shape, form).refusal


@pytest.mark.parametrize(
    ("columns", "output", "chunk", "count"),
    [(256, "bfloat16", 64, 4), (112, "bfloat16", 64, 2), (176, "float16", 64, 3), (80, "bfloat16", 32, 3),
     (96, "bfloat16", 32, 3), (48, "bfloat16", 16, 3), (16, "bfloat16", 16, 1), (208, "float32", 32, 7),
     (72, "bfloat16", 32, 3), (136, "bfloat16", 32, 5)],
)  # fmt: skip
def test_chunks(columns, output, chunk, count):
    """As few as pays, of a width that has not to divide the tile's; beside a c, which may be d, it has to."""
    variant = Variant(Shape(64, columns, 3, consumers=1), Form(False, False, "bfloat16", output))
    assert (variant.chunk, variant.chunks) == (chunk, count)
    added = replace(variant, form=replace(variant.form, addend=output))
    assert added.refusal is not None if columns % 16 else columns % added.chunk == 0


def test_staging_buffers_of_float32():
    """As many bytes as of 16 bits, in half as many columns; one buffer where there is no room for two."""

    def chosen(shape, kind="bfloat16"):
        variant = Variant(shape, Form(False, False, kind, "float32"))
        return variant.chunk, variant.staging

    assert chosen(Shape(128, 256, 4)) == (32, 2)
    assert chosen(Shape(128, 192, 5)) == (32, 1)
    assert chosen(Shape(128, 16, 9)) == (16, 2)
    assert chosen(Shape(64, 64, 9, consumers=1), "split") == (32, 1)
    for output in ("bfloat16", "float32"):
        staged = Variant(Shape(128, 256, 4), Form(False, False, "bfloat16", output))
        direct = replace(staged, form=replace(staged.form, tma_store=False))
        assert staged.shared_bytes == direct.shared_bytes + 2 * 2 * 8192
