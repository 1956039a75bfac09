"""The division of K into passes where the workspace is small."""

from __future__ import annotations

from gemmhub_hopper import k_passes, lower
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import problem

from gemmhub.kit.cuda_scratch import COUNTERS


@settings(deadline=None, max_examples=60)
@given(
    m=st.integers(1, 500), n=st.integers(1, 500), k=st.integers(1, 3000), limit=st.integers(0, 2**24),
    parts=st.integers(0, 2**20), out=st.sampled_from(["float32", "bfloat16"]), batch=st.sampled_from([(), (3,)]),
)  # fmt: skip
def test_k_passes(m, n, k, limit, parts, out, batch):
    """They cover K, do not overlap, and fit into the workspace; fewer would not fit."""
    lowering = lower.lowerings(problem(m, n, k, "float32", out, batch))[0]
    passes = k_passes.fewest(lowering, parts, limit)
    if isinstance(passes, str):
        assert k_passes._k_passes(lowering, parts, 1, 2).nbytes > limit
        return
    assert passes.nbytes <= limit
    assert (passes.count - 1) * passes.k_blocks < lowering.k_blocks <= passes.count * passes.k_blocks
    assert (passes.sums is not None) == (passes.count > 1 and out != "float32")
    copies = [x.copy_bytes(lowering.form, passes.k(lowering.form)) for x in (lowering.a, lowering.b)]
    places = [(passes.a, copies[0]), (passes.b, copies[1]), (passes.partials, parts)]
    places += [(passes.sums, m * n * len(batch or (1,)) * 4)] if passes.sums is not None else []
    end = COUNTERS
    for start, nbytes in sorted(places):
        assert start >= end
        assert start % 256 == 0
        end = start + nbytes
    assert end <= passes.nbytes
    if passes.count > 1:
        fewer = passes.count - 1
        assert k_passes._k_passes(lowering, parts, -(-lowering.k_blocks // fewer), fewer).nbytes > limit
