"""float32 at float32's accuracy: errors compared with an SGEMM and the library's bound, and special values."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.variants.config import Shape
from gemmhub_nvidia.scratch import COUNTERS
from products import SPLIT, Product
from runs import HOME, Run

from gemmhub.accuracy import error_model, reference

pytestmark = pytest.mark.emulator

F32 = np.dtype(np.float32)
MODEL = error_model(F32, F32, F32, F32)


def multiply(x, y, home=HOME, **changes):
    """Return the product on the emulator, which must report no fault."""
    product = Product(changes.pop("shape", SPLIT), x.shape[0], y.shape[1], x.shape[1], dtype="float32", **changes)
    return Run(product, home).of(x, y)


def sgemm(a, b):
    """What an SGEMM computes: one sum in order of k, each multiplication and addition rounded once."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = (total + a[:, k, None].astype(np.float64) * b[k].astype(np.float64)).astype(np.float32)
    return total


def errors(result, a, b):
    """The largest error relative to |A| |B|."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.max(np.abs(result - a @ b) / (np.abs(a) @ np.abs(b)))


def ratio(result, a, b):
    """The largest error as a fraction of the library's bound."""
    return np.max(reference(a, b, model=MODEL).ratio(result))


def data(kind, m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    if kind == "positive":  # every truncation goes the same way
        return abs(a), abs(b)
    if kind == "wide":
        return tuple((x * 2.0 ** rng.integers(-30, 30, x.shape)).astype(np.float32) for x in (a, b))
    if kind == "cancelling":  # the second half takes away the first, but for its last bits
        half = k // 2
        a[:, half : 2 * half] = -a[:, :half] * (1 + 2.0**-22 * rng.integers(-2, 3, (m, half))).astype(np.float32)
        b[half : 2 * half] = b[:half]
    if kind == "worst":  # what is rounded away of each plane is as large as can be
        return tuple((np.sign(x) * (1 + 2.0**-8 - 2.0**-16 - 2.0**-17 + 2.0**-23)).astype(np.float32) for x in (a, b))
    return a, b


@pytest.mark.parametrize(
    ("kind", "m", "n", "k"),
    [
        ("normal", 64, 64, 512),
        ("positive", 64, 64, 512),
        ("wide", 64, 64, 512),
        ("cancelling", 64, 64, 512),
        ("worst", 64, 64, 200),
        ("normal", 64, 64, 4096),
        ("positive", 8, 64, 4096),
    ],
)
def test_errors_compared_with_an_sgemm(kind, m, n, k):
    """Four times the errors of an SGEMM are allowed. The emulator's tensor cores truncate, as long sums show."""
    a, b = data(kind, m, n, k)
    result = multiply(a, b)
    assert errors(result, a, b) <= 1.5 * errors(sgemm(a, b), a, b) + 2.0**-24
    assert ratio(result, a, b) <= 0.6


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 17])
def test_short_sums(k):
    """The bound of k + 2 roundings is tightest here."""
    for kind in ("normal", "worst"):
        a, b = data(kind, 64, 64, k)
        assert ratio(multiply(a, b), a, b) <= 1


# fmt: off
MUTATIONS = {
    "no sum of its own for each stage": ("emulation.cuh", (
        ("wgmma(part[i],", "wgmma(acc[i],"), ("/ 16, pair > 0 || step > 0);", "/ 16, 1);"),
        ("promote(acc, part);", ";"))),
    "a product too few": ("emulation.cuh", (("PAIRS = 6", "PAIRS = 5"),)),
    "a product twice, another never": ("emulation.cuh", (("pair == 1 ? 2 : pair == 2 ||", "pair == 1 ? 2 :"),)),
    "a plane is wrong": ("split_planes.cuh", (("rest -= from_bf16(plane[1]);", ""),)),
    "another swizzle": ("smem_desc.cuh", (("BLOCK_K_BYTES == 128 ? 1 : 2", "BLOCK_K_BYTES == 128 ? 1 : 1"),)),
}
# fmt: on


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_mistakes_are_noticed(mutation, monkeypatch, tmp_path):
    a, b = data("positive", 8, 64, 2048)
    file, pairs = MUTATIONS[mutation]
    result = multiply(a, b, mutated(monkeypatch, tmp_path, file, *pairs), b="col")
    assert errors(result, a, b) > 4 * errors(sgemm(a, b), a, b)


