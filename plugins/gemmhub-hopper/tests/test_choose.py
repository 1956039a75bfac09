"""What the model of the machine prefers, and that it can be run."""

from __future__ import annotations

import pytest
from gemmhub_hopper.candidates.candidate import Choice, runnable
from gemmhub_hopper.cost import choose, model
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.shapes import shapes
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import H200, LIMIT, problem


def chosen(m, n, k, **given):
    return choose.choices(lower.lowerings(problem(m, n, k, **given)), H200, LIMIT)


def test_large_products_take_large_tiles():
    seconds, choice = chosen(8192, 8192, 8192)[0]
    assert choice.shape.m * choice.shape.n >= 128 * 144
    assert choice.splits == 1
    peak = 132 * 4096 * 1.98e9
    assert 0.4 * peak < 2 * 8192**3 / seconds < peak


@pytest.mark.parametrize("m", [1, 8, 16])
def test_decoding_reads_b_at_memory_speed(m):
    """The narrow side becomes the kernel's n, and b streams."""
    seconds, choice = chosen(m, 8192, 8192)[0]
    assert choice.lowering.swapped
    assert choice.shape.n <= 32
    assert 2 * 8192 * 8192 / 4.8e12 < seconds < 2.2 * 2 * 8192 * 8192 / 4.8e12


def test_few_tiles_split_k():
    _, choice = chosen(256, 256, 16384)[0]
    assert choice.splits * choice.shape.cluster_k > 1
    assert choice.grid(H200) <= 132


@pytest.mark.parametrize(("dtype", "m", "n"), [("float32", 16, 16), ("bfloat16", 48, 64)])
def test_one_tile_with_a_huge_k_uses_most_sms(dtype, m, n):
    choice = chosen(m, n, 4_000_000, dtype=dtype)[0][1]
    assert choice.grid(H200) > 66


def test_beside_many_splits_there_are_fewer():
    """Estimates of many are less certain: their reduction is long."""
    lowerings = lower.lowerings(problem(48, 64, 4_000_000))
    splits = {x.choice.splits for x in choose.ranked(lowerings, H200, LIMIT) if x.choice.shape.name == "64x64x12"}
    assert {1, 32} < splits
    assert max(splits) > 66


@pytest.mark.parametrize("m", [1, 16])
def test_float32_sums_no_longer_chains_than_it_need(m):
    for _, choice in chosen(m, 4096, 65536, dtype="float32"):
        assert 65536 // (choice.splits * choice.shape.cluster_k) <= 2**14
    assert chosen(m, 4096, 65536, dtype="float32", precision="tf32")
    assert choose.choices(lower.lowerings(problem(256, 256, 65536, dtype="float32")), H200, 0)  # nothing else can run


def test_short_k_prefers_ping_pong():
    """With a short K, epilogues take as long as main loops, and only ping-pong hides them."""
    _, choice = chosen(4096, 32768, 512)[0]
    assert choice.shape.pingpong


def test_candidates_with_and_without_ping_pong():
    """Tuning measures both for k of middling length."""
    found = [choice.shape.pingpong for _, choice in chosen(4096, 4096, 2048)[:8]]
    assert {True, False} == set(found)


def test_no_split_without_workspace():
    lowerings = lower.lowerings(problem(256, 256, 16384))
    assert all(choice.splits == 1 for _, choice in choose.choices(lowerings, H200, 0))


@pytest.mark.parametrize("limit", [2**18, 2**22, LIMIT])
@pytest.mark.parametrize(
    "given",
    [
        {"m": 300, "n": 500, "k": 700}, {"m": 304, "n": 504, "k": 8192, "a": "col"}, {"m": 8, "n": 4096, "k": 4096},
        {"m": 768, "n": 768, "k": 768, "dtype": "float32", "precision": "tf32"},
        {"m": 64, "n": 520, "k": 16384, "dtype": "float32"}, {"m": 4096, "n": 8192, "k": 512, "batch": (3,)},
    ],
)  # fmt: skip
def test_all_at_once_is_as_one_by_one(given, limit):
    every = lower.lowerings(problem(**given))
    for kind in dict.fromkeys(x.form.scheme for x in every):  # those of one scheme are ranked together
        check_ranking(tuple(x for x in every if x.form.scheme == kind), limit)


def check_ranking(lowerings, limit):
    found = choose.ranked(lowerings, H200, limit)
    assert [x.seconds for x in found] == sorted(x.seconds for x in found)
    assert len({x.choice.name for x in found}) == len(found)
    for x in found:
        passes = runnable(x.choice, limit)
        assert x.seconds == pytest.approx(model.seconds(x.choice, passes, H200), rel=1e-12)
        assert x.work == model.work(x.choice, passes, H200)
    assert choose.ranked(lowerings, H200, limit, 7) == found[:7]
    whole = {x.choice for x in found if x.choice.splits == 1}
    for lowering in lowerings:
        for shape in (shape for shape in shapes(lowering.form) if shape.cluster_k == 1):
            choice = Choice(lowering, shape, 1)
            assert (choice in whole) is not isinstance(runnable(choice, limit), str)


