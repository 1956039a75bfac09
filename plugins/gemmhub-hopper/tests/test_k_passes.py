"""The division of K into passes where the workspace is small."""

from __future__ import annotations

from dataclasses import replace

from gemmhub_hopper.lowering import k_passes, lower
from gemmhub_hopper.variants.config import BY_ROWS
from gemmhub_nvidia.scratch import COUNTERS
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import problem


@settings(deadline=None, max_examples=60)
@given(
    m=st.integers(1, 500), n=st.integers(1, 500), k=st.integers(1, 3000), limit=st.integers(0, 2**24),
    parts=st.integers(0, 2**20), out=st.sampled_from(["float32", "bfloat16"]), batch=st.sampled_from([(), (3,)]),
)  # fmt: skip
def test_k_passes(m, n, k, limit, parts, out, batch):
    """They cover K, do not overlap, and fit into the workspace; fewer would not fit."""
    lowerings = lower.lowerings(problem(m, n, k, "float32", out, batch))
    for lowering in (lowerings[0], *[x for x in lowerings if x.form.scheme == "f16x3"][:1]):
        check_passes(lowering, m * n * len(batch or (1,)) * 4, parts, limit)
    for lowering in lowerings:
        if lowering.form.scheme == BY_ROWS:  # a product that may be computed again has one pass
            passes, whole = (
                k_passes.fewest(lowering, parts, limit),
                k_passes._k_passes(lowering, parts, lowering.k_blocks, 1),
            )
            assert passes == whole if whole.nbytes <= limit else isinstance(passes, str)
            assert (whole.count, whole.a, whole.b) == (1, None, COUNTERS)


def check_passes(lowering, sums, parts, limit):
    passes = k_passes.fewest(lowering, parts, limit)
    unit = 4 if lowering.form.input == "f16x3" else 1  # whole groups of scales
    if isinstance(passes, str):
        assert k_passes._k_passes(lowering, parts, unit, 2).nbytes > limit
        return
    assert passes.count == 1 or passes.k_blocks % unit == 0
    assert passes.nbytes <= limit
    assert (passes.count - 1) * passes.k_blocks < lowering.k_blocks <= passes.count * passes.k_blocks
    assert (passes.sums is not None) == (passes.count > 1 and lowering.form.output != "float32")
    k = passes.k(lowering.form)
    copies = [x.copy_bytes(lowering.form, k) for x in (lowering.a, lowering.b)]
    if lowering.form.input == "f16x3":  # planes, then scales; the fallback's planes take their place
        fallback = replace(lowering.form, input="split")
        for i, x in enumerate((lowering.a, lowering.b)):
            scales = 4 * x.count * -(-k // 128) * (x.rows + 192)  # a tile of 192 rows or columns may read beyond
            copies[i] = max(copies[i] + scales, x.copy_bytes(fallback, k))
    places = [(passes.a, copies[0]), (passes.b, copies[1]), (passes.partials, parts)]
    places += [(passes.sums, sums)] if passes.sums is not None else []
    end = COUNTERS
    for start, nbytes in sorted(places):
        assert start >= end
        assert start % 256 == 0
        end = start + nbytes
    assert end <= passes.nbytes
    if passes.count > 1:
        fewer = passes.count - 1
        blocks = -(-lowering.k_blocks // (fewer * unit)) * unit
        assert k_passes._k_passes(lowering, parts, blocks, fewer).nbytes > limit
