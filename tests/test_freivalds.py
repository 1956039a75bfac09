"""Sums of integer products: a wrong row is found for any errors."""

from __future__ import annotations

import numpy as np
import pytest

from gemmhub import dtypes
from gemmhub._check import freivalds
from gemmhub._check import spot_check as verify
from gemmhub._check.spot_check import spot_check

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.fixture
def always_sums(monkeypatch):
    """Small products are not simply recomputed."""
    monkeypatch.setattr(verify, "_RECOMPUTE", 0)


def product(rng, name, shape=(40, 24, 56), full=True):
    """Operands of a dtype, over its whole range or small, and their product modulo the width of the result."""
    m, k, n = shape
    dtype = np.dtype(name)
    limits = np.iinfo(dtype) if full else np.iinfo(np.int8 if dtype.kind == "i" else np.uint8)
    a, b = (rng.integers(limits.min, limits.max, s, dtype, endpoint=True) for s in ((m, k), (k, n)))
    out = dtypes.result_dtype(dtype, dtype)
    return a, b, (a.astype(np.int64) @ b.astype(np.int64)).astype(out)


def unsigned(c):
    return c.view(f"u{c.itemsize}")


def flipped(c, where, bit):
    """A copy of c, in which one bit of some elements is wrong; ``bit`` counts from the top."""
    wrong = c.copy()
    unsigned(wrong)[where] ^= unsigned(wrong).dtype.type(1 << (8 * c.itemsize - 1 - bit))
    return wrong


ERRORS = {
    "a row": np.s_[7],
    "a column": np.s_[:, 9],
    "a pair in a row": np.s_[5, [3, 41]],
    "two equal rows": np.s_[[4, 11]],
    "a block": np.s_[8:16, 16:32],
    "everything": np.s_[:],
    "every second element": np.s_[::2, ::2],
    "one element": np.s_[39, 55],
}


@pytest.mark.parametrize("errors", ERRORS)
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("full", [True, False])
def test_even_numbers_of_errors_do_not_cancel(name, errors, full, always_sums, rng):
    """With odd weights alone, 2**(bits - 1) times an even number of them is 0 for every draw."""
    a, b, c = product(rng, name, full=full)
    for seed in range(2):
        verdict = spot_check(a, b, c, seed=seed)
        assert verdict, str(verdict)
        for bit in (0, 1, 8 * c.itemsize - 1):
            wrong = flipped(c, ERRORS[errors], bit)
            verdict = spot_check(a, b, wrong, seed=seed)
            assert not verdict
            assert wrong[verdict.where] != c[verdict.where]


@pytest.mark.parametrize("name", INTEGERS)
def test_errors_that_add_up_to_nothing_are_found(name, always_sums, rng):
    """Two that cancel in the sum of the row, and many random ones that do."""
    a, b, c = product(rng, name)
    for seed in range(4):
        wrong = c.copy()
        unsigned(wrong)[3:4, 5:6] += unsigned(wrong).dtype.type(7)
        unsigned(wrong)[3:4, 50:51] -= unsigned(wrong).dtype.type(7)
        assert not spot_check(a, b, wrong, seed=seed)
        errors = rng.integers(0, 2**8, c.shape[1]).astype(unsigned(c).dtype)
        errors[-1:] -= errors.sum(dtype=errors.dtype)
        wrong = c.copy()
        unsigned(wrong)[20] += errors
        assert spot_check(a, b, wrong, seed=seed).where[0] == 20


@pytest.mark.parametrize("bits", [8, 32, 64])
def test_a_vector_misses_half_of_the_worst_errors_and_all_together_none(bits, rng):
    """Each sum of a row with errors in the top bit is 0 for half of the draws: the bound 2**-VECTORS is attained."""
    out = np.dtype(f"u{bits // 8}")
    a, b = np.zeros((2000, 1), out), np.zeros((1, 16), out)
    c = np.zeros((2000, 16), out)
    c[:, ::2] = 1 << (bits - 1)
    found = freivalds.exact_sketch(a, b, c, bits, rng)
    assert len(found.wrong) == 2000
    assert found.sums == 2000 * freivalds.VECTORS
    misses = 0
    vectors, freivalds.VECTORS = freivalds.VECTORS, 1
    try:
        for _ in range(200):
            misses += not len(freivalds.exact_sketch(a[:1], b, c[:1], bits, rng).wrong)
    finally:
        freivalds.VECTORS = vectors
    assert 60 < misses < 140


def test_the_reported_product():
    """A whole wrong row of a (4000, 64) @ (64, 512) product, the error in the top bit."""
    rng = np.random.default_rng(0)
    for dtype, top in ((np.uint32, 2**31), (np.int64, -(2**63))):
        a, b = rng.integers(0, 100, (4000, 64)).astype(dtype), rng.integers(0, 100, (64, 512)).astype(dtype)
        c = a @ b
        verdict = spot_check(a, b, c, seed=0)
        assert verdict.method == "freivalds"
        assert "2**-32" in verdict.reason
        c[7] ^= dtype(top)
        for seed in range(3):
            assert spot_check(a, b, c, seed=seed).where[0] == 7


