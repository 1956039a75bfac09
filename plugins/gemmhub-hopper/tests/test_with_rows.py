"""Another number of rows of a prepared product: the kernel's arguments; nothing is compiled or ranked for it."""

from __future__ import annotations

import random

import pytest
from fake_cuda import FakeCuda
from fakes import Home
from gemmhub_hopper.cost import choose
from gemmhub_hopper.launches import launch
from gemmhub_hopper.lowering import lower
from gemmhub_hopper.variants.config import ACTIVATIONS
from problems import bias, operand, problem

from gemmhub.buckets import end

LARGE = 2**30


@pytest.fixture
def backend(monkeypatch):
    """One of a machine with as many SMs as a card: nothing is launched."""
    monkeypatch.setattr(FakeCuda, "card", {**FakeCuda.card, 16: 132})
    return Home().backend()


def drawn(rng):
    """Return a random problem, most of whose operands have rows one after the other."""
    dtype = rng.choice(["bfloat16", "float16", "float32"])
    m, n, k = (rng.choice([2, 8, 31, 33, 64, 100, 257, 1000, 4096]) for _ in range(3))
    orders = {x: rng.choice(["row", "row", "row", "col"]) for x in "abd"}
    more = {}
    if rng.random() < 0.3:
        more["bias"] = bias(dtype, rng.choice("mn"))
    if rng.random() < 0.3:
        more["activation"] = rng.choice(ACTIVATIONS)
    if rng.random() < 0.2:
        more["alpha_is_one"] = False
    if rng.random() < 0.2:
        more["c"] = operand(dtype, m, n, orders["d"])
    if dtype == "float32" and rng.random() < 0.4:
        more["precision"] = rng.choice(["tf32", "bf16x3"])
    return problem(m, n, k, dtype, **orders, **more)


def by_scheme(asked):
    lowerings = lower.lowerings(asked)
    assert isinstance(lowerings, tuple), lowerings
    return {(x.form.letters, x.swapped): x for x in lowerings}


@pytest.mark.parametrize("seed", range(60))
def test_the_lowering_is_that_of_the_problem_with_these_rows(seed):
    rng = random.Random(seed)
    asked = drawn(rng)
    for rows in (asked.m - 1, asked.m + 1, 2 * asked.m, 33, 64):
        if rows < 1:
            continue
        fresh = by_scheme(asked.with_rows(rows)) if all_rows(asked, rows) else {}
        for scheme, lowering in by_scheme(asked).items():
            made = lower.with_rows(lowering, rows)
            if made is not None:
                assert made == fresh[scheme]


def all_rows(asked, rows):
    """Whether the problem with these rows may exist: columns of a column-major operand do not overlap."""
    tall = [x.layout for x in (asked.a, asked.out, asked.c) if x is not None]
    return all(x.order == "row" or rows <= x.col_stride for x in tall)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_scheme_of_rows_one_after_the_other_has_it(dtype):
    for lowering in by_scheme(problem(1000, 4096, 4096, dtype)).values():
        assert lower.with_rows(lowering, 1001) is not None


@pytest.mark.parametrize(
    "asked",
    [
        problem(1000, 64, 64, a="col"), problem(1000, 64, 64, d="col"), problem(1, 64, 64), problem(1000, 64, 0),
        problem(1000, 64, 64, batch=(3,)),
    ],
    ids=str,
)  # fmt: skip
def test_others_have_none(asked):
    assert not [x for x in by_scheme(asked).values() if lower.with_rows(x, 999)]


def test_few_rows_are_of_other_schemes():
    for m, rows in ((31, 33), (33, 31)):
        made = [x for x in by_scheme(problem(m, 512, 512, "float32")).values() if x.form.input == "f16x3"]
        assert made
        assert not [x for x in made if lower.with_rows(x, rows)]


def prepared(backend, asked, name):
    kernel = backend.prepare(asked, name, LARGE)
    assert kernel.with_rows is not None
    return kernel


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_nothing_is_compiled_or_ranked_for_rows_of_the_bucket(backend, monkeypatch, dtype):
    asked = problem(1000, 4096, 4096, dtype)
    for name in backend.offer(asked).names:
        kernel = prepared(backend, asked, name)
        loaded = set(backend.machine.kernels._functions)
        with monkeypatch.context() as patch:
            patch.setattr(choose, "timed", None)
            patch.setattr(lower, "one_by_one", None)
            for rows in (993, 999, 1000, 1001, 1024):
                assert end(rows) == end(1000)
                assert kernel.with_rows(rows) is not None, (name, rows)
        assert set(backend.machine.kernels._functions) == loaded


@pytest.mark.parametrize("name", ["128x256x4", "128x128x6pt", "64x64x12t"])
@pytest.mark.parametrize("rows", [993, 1000, 1024])
def test_the_launch_is_that_of_the_problem_with_these_rows(backend, name, rows):
    """Every word of the kernel's arguments, and the grid."""
    asked = problem(1000, 4096, 4096)
    made = []

    def watched(self, *given):
        made.append(self)
        init(self, *given)

    init = launch.Launch.__init__
    launch.Launch.__init__ = watched
    try:
        assert prepared(backend, asked, name).with_rows(rows) is not None
        prepared(backend, asked.with_rows(rows), name)
    finally:
        launch.Launch.__init__ = init
    ours, wanted = (x.gemm.slot() for x in made[1:])
    assert bytes(ours.grid) == bytes(wanted.grid)
    assert bytes(ours.arguments) == bytes(wanted.arguments)


def test_a_workspace_that_is_too_small_for_more_rows(backend):
    asked = problem(1000, 4096, 4096, "float32", a="row", b="row")
    name = next(x.name for x in backend.offer(asked).candidates if x.copies)
    nbytes = prepared(backend, asked, name).workspace_bytes
    kernel = backend.prepare(asked, name, nbytes)
    assert kernel.with_rows(1000) is not None
    assert kernel.with_rows(1024) is None
