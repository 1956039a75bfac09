"""Float32 by float16 planes that reject some rows or columns: only their tiles are computed by bfloat16 planes."""

from __future__ import annotations

from dataclasses import replace

import fake_cuda
import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.cost import choose
from gemmhub_hopper.lowering import f16_planes
from gemmhub_hopper.lowering.f16_planes import GROUP_ROWS
from gemmhub_hopper.variants.config import Shape
from products import SPLIT, Product
from runs import Run
from test_f16_planes import MANY_GROUPS, Watch, WatchedHome
from test_float32 import ratio

from gemmhub.errors import KernelError

pytestmark = pytest.mark.emulator

M, N, K = 200, 264, 136
SHAPES = {
    "parts of cells": SPLIT,
    "cells": Shape(128, 128, 3),
    "across cells": Shape(128, 96, 3),
    "cluster": Shape(128, 128, 3, cluster_m=2),
}
NAN, INF = np.float32(np.nan), np.float32(np.inf)


marked_groups = f16_planes.marked_groups


@pytest.fixture(autouse=True)
def _few_are_rejected(monkeypatch):
    """Let each tile be rejected for itself, however many are."""
    monkeypatch.setattr(f16_planes, "marked_groups", lambda _: MANY_GROUPS)


def operands(seed, batch=(), m=M, n=N):
    """Normal numbers of which none is small."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((*batch, *size), np.float32) for size in ((m, K), (K, n)))
    return tuple((x + np.copysign(np.float32(0.125), x)).astype(np.float32) for x in (a, b))


def spoil(a, b, a_values, b_values, rng):
    """Place values in rows of a and columns of b at random; return both with the groups that are rejected."""
    a, b = a.copy(), b.copy()
    rows, columns = rng.integers(0, M, len(a_values)), rng.integers(0, N, len(b_values))
    for value, row in zip(a_values, rows):
        a[row, rng.integers(K)] = value
    for value, column in zip(b_values, columns):
        b[rng.integers(K), column] = value
    return a, b, set(rows // GROUP_ROWS), set(columns // GROUP_ROWS)


def again(launch, rows, columns, swapped=False):
    """Return which elements the kernel by bfloat16 planes computes where these groups are rejected."""
    shape = launch._fallback._choice.shape
    height, width = shape.m * shape.cluster_m, shape.n * shape.cluster_n
    height, width = (width, height) if swapped else (height, width)
    cells = np.array([[i // GROUP_ROWS in rows or j // GROUP_ROWS in columns for j in range(N)] for i in range(M)])
    for i in range(0, M, height):
        for j in range(0, N, width):
            cells[i : i + height, j : j + width] = cells[i : i + height, j : j + width].any()
    return cells


def widen(monkeypatch):
    """Let the kernels by bfloat16 planes have tiles of 192 columns."""
    chosen = choose.by_bfloat16_planes
    wide = Shape(128, 192, 3)
    monkeypatch.setattr(choose, "by_bfloat16_planes", lambda *given: replace(chosen(*given), shape=wide))


def run_of(shape, home=None, **changes):
    return Run(Product(shape, M, N, K, dtype="f16x3", **changes), home or Home())


CASES = {
    "a NaN in a": ((NAN,), ()),
    "a NaN in b": ((), (NAN,)),
    "infinities in both": ((INF,), (-INF,)),
    "outliers in a": ((1e-30, 1e30), ()),
    "outliers in b": ((), (1e-30, 2e20)),
    "a NaN in one, an outlier in the other": ((1e-35,), (NAN,)),
}
# fmt: off
CHANGES = (
    {}, {"swapped": True, "a": "col"}, {"b": "col", "d": "col"}, {"splits": 2},
    {"alpha": 0.5, "bias": "n", "activation": "relu"},
)
# fmt: on


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda name: name.replace(" ", "-"))
def test_other_tiles_keep_their_bits(shape, case, monkeypatch):
    if shape == "across cells":
        widen(monkeypatch)
    rng = np.random.default_rng()
    run = run_of(SHAPES[shape])
    a, b = operands(rng.integers(2**31))
    x, y, rows, columns = spoil(a, b, *CASES[case], rng)
    accepted, result = run.of(a, b), run.of(x, y)
    assert ratio(result, x, y) <= 1
    redone = again(run.launch, rows, columns)
    assert (result == accepted)[~redone].all()
    assert run.home.counters_are_clear()
    assert (run.of(a, b) == accepted).all()


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_bits_of_both_kernels(changes, monkeypatch):
    """Rejected tiles have the bits of a product whose tiles are all computed by bfloat16 planes."""
    rng = np.random.default_rng()
    a, b = operands(rng.integers(2**31))
    x, y, rows, columns = spoil(a, b, (NAN,), (), rng)
    run = run_of(SPLIT, **changes)
    bias = run.values[3]
    accepted, result = run.of(a, b), run.of(x, y)
    monkeypatch.setattr("gemmhub_hopper.backend.by_tiles", lambda *_: False)
    whole = run_of(SPLIT, **changes)
    if bias is not None:
        whole.bias[:] = run.bias
    redone = again(run.launch, rows, columns, changes.get("swapped", False))
    assert np.array_equal(result, np.where(redone, whole.of(x, y), accepted), equal_nan=True)
    assert redone.any()
    assert not redone.all()


def skipped(home):
    """Whether float16 planes leave rows 128 to 199 as they were, and no others."""
    a, b = operands(4)
    a[150, 7] = NAN
    run = run_of(SPLIT, home)
    run.give(a, b)
    with Watch(home, run.out) as watch:
        assert ratio(run(), a, b) <= 1
    before = watch.states[2][: run.nbytes].view(np.float32).reshape(M, N)
    written = np.isfinite(before)
    assert written[:GROUP_ROWS].all()
    return not written[GROUP_ROWS:].any()


def test_rejected_tiles_are_computed_once(monkeypatch, tmp_path):
    assert skipped(Home())
    computes = "if (!some) return false;", "if (!some || kByFloat16) return false;"
    assert not skipped(mutated(monkeypatch, tmp_path, "rejected_tiles.cuh", computes))


LATE = 400_000
"""Fences of a warp until all other CTAs have ended."""


def late(monkeypatch, *changes):
    """Return a home where the first CTA, whose tiles are left to the other kernel, looks late by a warp."""
    looks = "    const LeftTiles left(p);"
    waits = f"if (p.redo & ONLY_REJECTED && blockIdx.x == 0 && threadIdx.x < 32) for (int i = 0; i < {LATE}; ++i)"
    files = ("gemm_kernel.cu", looks, f"    {waits} device_fence();\n{looks}"), *changes
    fake_cuda.KERNELS.changed(files)
    monkeypatch.setattr(fake_cuda, "CHANGES", files)
    return Home(attributes={16: 32})


def test_marks_are_not_cleared_before_all_have_looked(monkeypatch):
    a, b = operands(3)
    a[150, 20] = NAN
    run = run_of(SPLIT, late(monkeypatch))
    assert ratio(run.of(a, b), a, b) <= 1
    run = run_of(SPLIT, late(monkeypatch, ("rejected_tiles.cuh", "if (some) block_sync();", "")))
    run.give(a, b)
    with pytest.raises(KernelError):
        run()


def test_a_batch():
    """Groups of rows are those of each matrix."""
    a, b = operands(0, (3,))
    run = run_of(SPLIT, batch=(3,))
    accepted = run.of(a, b)
    a[1, 150, 7] = NAN
    result = run.of(a, b)
    redone = again(run.launch, {1}, set())
    assert (result[[0, 2]] == accepted[[0, 2]]).all()
    assert (result[1] == accepted[1])[~redone].all()
    assert np.isnan(result[1, 150]).all()
    assert np.isfinite(np.delete(result[1], 150, 0)).all()


def test_small_elements_of_both_operands_count_in_their_tile():
    """Each below float16's normal numbers by one power of two: only together they are too small for this k."""
    a, b = operands(1)
    run = run_of(SPLIT)
    results = {}
    for small_a, small_b in ((-28, -28), (-29, -28), (-28, -29), (-29, -29)):
        a[10], b[:, 200] = 0, 0
        a[10, :2], b[:2, 200] = (1, 2.0**small_a), (1, 2.0**small_b)
        results[small_a, small_b] = run.of(a, b)
        assert ratio(results[small_a, small_b], a, b) <= 1
        assert run.home.counters_are_clear()
    redone = again(run.launch, {0}, set()) & again(run.launch, set(), {1})
    same = np.ones((M, N), bool)
    same[10], same[:, 200] = False, False
    for small, result in results.items():
        equal = result == results[-28, -28]
        assert equal[same & ~redone].all()
        assert equal[same].all() == (small != (-29, -29))


