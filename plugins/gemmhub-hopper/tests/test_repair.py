"""Infinities and NaNs in each kernel that recomputes sums: results, and how many inner products they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.variants.config import Shape
from products import SPLIT, Product
from runs import Run
from test_float32 import data

pytestmark = pytest.mark.emulator

SMS = {"attributes": {16: 32}}  # of all splits of all tiles at once
R = {"registers": True}
S = {"registers": True, "split_planes_b": True}
M, N, K = 72, 68, 384
LEAST = Product(SPLIT, M, N, K, dtype="float32")
# fmt: off
PRODUCTS = {
    "planes": LEAST,
    "planes, swapped": replace(LEAST, swapped=True, a="col"),
    "planes, splits": replace(LEAST, splits=2),
    "planes, slices": replace(LEAST, splits=6),
    "registers": replace(LEAST, **R),
    "registers, contiguous along M": replace(LEAST, a="col", b="col", **R),
    "registers, splits": replace(LEAST, splits=2, **R),
    "registers, slices": replace(LEAST, splits=6, **R),
    "b split": replace(LEAST, **S),
    "b split, two consumers": replace(LEAST, shape=Shape(128, 32, 2), **S),
    "b split, shared K": replace(LEAST, shape=Shape(64, 32, 3, consumers=1, cluster_k=2), **S),
    "b split, splits": replace(LEAST, splits=2, **S),
    "b split, slices": replace(LEAST, splits=6, **S),
    "rejected": replace(LEAST, dtype="f16x3"),
    "rejected, rescaled": replace(LEAST, dtype="f16x3", shape=Shape(128, 48, 9), **R),
}
# fmt: on
INF, NAN = np.float32(np.inf), np.float32(np.nan)


def nan_in_a(a, b):
    a[5, 300] = NAN


def nan_in_b(a, b):
    b[300, 6] = NAN


def nans_in_both(a, b):
    a[5, 17] = b[300, 6] = b[0, 40] = NAN


def nans_in_many_rows(a, b):
    a[[0, 3, 8, 11, 15, 64, 71], [3, 383, 0, 200, 31, 32, 9]] = NAN


def only_nans_in_a(a, b):
    a[:] = NAN


def only_nans_in_b(a, b):
    b[:] = NAN


def a_nan_with_no_leading_bits(a, b):
    """Truncated to bfloat16 it is infinite."""
    a[5, 17] = np.array(0x7F800001, np.uint32).view(np.float32)


def an_infinity_in_a(a, b):
    a[5, 100] = -INF
    b[100, :4] = 0, -0.0, 1e-30, -1e-30


def an_infinity_in_b(a, b):
    b[100, 5] = INF
    a[:4, 100] = 0, -0.0, 1e-30, -1e-30


def infinities_at_one_k(a, b):
    a[5, 100], b[100, 7] = INF, -INF


def infinities_at_two_k(a, b):
    a[5, 100], b[300, 7:9] = INF, (INF, -INF)


def an_infinity_in_a_and_a_nan_in_b(a, b):
    a[5, 100], b[300, 7] = INF, NAN


def an_infinity_in_b_and_a_nan_in_a(a, b):
    a[5, 300], b[100, 0] = NAN, INF  # the first column: nothing is known of the row before


def infinities_of_two_signs_far_apart(a, b):
    """What stops at the first element of the row has not seen all of it."""
    a[5, 10], a[5, 383], b[10, 0] = INF, INF, 0
    a[9, 10], a[9, 300] = INF, -INF


def infinities_near_each_other(a, b):
    a[5, 10], a[5, 20] = INF, -INF


def rows_unlike_each_other(a, b):
    """Of one warp, and of one lane."""
    a[[5, 6, 13], 100], a[[6, 13], 300] = INF, -INF


def columns_unlike_each_other(a, b):
    """Of one warp, and of one lane."""
    b[100, [8, 9, 10]], b[300, [9, 10]] = INF, -INF


def a_nan_after_an_infinity(a, b):
    a[5, 10], a[5, 300], a[6, 10], a[6, 11] = INF, NAN, INF, NAN
    a[7, 10], b[300, 9] = INF, NAN


def rows_of_infinities_by_positive_numbers(a, b):
    a[[5, 6]] = INF
    np.abs(b, out=b)


def rows_of_infinities_by_others(a, b):
    a[5:20] = INF


def sums_that_overflow(a, b):
    np.abs(b, out=b)
    a[5], b[:, 7] = 2e38, 1e3
    a[6], a[7, 4] = -2e38, INF


def an_infinity_beside_large_elements(a, b):
    b *= np.float32(1000)
    a[5, 100] = INF
    b[100, :2] = 0


def an_infinity_beside_subnormal_elements(a, b):
    a[5, 100], b[:, 3] = INF, 1e-40


def an_infinity_beside_lossy_elements(a, b):
    a[:, 3:9], b[:, 3:9] = 2.0**-135, 2.0**90
    a[5, 100] = INF


CASES = (
    nan_in_a, nan_in_b, nans_in_both, nans_in_many_rows, only_nans_in_a, only_nans_in_b, a_nan_with_no_leading_bits,
    an_infinity_in_a, an_infinity_in_b, infinities_at_one_k, infinities_at_two_k, an_infinity_in_a_and_a_nan_in_b,
    an_infinity_in_b_and_a_nan_in_a,
    infinities_of_two_signs_far_apart, infinities_near_each_other, rows_unlike_each_other,
    columns_unlike_each_other, a_nan_after_an_infinity, rows_of_infinities_by_positive_numbers,
    rows_of_infinities_by_others, sums_that_overflow,
    an_infinity_beside_large_elements, an_infinity_beside_subnormal_elements, an_infinity_beside_lossy_elements,
)  # fmt: skip


def operands(case, seed=0):
    a, b = data("normal", M, N, K, seed)
    case(a, b)
    return a, b


def exact(a, b):
    """In float64, without BLAS: (sums, sums of magnitudes)."""
    with np.errstate(invalid="ignore"):
        products = a.T[:, :, None].astype(np.float64) * b[:, None, :]
        return products.sum(0), np.abs(products).sum(0)


def wrong(result, a, b):
    """Which elements are: special values are equal, others within an error that float32 has."""
    sums, magnitudes = exact(a, b)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = sums.astype(np.float32)
        close = np.abs(result - sums) <= 2.0**-20 * magnitudes + 2.0**-120
    return ~((result == expected) | (np.isnan(result) & np.isnan(expected)) | (np.isfinite(expected) & close))


def multiply(product, a, b, home=None):
    run = Run(product, home or Home(**SMS))
    run.give(a, b)
    return run()


@pytest.mark.parametrize("name", PRODUCTS, ids=lambda name: name.replace(", ", "-").replace(" ", "-"))
def test_values(name):
    home = Home(**SMS)
    run = Run(PRODUCTS[name], home)
    for case in CASES:
        a, b = operands(case)
        run.give(a, b)
        assert not wrong(run(), a, b).any(), case.__name__
        if run.product.passes.nbytes:
            assert home.counters_are_clear()
    assert home.cuda.complaints == []


# --- how many inner products they take --------------------------------------------------------------------------

COUNTED = "if (lane_id() == lane) sum = exact.sum,", "if (lane_id() == lane) sum = 77.0f,"
"""Elements that are inner products come out as 77."""
WARPS = 4
"""Warps of 16 rows, of which each computes for itself."""


@pytest.mark.parametrize(
    ("case", "most"),
    [
        (nan_in_a, 1),  # a row of a warp, in each tile
        (nan_in_b, WARPS),
        (nans_in_both, 1 + 2 * WARPS),
        (only_nans_in_a, 64),
        (only_nans_in_b, 64 * WARPS),
        (an_infinity_in_a, 5),  # stopped by what is 0
        (an_infinity_in_b, 5 * WARPS),  # of each warp those of rows that are 0 there, and another
        (rows_of_infinities_by_others, 100),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
@pytest.mark.parametrize("name", ["planes", "registers", "b split"])
def test_few_inner_products(name, case, most, monkeypatch, tmp_path):
    """A row or a column needs one, not one for each element. Here the tile is 64 x 64."""
    home = mutated(monkeypatch, tmp_path, "repair.cuh", COUNTED, **SMS)
    a, b = operands(case)
    result = multiply(PRODUCTS[name], a, b, home)[:64, :64]
    assert 0 < (result == 77).sum() <= most


def test_infinities_are_not_large(monkeypatch, tmp_path):
    """Beside elements that lose bits, all sums of the tile would be computed anew."""
    home = mutated(monkeypatch, tmp_path, "repair.cuh", COUNTED, **SMS)
    a, b = operands(an_infinity_beside_subnormal_elements)
    assert (multiply(PRODUCTS["planes"], a, b, home) == 77).sum() == 2


# --- mistakes ---------------------------------------------------------------------------------------------------

# fmt: off
MUTATIONS = {
    "a row that was not read to its end": ("planes", infinities_of_two_signs_far_apart, "repair.cuh", (
        ("stopped ? Span::UNKNOWN : ~warp_min(~product.a.end)", "~warp_min(~product.a.end)"),)),
    "a long row": ("registers", infinities_of_two_signs_far_apart, "repair.cuh", (
        ("(end != UNKNOWN && end - begin() <= 32)", "true"),)),
    "an infinity taken for NaN": ("planes", an_infinity_in_a, "repair.cuh", (
        ("(first & INFINITE) == 0", "first != UNKNOWN"),)),
    "a column without marks": ("planes", an_infinity_in_a_and_a_nan_in_b, "repair.cuh", (
        ("return (*b_word(p, column, at.batch) & NOT_FINITE) == 0;", "return true;"),)),
    "a row without marks": ("planes", an_infinity_in_b_and_a_nan_in_a, "repair.cuh", (
        ("return (*a_word(p, row, at.batch) & NOT_FINITE) == 0;", "return true;"),)),
    "a row split by consumers without marks": ("registers", an_infinity_in_b_and_a_nan_in_a, "repair.cuh", (
        ("*p.b_marks != 0) && (a & LARGE) == 0", "*p.b_marks != 0)"),)),
    "b split by consumers without marks": ("b split", an_infinity_in_a_and_a_nan_in_b, "repair.cuh", (
        ("return (a >> 2 & LARGE) == 0;", "return true;"),)),
    "the column before": ("planes", an_infinity_in_a_and_a_nan_in_b, "repair.cuh", (("of_column = Span();", ""),)),
    "the other row": ("registers", rows_unlike_each_other, "repair.cuh", (
        ("rows[0] = rows[1], rows[1] = of_row;", "rows[0] = of_row;"),)),
    "another row": ("registers", rows_unlike_each_other, "repair.cuh", (
        ("lane_id() / 4 == lane / 4 && of_row.learn", "of_row.learn"),)),
    "another column": ("planes", columns_unlike_each_other, "repair.cuh", (
        ("lane_id() % 4 == lane % 4 && of_column.learn", "of_column.learn"),)),
    "the least finite of two signs": ("planes", infinities_near_each_other, "repair.cuh", (
        ("k < span.begin() + 32 && sum == sum", "k < span.begin() + 1 && sum == sum"),)),
}
# fmt: on


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_mistakes_are_noticed(mutation, monkeypatch, tmp_path):
    name, case, file, changes = MUTATIONS[mutation]
    a, b = operands(case)
    assert wrong(multiply(PRODUCTS[name], a, b, mutated(monkeypatch, tmp_path, file, *changes, **SMS)), a, b).any()
