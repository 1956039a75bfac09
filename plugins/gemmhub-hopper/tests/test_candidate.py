"""The arithmetic of a choice, and what cannot be run."""

from __future__ import annotations

from dataclasses import replace

from gemmhub_hopper.candidates.candidate import Choice, named, runnable
from gemmhub_hopper.cost import choose, model
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Shape, Variant
from gemmhub_nvidia.scratch import COUNTERS
from problems import H200, LIMIT, problem


def test_clusters_that_share_k():
    """Clusters that share K have one work tile each, run all at once or not at all, and need no workspace."""

    def shared(m, n, k):
        found = (x.choice for x in choose.ranked(lower.lowerings(problem(m, n, k)), H200, LIMIT))
        return [choice for choice in found if choice.shape.cluster_k > 1]

    found = shared(64, 512, 8192)
    assert {choice.shape.cluster_k for choice in found} == {2, 4, 8}
    for choice in found:
        assert choice.grid(H200) == choice.work_tiles * choice.shape.cluster_size <= 132
        assert choice.splits == 1
    assert not shared(4096, 4096, 8192)
    lowering, _ = lower.lowerings(problem(128, 256, 1152))
    choice = named((lowering,), "64x64x12c2x1k4")
    assert choice.shape == Shape(64, 64, 12, 1, 2, cluster_k=4)
    passes = runnable(choice, 0)
    assert (passes.k_blocks, passes.nbytes) == (18, 0)
    facts = model.work(choice, passes, H200)
    assert (facts.k_blocks, facts.partial_bytes, facts.multicast_doublings, facts.cluster_k) == (5, 64 * 16 * 4, 1, 4)
    assert Shape(64, 96, 8, consumers=1, cluster_k=4).out_n == 48, "there are no 24 for each of four"
    short, _ = lower.lowerings(problem(128, 256, 192))
    assert "fewer than the 4 CTAs that" in runnable(replace(choice, lowering=short), 0)
    assert "exclude ping-pong, split-K" in Variant(choice.shape, lowering.form, split_k=True).refusal


def test_workspace():
    """Split-K takes a float32 for each element of each split of each tile, after the counters."""
    lowering, _ = lower.lowerings(problem(256, 512, 4096))
    choice = Choice(lowering, Shape(128, 256, 4), 3)
    assert choice.counters == 2 * 2 * 2
    nbytes = COUNTERS + 3 * 4 * 128 * 256 * 4
    assert choice.k_passes(LIMIT).nbytes == nbytes
    assert runnable(choice, nbytes).nbytes == nbytes
    turns = Choice(lowering, Shape(128, 128, 6, pingpong=True), 3)
    assert turns.counters == 2 * 4  # a tile is one warpgroup's
    assert turns.k_passes(LIMIT).nbytes == nbytes
    assert "workspace" in runnable(choice, nbytes - 1)
    assert "at most 128" in runnable(Choice(lowering, choice.shape, 129), 2**40)
    lowering, _ = lower.lowerings(problem(256, 512, 1024))
    assert "fewer than the 17 CTAs" in runnable(Choice(lowering, choice.shape, 17), 2**40)