@pytest.mark.parametrize(
    ("shape", "beta", "by_tiles"),
    [(SPLIT, 0, True), (SPLIT, 2, True), (SHAPES["across cells"], 0, True), (SHAPES["across cells"], 2, False)],
)
def test_c_is_added_once(shape, beta, by_tiles, monkeypatch):
    """C is the result. Where tiles of one kernel overlap several of the other one, the whole product is one of them."""
    if shape != SPLIT:
        widen(monkeypatch)
    run = run_of(shape, beta=beta)
    assert bool(run.launch._redo) == by_tiles
    if beta:
        a, b = operands(2)
        a[130, 3] = NAN
        c = np.random.default_rng(0).standard_normal((M, N), np.float32)
        run.give(a, b)
        memory = run.out[run.offset : run.offset + run.nbytes].view(np.float32).reshape(M, N)
        memory[:] = c
        address = memory.ctypes.data
        run.launch.run(run.a.ctypes.data, run.b.ctypes.data, address, 1, beta, 0, c=address)
        exact = a.astype(np.float64) @ b.astype(np.float64) + beta * c.astype(np.float64)
        rows = np.arange(M) != 130
        assert np.abs(memory - exact)[rows].max() <= 1e-4
        assert np.isnan(memory[130]).all()


ROWS = 1024
"""Of a product of which one group of rows may be rejected, and not two, where a is split in registers."""