@pytest.mark.parametrize("out", [np.float32, np.float64])
def test_integers_with_a_floating_result_are_compared_exactly_where_it_holds_them(out, always_sums, rng):
    a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((30, 200), (200, 40)))
    c = (a.astype(np.int64) @ b.astype(np.int64)).astype(out)
    verdict = spot_check(a, b, c, seed=0)
    assert verdict
    assert verdict.detects == 0.0
    for error in (1, -1, 0.5, np.inf, np.nan, 2**32, 2**40):
        wrong = c.copy()
        wrong[4, 6] += out(error)
        wrong[4, 9] -= out(error)
        assert spot_check(a, b, wrong, seed=0).where in ((4, 6), (4, 9)), error


def test_wrapped_sums_in_float64_are_compared_exactly(always_sums):
    """Sums of 8-bit integers wrap in int32, and float64 holds all of those."""
    a, b = np.full((8, 40000), 255, np.uint8), np.full((40000, 8), 255, np.uint8)
    c = np.full((8, 8), 40000 * 255 * 255 - 2**32, np.float64)
    verdict = spot_check(a, b, c, seed=9)
    assert verdict
    assert verdict.detects == 0.0
    c[3, 4] += 2.0**32
    assert spot_check(a, b, c, seed=9).where == (3, 4)


def test_operands_in_any_order(always_sums, rng):
    a, b, c = product(rng, "int64")
    assert spot_check(np.asfortranarray(a), b.T.copy().T, np.asfortranarray(c), seed=0)
    wrong = np.asfortranarray(flipped(c, 5, 0))
    assert spot_check(np.asfortranarray(a)[::-1], np.asfortranarray(b), wrong[::-1], seed=0).where[0] == 40 - 1 - 5


# Products without sums: of booleans, and of 8-bit integers that wrap before they are rounded to float32


def without_sums(rng, name, m=2000, k=70, n=1500):
    """Operands, and a product that is large enough to be sampled."""
    if name == "bool":
        a, b = rng.random((m, k)) < 0.1, rng.random((k, n)) < 0.1
        return a, b, a @ b
    a, b = np.full((m, 140_000), -128, np.int8), np.full((140_000, n), 127, np.int8)
    a[:, ::2] += rng.integers(0, 2, (m, 70_000), np.int8)
    c = (np.matmul(a, b, dtype=np.float64)).astype(np.int64).astype(np.int32).astype(np.float32)
    return a, b, c


@pytest.mark.parametrize("shape", [(2000, 70, 1500), (40, 3000, 3000), (3000, 3000, 40), (1, 3000, 3000)], ids=str)
@pytest.mark.parametrize("lines", ["row", "column"])
def test_a_wholly_wrong_line_of_booleans_is_always_found(shape, lines, rng):
    a, b, c = without_sums(rng, "bool", *shape)
    right = spot_check(a, b, c)
    assert right
    assert right.method == "sampled"
    for _ in range(40):
        wrong = c.copy()
        line = np.s_[rng.integers(c.shape[0])] if lines == "row" else np.s_[:, rng.integers(c.shape[1])]
        wrong[line] = ~wrong[line]
        found = spot_check(a, b, wrong)
        assert not found
        assert wrong[found.where] != c[found.where]


def test_a_line_of_booleans_of_which_half_is_wrong_is_found(rng):
    a, b, c = without_sums(rng, "bool")
    for _ in range(60):
        wrong, line = c.copy(), rng.integers(1500)
        half = rng.permutation(1500)[:750], rng.permutation(2000)[:1000]
        wrong[line, half[0]] ^= True
        assert not spot_check(a, b, wrong)
        wrong = c.copy()
        wrong[half[1], line] ^= True
        assert not spot_check(a, b, wrong)


def test_the_stated_chance_of_a_single_wrong_boolean_is_the_true_one(rng):
    a, b, c = without_sums(rng, "bool", 300, 200, 200)
    told = spot_check(a, b, c).reason
    assert "a row or a column of which half is wrong would have been seen but for a chance of 2**-32" in told
    stated = float(told.rpartition("chance of ")[2])
    assert stated == pytest.approx(1 - (1 - 32 / 300) * (1 - 32 / 200), abs=0.01)
    found, draws = 0, 400
    for _ in range(draws):
        wrong, where = c.copy(), (rng.integers(300), rng.integers(200))
        wrong[where] ^= True
        found += not spot_check(a, b, wrong)
    assert abs(found / draws - stated) < 5 * np.sqrt(stated * (1 - stated) / draws)


def test_a_batch_of_booleans_is_seen_in_each_matrix(rng):
    a, b = rng.random((3, 300, 200)) < 0.1, rng.random((3, 200, 200)) < 0.1
    c = a @ b
    assert spot_check(a, b, c)
    for batch in range(3):
        wrong = c.copy()
        wrong[batch, 7] ^= True
        assert spot_check(a, b, wrong).where[0] == batch


def test_integers_that_wrap_before_they_are_rounded_are_seen_by_lines(rng):
    a, b, c = without_sums(rng, "int8", 40, 0, 50)
    right = spot_check(a, b, c)
    assert right
    assert "half is wrong" in right.reason
    c[7] += 1024
    assert spot_check(a, b, c).where[0] == 7