@pytest.mark.parametrize("limit", [0, 2**18, 2**21, LIMIT, 2**45])
@pytest.mark.parametrize(
    "given",
    [
        {"m": 300, "n": 500, "k": 700}, {"m": 64, "n": 520, "k": 16384, "dtype": "float32"},
        {"m": 70, "n": 73, "k": 1330, "dtype": "float32", "precision": "tf32"},
        {"m": 2048, "n": 1024, "k": 4096, "dtype": "float32", "activation": "gelu"},
        {"m": 1030, "n": 520, "k": 8192, "out": "float32"}, {"m": 20000, "n": 20000, "k": 96, "batch": (40,)},
        {"m": 24, "n": 30, "k": 2048, "batch": (3000,)}, {"m": 2**21, "n": 2**21, "k": 64},
        {"m": 8192, "n": 8192, "k": 40000, "dtype": "float32"},
        {"m": 512, "n": 512, "k": 512, "dtype": "float32", "packed_by": "hopper"},
    ],
)  # fmt: skip
def test_what_runs_is_found_for_all_at_once(given, limit, monkeypatch):
    """It is what is found one by one, for every shape and number of splits that is considered."""
    seen = set()
    real = choose._runnable

    def checked(choices, rows, numbers, blocks, count, workspace):
        runs = real(choices, rows, numbers, blocks, count, workspace)
        listed = [(form, shape) for form, some in zip(rows.forms, rows.lists) for shape in some]
        for i, number in enumerate(numbers.tolist()):
            lowering = choices.lowering.lowerings[choices.lowering.which[i]]
            passes = runnable(Choice(lowering, listed[number][1], int(choices.splits[i])), workspace)
            assert runs[i] == (not isinstance(passes, str)), passes
            assert not runs[i] or (blocks[i], count[i]) == (passes.k_blocks, passes.count)
            seen.add(bool(runs[i]))
        return runs

    monkeypatch.setattr(choose, "_runnable", checked)
    for some in choose.by_scheme(lower.lowerings(problem(**given))):
        choose.ranked(some, H200, limit)
    assert seen or limit < LIMIT


def test_equal_estimates_keep_the_order_of_the_lowerings():
    """A square product of square tiles is as fast with swapped operands: then it is computed as it is."""
    lowerings = tuple(x for x in lower.lowerings(problem(4096, 4096, 4096, b="col")) if not x.form.registers_a)
    found = {}
    for x in choose.ranked(lowerings, H200, LIMIT):
        found.setdefault((x.seconds, x.choice.shape, x.choice.splits), []).append(x.choice.lowering.swapped)
    both = [swapped for swapped in found.values() if len(swapped) == 2]
    assert len(both) > 10
    assert all(swapped == [False, True] for swapped in both)


def test_nothing_can_be_run():
    """Candidates that need no copies are chosen where the workspace has no room for copies."""
    assert choose.ranked(lower.lowerings(problem(300, 500, 70)), H200, 0) == []


@settings(deadline=None, max_examples=50)
@given(m=st.integers(1, 700), n=st.integers(1, 90), k=st.integers(0, 300), batch=st.sampled_from([(), (3,)]))
def test_every_choice_can_run(m, n, k, batch):
    found = chosen(m, 8 * n, 8 * k, batch=batch)
    assert found
    names = [choice.name for _, choice in found]
    assert len(set(names)) == len(names)
    for seconds, choice in found:
        assert seconds > model.LAUNCH
        assert not isinstance(runnable(choice, LIMIT), str)
        rows, columns = choice.tiles
        shape, lowering = choice.shape, choice.lowering
        assert rows * shape.m * shape.cluster_m >= lowering.m
        assert columns * shape.n * shape.cluster_n >= lowering.n
        assert 1 <= choice.splits <= lowering.k_blocks
        assert choice.grid(H200) % shape.cluster_size == 0
        assert 0 < choice.grid(H200) <= 132
        assert choice.group(H200) >= 1


def test_float32_is_faster_than_ordinary_instructions():
    """51 TFLOPS are what those reach; six products of bfloat16 make 130 at best, three of float16 twice as many."""
    for kind, most in (("split", 165e12), ("f16x3", 330e12)):
        for m, n, k in ((8192, 8192, 8192), (4096, 4096, 1024)):
            lowerings = tuple(x for x in lower.lowerings(problem(m, n, k, dtype="float32")) if x.form.input == kind)
            seconds, choice = choose.choices(lowerings, H200, LIMIT)[0]
            assert choice.shape.m * choice.shape.n >= 128 * 128
            assert 60e12 < 2 * m * n * k / seconds < most


def test_a_small_workspace_costs_time():
    lowerings = lower.lowerings(problem(2048, 2048, 8192, dtype="float32"))
    times = [choose.choices(lowerings, H200, limit)[0][0] for limit in (2**21, 2**24, 2**28, 2**32)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[1] > times[2] == times[3]


def test_epilogues_take_time():
    """An addend costs little more than its bytes, as TMA's loads of operands do."""
    plain = chosen(2744, 4064, 520)[0][0]
    gelu, addend = (
        chosen(2744, 4064, 520, **more)[0] for more in ({"activation": "gelu"}, {"c": problem(2744, 4064, 520).out})
    )
    assert plain < min(gelu[0], addend[0])
    assert addend[0] < plain + 3 * (2744 * 4064 * 2) / H200.bandwidth


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_eight_bits_take_about_half_of_the_time(dtype):
    """Estimates are by arithmetic; power limits the clock of large products. Few rows are the kernel's n."""
    for sizes in ((4096, 7168, 16384), (16, 8192, 8192)):
        half, eight = (
            choose.timed(lower.lowerings(problem(*sizes, x, "float32", b="col")), H200, 2**30)[0]
            for x in ("bfloat16", dtype)
        )
        assert 0.5 < eight[0] / half[0] < 0.65
        assert eight[1].lowering.swapped == (sizes[0] == 16)