def specials(seed=0):
    """(71 x 163, 163 x 133) with infinities, NaNs and huge elements, some rows and columns without."""
    a, b = data("normal", 71, 133, 163, seed)
    rng = np.random.default_rng(seed)
    for x, rows in ((a, 40), (b.T, 60)):
        for value in (np.inf, -np.inf, np.nan, 3.4028235e38, -3e38, 0.0):
            x[rng.integers(0, rows, 5), rng.integers(0, x.shape[1], 5)] = value
    a[7] = 0  # 0 times infinity
    a[8], b[:, 9] = 0, 1
    a[8, 5], a[8, 6] = np.inf, -np.inf
    a[9, :4], b[:4, 10] = 3e38, [1, 1, -1, -1]  # overflows on the way, but not when it is summed exactly
    return a, b


@pytest.mark.parametrize(
    "changes", [{}, {"swapped": True, "a": "col"}, {"limit": COUNTERS + 2**17}, {"splits": 2}], ids=str
)
def test_infinities_nans_and_overflow(changes):
    a, b = specials()
    result = multiply(a, b, **changes)
    assert ratio(result, a, b) <= 1
    assert np.isnan(result).any()
    assert np.isposinf(result).any()
    assert np.isneginf(result).any()
    assert np.isfinite(result[50:, 80:]).all()


def test_the_least_and_the_largest_numbers():
    """Subnormal operands, and those whose last planes are below bfloat16's least: beside moderate factors they are
    within the bound as they are, beside large ones their elements are computed anew.
    """
    rng = np.random.default_rng(0)
    a, b = data("normal", 150, 140, 70)
    small = rng.integers(-149, -105, a.shape)
    tiny = np.ldexp(1 + rng.random(a.shape), small).astype(np.float32)
    for large, all_rows in ((200.0, True), (2.0**100, True), (2.0**100, False)):
        x, y = a.copy(), (b * large).astype(np.float32)
        rows = slice(None) if all_rows else slice(30, 31)
        x[rows] = tiny[rows]
        assert ratio(multiply(x, y), x, y) <= 1
        assert ratio(multiply(y.T, x.T), y.T, x.T) <= 1


def test_lost_bits_would_be_noticed(monkeypatch, tmp_path):
    """Without the marks the products of subnormal and large elements are wrong."""
    x = np.full((8, 64), 2.0**-140 * 1.37, np.float32)
    y = np.full((64, 64), 2.0**100 * 1.1, np.float32)
    home = mutated(monkeypatch, tmp_path, "prepass.cu", ("marks != 0", "false"))
    assert ratio(multiply(x, y, home), x, y) > 1


WRAPPED = ("MARKS = 2048", "MARKS = 6")
"""Two words for the groups of rows: the third group shares the first one's."""


def lossy_matrices():
    """A batch whose matrices each are a group of rows; small elements of three of them meet large ones."""
    pairs = [data("normal", 72, 68, 96, seed) for seed in range(6)]
    a, b = (np.stack(x) for x in zip(*pairs))
    for i in (1, 2, 5):
        a[i], b[i] = 2.0**-140 * 1.37, 2.0**100 * 1.1
    return a, b


def multiply_wrapped(home, **changes):
    a, b = lossy_matrices()
    result = Run(Product(SPLIT, 72, 68, 96, dtype="float32", batch=(6,), **changes), home).of(a, b)
    return max(ratio(*matrices) for matrices in zip(result, a, b))


