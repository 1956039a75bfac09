"""The arithmetic of a choice, and what cannot be run."""

from __future__ import annotations

from dataclasses import replace

from gemmhub_hopper import choose, lower, model
from gemmhub_hopper.candidate import Choice, named, runnable
from gemmhub_hopper.config import Shape, Variant
from problems import H200, LIMIT, problem

from gemmhub.kit.cuda_scratch import COUNTERS


def test_blocks_that_share_k():
    """One piece a cluster, all at once, or none; no workspace."""

    def shared(m, n, k):
        found = (x.choice for x in choose.ranked(lower.lowered(problem(m, n, k)), H200, LIMIT))
        return [choice for choice in found if choice.shape.cluster_k > 1]

    found = shared(64, 512, 8192)
    assert {choice.shape.cluster_k for choice in found} == {2, 4, 8}
    for choice in found:
        assert choice.grid(H200) == choice.pieces * choice.shape.cluster <= 132
        assert choice.splits == 1
    assert not shared(4096, 4096, 8192)
    way, _ = lower.lowered(problem(128, 256, 1152))
    choice = named((way,), "64x64x12c2x1k4")
    assert choice.shape == Shape(64, 64, 12, 1, 2, cluster_k=4)
    cut = runnable(choice, 0)
    assert (cut.blocks, cut.nbytes) == (18, 0)
    facts = model.work(choice, cut, H200)
    assert (facts.blocks, facts.part, facts.doublings, facts.shared_k) == (5, 64 * 16 * 4, 1, 4)
    assert Shape(64, 96, 8, consumers=1, cluster_k=4).columns == 48, "there are no 24 for each of four"
    short, _ = lower.lowered(problem(128, 256, 192))
    assert "fewer than the 4 that" in runnable(replace(choice, way=short), 0)
    assert "no other parts" in Variant(choice.shape, way.form, split=True).refusal


def test_workspace():
    """A float32 for every element of every part of every tile, behind the counters."""
    way, _ = lower.lowered(problem(256, 512, 4096))
    choice = Choice(way, Shape(128, 256, 4), 3)
    assert choice.slots == 2 * 2 * 2
    nbytes = COUNTERS + 3 * 4 * 128 * 256 * 4
    assert choice.cut(LIMIT).nbytes == nbytes
    assert runnable(choice, nbytes).nbytes == nbytes
    turns = Choice(way, Shape(128, 128, 6, pingpong=True), 3)
    assert turns.slots == 2 * 4  # a tile is one warpgroup's
    assert turns.cut(LIMIT).nbytes == nbytes
    assert "workspace" in runnable(choice, nbytes - 1)
    assert "at most 32" in runnable(Choice(way, choice.shape, 33), 2**40)
    way, _ = lower.lowered(problem(256, 512, 1024))
    assert "fewer than 17 parts" in runnable(Choice(way, choice.shape, 17), 2**40)