def run_by_rows(home=None, **changes):
    return Run(Product(Shape(128, 48, 9), ROWS, 44, K, dtype="f16x3", registers=True, **changes), home or Home())


def operands_by_rows(seed):
    """Magnitudes from 1/8 to 4, which each row begins with: what is scaled for bfloat16 planes is the same for all."""
    rng = np.random.default_rng(seed)
    a, b = (rng.uniform(0.125, 3, size) * rng.choice((-1, 1), size) for size in ((ROWS, K), (K, 44)))
    a[:, 0] = 4
    return a.astype(np.float32), b.astype(np.float32)


@pytest.mark.parametrize("value", [NAN, -INF, 1e-30, 1e30], ids=str)
@pytest.mark.parametrize("changes", [{}, {"splits": 2}], ids=str)
def test_rows_that_are_split_in_registers(changes, value):
    """One group of rows takes tiles of its own; with two of them, all tiles do. Neither depends on time."""
    rng = np.random.default_rng()
    run = run_by_rows(**changes)
    a, b = operands_by_rows(rng.integers(2**31))
    accepted = run.of(a, b)
    rows = rng.permutation(ROWS // GROUP_ROWS)[:2] * GROUP_ROWS + rng.integers(GROUP_ROWS, size=2)
    x = a.copy()
    x[rows[0], rng.integers(1, K)] = value
    one = run.of(x, b)
    assert ratio(one, x, b) <= 1
    redone = np.arange(ROWS) // GROUP_ROWS == rows[0] // GROUP_ROWS
    assert (one == accepted)[~redone].all()
    assert run.home.counters_are_clear()
    y = x.copy()
    y[rows[1], rng.integers(1, K)] = value
    two = run.of(y, b)
    assert ratio(two, y, b) <= 1
    if value != 1e30:  # which is scaled
        assert np.array_equal(two[redone], one[redone], equal_nan=True)
    assert not (two == accepted)[~redone & (np.arange(ROWS) != rows[1])].all()
    assert np.array_equal(run.of(y, b), two, equal_nan=True)
    assert run.home.counters_are_clear()
    assert (run.of(a, b) == accepted).all()


def test_a_wrong_group_of_rows_is_noticed(monkeypatch, tmp_path):
    """An infinite element of planes makes NaN of what is infinite."""
    change = "a_word(p, TileCoord(work, ctx).row0, work.batch)", "a_word(p, 0, work.batch)"
    a, b = operands_by_rows(0)
    a[700, 9] = INF
    run = run_by_rows(mutated(monkeypatch, tmp_path, "f16_registers.cuh", change))
    run.give(a, b)
    assert not ratio(run(), a, b) <= 1


_TILES, _PREPASS = "rejected_tiles.cuh", "f16_prepass.cu"
_LEFT = "p.small_limit) == kByBfloat16) return "
_GROUPS = "n < column_end; n += GROUP_ROWS"
MUTATIONS = {
    "a tile that was rejected is skipped": (_TILES, f"{_LEFT}false;", f"{_LEFT}true;"),
    "the first cell alone is looked at": (_TILES, _GROUPS, "n <= column / GROUP_ROWS * GROUP_ROWS; n += GROUP_ROWS"),
    "columns have no marks": (_TILES, "load_word(b_word(p, n, work.batch))", "0u"),
    "rows have no marks": (_TILES, "= load_word(a_word(p, m, work.batch))", "= 0u"),
    "groups that are taken have no planes": (
        _PREPASS, "(load_word(group) & REJECTED) != 0;", "(load_word(job.marks) & REJECTED) != 0;"
    ),
    "groups of the wrong rows": (_PREPASS, "row0 / GROUP_ROWS)}", "0)}"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_mistakes_are_noticed(mutation, monkeypatch, tmp_path):
    """A NaN is in the last rows of a, and an infinity in the last columns of b."""
    file, *change = MUTATIONS[mutation]
    widen(monkeypatch)
    a, b = operands(3)
    a[180, 100], b[20, 260] = NAN, INF
    run = run_of(SHAPES["across cells"], mutated(monkeypatch, tmp_path, file, tuple(change)))
    run.give(a, b)
    assert not ratio(run(), a, b) <= 1


COPIES = {
    "rows beside a rejected one have no planes": (
        "row / span * span / GROUP_ROWS; group * GROUP_ROWS < (end < rows ? end : rows)",
        "row / GROUP_ROWS; group <= row / GROUP_ROWS",
    ),
    "rows that meet rejected columns have no planes": ("(load_word(other) & REJECTED)", "false"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", COPIES, ids=lambda name: name.replace(" ", "-"))
def test_rows_without_planes_are_noticed(mutation, monkeypatch, tmp_path):
    """By bits: sums of what is no plane are so large that they are recomputed."""
    widen(monkeypatch)
    a, b = operands(3)
    b[20, 260] = INF
    expected = run_of(SHAPES["across cells"]).of(a, b)
    run = run_of(SHAPES["across cells"], mutated(monkeypatch, tmp_path, "prepass.cu", COPIES[mutation]))
    assert not np.array_equal(run.of(a, b), expected, equal_nan=True)


def eight_groups(tall, value, groups):
    """Return operands of which a (or b) has eight groups; ``value`` is in so many of these."""
    rng = np.random.default_rng()
    m, n = (8 * GROUP_ROWS, 40) if tall else (40, 8 * GROUP_ROWS)
    a, b = operands(rng.integers(2**31), (), m, n)
    lines = a if tall else b.T
    for group in rng.permutation(8)[:groups]:
        for first in (0, GROUP_ROWS // 2):  # a CTA of the pre-pass each
            lines[group * GROUP_ROWS + first + rng.integers(GROUP_ROWS // 2), rng.integers(K)] = value
    return a, b


def multiply(a, b, home):
    """Return the product, and which kernels have computed tiles."""
    run = Run(Product(SPLIT, len(a), b.shape[1], K, dtype="f16x3"), home)
    run.give(a, b)
    with Watch(home, run.out) as watch:
        result = run()
    assert ratio(result, a, b) <= 1
    assert home.counters_are_clear()
    return result, watch.schemes


SMALL = 2.0**-33
"""Planes hold it exactly, but it is further below float16's normal numbers than k allows."""


@pytest.mark.parametrize("tall", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("value", [NAN, 1e-35, SMALL], ids=str)
def test_more_than_one_of_eight_groups_rejects_the_whole_product(value, tall, monkeypatch):
    monkeypatch.setattr(f16_planes, "marked_groups", marked_groups)
    home = WatchedHome()
    for groups, kernels in ((2, "split"), (1, "both"), (0, "f16x3"), (8, "split"), (1, "both")):
        assert multiply(*eight_groups(tall, value, groups), home)[1] == [kernels]


UNCOUNTED = {
    "the limit is ignored": (NAN, 2, "split_planes.cuh", "return MANY * (a", "return true || MANY * (a"),
    "the limit is lower": (NAN, 1, "split_planes.cuh", "constexpr int MANY = 8;", "constexpr int MANY = 9;"),
    "small elements do not count": (SMALL, 2, "f16_prepass.cu", "static_cast<int>(small) > p.half_limit", "false"),
    "each CTA counts": (SMALL, 1, "f16_prepass.cu", "mark_first(group, COUNTED))", "(mark(group, COUNTED), true))"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", UNCOUNTED, ids=lambda name: name.replace(" ", "-"))
def test_wrong_counts_are_noticed(mutation, monkeypatch, tmp_path):
    value, groups, file, *change = UNCOUNTED[mutation]
    monkeypatch.setattr(f16_planes, "marked_groups", marked_groups)
    mutated(monkeypatch, tmp_path, file, tuple(change))
    kernels = multiply(*eight_groups(True, value, groups), WatchedHome())[1]
    assert kernels == (["both"] if groups == 2 else ["split"])


def test_rows_are_split_where_all_tiles_are_computed(monkeypatch, tmp_path):
    """The pre-pass by bfloat16 planes decides as the kernels do: else sums of what is no plane are computed again."""
    monkeypatch.setattr(f16_planes, "marked_groups", marked_groups)
    a, b = eight_groups(True, NAN, 2)
    expected = multiply(a, b, WatchedHome())[0]
    change = "if (!few_rejected(p.a_marks, p.b_marks, p.marked_groups)) return true;", ""
    mutated(monkeypatch, tmp_path, "prepass.cu", change)
    assert not np.array_equal(multiply(a, b, WatchedHome())[0], expected, equal_nan=True)