@pytest.mark.parametrize(
    "changes", [{}, {"splits": 2}, {"registers": True, "splits": 2},
                {"registers": True, "split_planes_b": True, "splits": 2}], ids=str,
)  # fmt: skip
def test_groups_of_rows_that_share_a_word(changes, monkeypatch, tmp_path):
    """As those of more than 2044 groups do."""
    home = mutated(monkeypatch, tmp_path, "split_planes.cuh", WRAPPED)
    assert multiply_wrapped(home, **changes) <= 1
    assert home.counters_are_clear()


@pytest.mark.parametrize("registers", [False, True])
def test_words_beyond_the_last_one_are_noticed(registers, monkeypatch, tmp_path):
    beyond = "1 + group % (MARKS - 4)", "1 + group"
    home = mutated(monkeypatch, tmp_path, "split_planes.cuh", WRAPPED, beyond)
    multiply_wrapped(home, registers=registers, splits=2)
    assert not home.counters_are_clear()


def test_marks_are_left_clear():
    """Products with and without marks on one stream: those of the one do not touch the other."""
    a, b = data("normal", 8, 64, 64)
    x, y = np.full_like(a, 1e-43), b * np.float32(2.0**120)
    home = Home()
    product = Product(SPLIT, 8, 64, 64, dtype="float32")
    run = Run(product, home)
    for left, right in ((x, y), (a, b), (y[:8, :64].copy(), b), (x, b), (x, y)):
        run.give(left, right)
        assert ratio(run(), left, right) <= 1
        assert home.counters_are_clear()


@pytest.mark.parametrize(("m", "n", "k"), [(71, 73, 200), (64, 5, 97)])
def test_any_workspace(m, n, k):
    """Down to one block of K the result is the same within rounding; a smaller workspace is refused."""
    a, b = data("normal", m, n, k)
    least = next(limit for limit in range(COUNTERS, 2**20, 256) if runs(m, n, k, limit))
    for limit in (least, least + 5000, 2**17):
        assert ratio(multiply(a, b, limit=limit), a, b) <= 0.6
    assert "at least" in Product(SPLIT, m, n, k, dtype="float32").choice.k_passes(least - 256)
    assert Product(SPLIT, m, n, k, dtype="float32", limit=least).passes.count == -(-k // 32)


def runs(m, n, k, limit):
    return not isinstance(Product(SPLIT, m, n, k, dtype="float32").choice.k_passes(limit), str)


@pytest.mark.parametrize("split_planes_b", [False, True])
def test_tiles_do_not_see_each_others_marks(split_planes_b, monkeypatch, tmp_path):
    """Parts of k tell each other what they found: of their own tile. Else results would depend on who comes first.
    One block does all pieces, one after the other; what is computed anew without need comes out wrong.
    """
    recompute = "sum = exact.sum,", "sum = 77 + exact.sum,"
    home = mutated(monkeypatch, tmp_path, "repair.cuh", recompute, attributes={16: 1})
    shape = Shape(64, 32, 3, consumers=1)
    product = Product(shape, 128, 64, 256, dtype="float32", splits=2, registers=True, split_planes_b=split_planes_b)
    run = Run(product, home)
    a, b, *_ = run.values
    for row in (3, 100):
        for column in (5, 50) if split_planes_b else (slice(None),):
            x, y = a.copy(), b.copy()
            x[row, 7] = 2.0**-130  # what of it is lost would count beside what is large
            y[9, column] = 2.0**20
            run.give(x, y)
            wrong = run() != product.exact(x, y, None, None)
            rows = slice(row // 64 * 64, row // 64 * 64 + 64)
            columns = slice(column // 32 * 32, column // 32 * 32 + 32) if split_planes_b else slice(None)
            assert wrong[rows, columns].all()
            wrong[rows, columns] = False
            assert not wrong.any()
