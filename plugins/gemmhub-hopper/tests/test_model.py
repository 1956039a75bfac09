"""The cost model: alignment in L2, ping-pong, epilogues."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemmhub_hopper.candidates.candidate import Choice, named
from gemmhub_hopper.cost import model
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import Shape
from problems import H200, LIMIT, problem


def test_rows_that_begin_within_a_line():
    """L2 takes longer for rows of 2048, 2112, 2080 and 2064 bytes, in this order: the less they are aligned."""
    estimates = []
    for place, k in enumerate((1024, 1056, 1040, 1032)):
        lowering = lower.lowerings(problem(2048, 4096, k, b="col"))[0]
        choice = Choice(lowering, Shape(64, 64, 12, consumers=1), 1)
        passes = choice.k_passes(LIMIT)
        loaded = model.work(choice, passes, H200).loaded
        assert loaded[place] == sum(loaded) == 2 * 64 * 128
        estimates.append(model.seconds(choice, passes, H200) / k)
    assert estimates == sorted(estimates)
    assert estimates[1] > 1.1 * estimates[0]


@pytest.mark.parametrize("cluster_m", [1, 2])
def test_what_ping_pong_hides(cluster_m):
    """Ping-pong hides all epilogues except the last, and none where a CTA has one work tile."""
    together = Shape(128, 128, 6, cluster_m=cluster_m)
    turns = replace(together, pingpong=True)

    def seconds(shape, m, n, k):
        choice = Choice(lower.lowerings(problem(m, n, k))[0], shape, 1)
        return model.seconds(choice, choice.k_passes(LIMIT), H200)

    for k in (64, 512, 4096):
        one_work_tile = [seconds(shape, 128 * 12, 128 * 11, k) for shape in (together, turns)]
        assert one_work_tile[0] <= one_work_tile[1] <= 1.1 * one_work_tile[0]
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


COMPLEX = [
    ((104, 6384, 400), "col", "128x112x6ht", 3.352e12, 95.4),
    ((728, 440, 3608), "row", "128x64x8ht/3", 3.352e12, 134.6),
    ((760, 2576, 3704), "col", "128x128x6ht", 3.352e12, 543.0), ((232, 968, 1160), "col", "128x64x8h/2", 4.8e12, 66.6),
    ((1552, 1176, 912), "row", "128x128x6c2x1ht", 3.352e12, 117.9),
    ((9312, 136, 2976), "row", "128x112x6ht", 3.352e12, 422.1),
    ((256, 1248, 6472), "row", "128x64x8h/3", 4.8e12, 306.9), ((5976, 280, 240), "col", "128x112x6h", 4.8e12, 47.5),
    ((1336, 4616, 3056), "row", "128x112x6ht", 4.8e12, 1103.2),
]  # fmt: skip
"""Sizes, the order of b, candidates, the memory's bandwidth, and microseconds."""


@pytest.mark.parametrize(("sizes", "order", "name", "bandwidth", "us"), COMPLEX, ids=str)
def test_complex_estimates_are_near_measured_times(sizes, order, name, bandwidth, us):
    """Times of benchmarks/run/map.py on an H100 and an H200."""
    choice = named(lower.lowerings(problem(*sizes, "complex64", b=order)), name)
    card = replace(H200, clock=1.98e9, bandwidth=bandwidth)
    assert 1 / 1.4 < model.seconds(choice, choice.k_passes(LIMIT), card) * 1e6 / us < 1.4
