"""How k is cut where the workspace is small."""

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
def test_slabs(m, n, k, limit, parts, out, batch):
    """They cover k, lie beside each other, and fit; fewer would not."""
    way = lower.lowered(problem(m, n, k, "float32", out, batch))[0]
    cut = k_passes.cut(way, parts, limit)
    if isinstance(cut, str):
        assert k_passes._slabs(way, parts, 1, 2).nbytes > limit
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
        assert k_passes._slabs(way, parts, -(-way.k_blocks // fewer), fewer).nbytes > limit
