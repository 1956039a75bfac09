"""Float32 by scaled float16 planes: which operands are taken, the errors, the fallback for others, and mistakes.

docs/float32.md derives what the range test is to reject.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from fakes import Home, mutated
from gemmhub_hopper.candidates.candidate import named
from gemmhub_hopper.lowering import f16_planes, k_passes, lower
from gemmhub_hopper.lowering.f16_planes import GROUP_ROWS
from gemmhub_nvidia.scratch import COUNTERS
from problems import operand, problem
from products import F16_PRODUCTS, SPLIT, Product
from runs import Run
from test_float32 import data, errors, ratio, sgemm
from test_packed import place

pytestmark = pytest.mark.emulator

REJECTED = 4
"""Of the marks."""
LAUNCHES = 4
"""Of a K pass: the pre-pass and kernel by float16 planes, then those by bfloat16 planes."""


class WatchedHome(Home):
    """All products have one backend, and so one workspace."""

    def __init__(self, **cuda):
        super().__init__(**cuda)
        self.made = super().backend()

    def backend(self):
        return self.made


class Watch:
    """Which kernels have changed the result: "f16x3", "split" or, each in other tiles, "both" for each K pass."""

    def __init__(self, home, out):
        self.cuda, self.out = home.cuda, out

    def __enter__(self):
        self.states = []
        self.cuda.interrupt = lambda: self.states.append(self.out.copy())
        self.cuda.complaints.clear()
        return self

    def __exit__(self, *error):
        self.cuda.interrupt = None

    @property
    def schemes(self):
        assert self.cuda.complaints == []
        states = [*self.states, self.out]
        assert len(self.states) % LAUNCHES == 0
        found = []
        for i in range(0, len(self.states), LAUNCHES):
            changed = [bool((x != y).any()) for x, y in zip(states[i:], states[i + 1 : i + LAUNCHES + 1])]
            assert not changed[0]
            assert not changed[2]
            assert changed[1] or changed[3]
            found.append("both" if changed[1] and changed[3] else "f16x3" if changed[1] else "split")
        return found


def clear(home):
    """Whether the counters and marks of every workspace are zero, those of the largest exponents included."""
    places = [at for at, nbytes, _ in home.cuda.allocated if nbytes > COUNTERS]
    return places and not any(bytes_at(at, COUNTERS).any() for at in places)


def bytes_at(address, count):
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


HOME = WatchedHome()
MANY_GROUPS = 10_000
"""Groups of rows, of which the rejected ones of every test are few."""


def multiply(a, b, home=HOME):
    """(result, schemes of the K passes). The workspace is left clear."""
    run = Run(Product(SPLIT, a.shape[0], b.shape[1], a.shape[1], dtype="f16x3"), home)
    run.give(a, b)
    with Watch(home, run.out) as watch:
        result = run()
    assert clear(home)
    return result, watch.schemes


# --- products that are exact ------------------------------------------------------------------------------------


@pytest.mark.parametrize("product", F16_PRODUCTS, ids=str)
def test_exact_products(product, monkeypatch):
    """Of operands that are taken, and of some that are not: a K pass that has none of these takes float16 planes, and
    so do the tiles of other rows. A tile that both kernels compute has the same sums.
    """
    monkeypatch.setattr(f16_planes, "marked_groups", lambda _: MANY_GROUPS)
    run = Run(product, HOME)
    with Watch(HOME, run.out) as watch:
        run.check()
    passes = product.passes.count
    assert product.out == "bfloat16" or watch.schemes == ["f16x3"] * passes
    assert clear(HOME)
    run.values = product.rejected()
    run.exact = product.exact(*run.values)
    run.give(*run.values[:2])
    with Watch(HOME, run.out) as watch:
        run.check()
    first = ("f16x3", "both") if product.m > GROUP_ROWS else ("split",)
    if product.out != "bfloat16":
        assert watch.schemes[0] in first
        assert watch.schemes[1:] == ["f16x3"] * (passes - 1)
    assert clear(HOME)
    assert (passes > 1) == (product.limit < 2**30)


def test_the_least_k():
    """Below, the bound of float32 has no room for what planes lose."""
    assert [x.form.input for x in lower.lowerings(problem(64, 64, 64, "float32"))[-4:]] == ["f16x3"] * 4
    for asked in (problem(64, 64, 63, "float32"), replace(problem(64, 64, 64, "float32"), precision="tf32")):
        assert all(x.form.input != "f16x3" for x in lower.lowerings(asked))


# --- errors -----------------------------------------------------------------------------------------------------


def softmax(a, width):
    z = width * a.astype(np.float64)
    e = np.exp(z - z.max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)).astype(np.float32)


def exponents(rng, width, *shape):
    return np.ldexp(np.float32(1), rng.integers(-width, width + 1, shape))


def family(kind, m, n, k, seed=0):
    """Operands, and the scheme that multiplies them."""
    a, b = data(kind, m, n, k, seed)
    rng = np.random.default_rng(seed + 1)
    if kind in ("normal", "positive", "cancelling"):
        return a, b, "f16x3"
    if kind == "uniform":
        return rng.random(a.shape, np.float32), rng.random(b.shape, np.float32), "f16x3"
    if kind == "softmax":
        return softmax(a, 2), b, "f16x3"
    if kind == "tails":  # most of them are nothing beside the largest
        return softmax(a, 40), b * np.float32(1000), "split"
    if kind == "wide":
        return a, b, "split"
    if kind == "undone":  # what a's columns are scaled by, b's rows are divided by
        scale = exponents(rng, 40, k)
        return a * scale, b / scale[:, None], "split"
    if kind.endswith("powers of two"):  # exact; the tiny ones are below float16's normal numbers
        least, scheme = (-38, "split") if kind.startswith("tiny") else (-28, "f16x3")
        return *(np.sign(x) * np.ldexp(np.float32(1), rng.integers(least, 1, x.shape)) for x in (a, b)), scheme
    if kind == "sentinels":  # huge elements in both that meet zeros, beside ordinary products
        a[0], b[:, 0], a[0, 0], b[1, 0] = 0, 0, np.finfo(np.float32).max, np.finfo(np.float32).max
        return a * np.float32(1), b * np.float32(1), "split"
    if kind == "own scales":  # of rows and columns
        return a * exponents(rng, 20, m, 1), b * exponents(rng, 20, 1, n), "f16x3"
    if kind == "small":  # of the groups the largest are below the least for which there is a scale
        return a * np.float32(2.0**-60), b, "f16x3"
    if kind == "large":
        return a * np.float32(2.0**47), b * np.float32(2.0**47), "f16x3"
    if kind == "zeros":
        return a * (rng.random(a.shape) < 0.1), b * (rng.random((1, n)) < 0.5).astype(np.float32), "f16x3"
    if kind == "near subnormal":
        return a * np.float32(1e-38), b, "split"
    if kind == "near overflow":
        return a * np.float32(3e37), b * np.float32(0.1), "split"
    if kind == "opposite":  # a float16 scheme without a fallback would overflow, and so would sums of scaled planes
        return a * np.float32(2.0**110), b * np.float32(2.0**-110), "split"
    assert kind == "worst"
    # Both planes round down, as far as can be, and what of a product is left out is as large as can be.
    return np.full_like(a, 1 + 4093 * 2.0**-23), np.full_like(b, 1 + 4093 * 2.0**-23), "f16x3"


FAMILIES = (
    "normal", "positive", "cancelling", "uniform", "softmax", "tails", "wide", "undone", "powers of two", "own scales",
    "tiny powers of two", "sentinels",
    "small", "large", "zeros", "near subnormal", "near overflow", "opposite",
)  # fmt: skip


@pytest.mark.parametrize("kind", FAMILIES)
def test_errors_beside_those_of_an_sgemm(kind):
    """The emulator's tensor cores truncate. Elements that underflow or overflow have the bound alone."""
    a, b, scheme = family(kind, 72, 76, 264)
    result, schemes = multiply(a, b)
    assert schemes == [scheme]
    assert ratio(result, a, b) <= 0.6
    if not kind.startswith(("near", "zeros", "sentinels")):
        assert errors(result, a, b) <= 1.5 * errors(sgemm(a, b), a, b) + 2.0**-24


@pytest.mark.parametrize("k", [64, 65, 128, 520])
def test_the_worst_elements(k):
    """Planes lose 8 roundings of each product, of the k + 2 that are allowed in all."""
    a, b, scheme = family("worst", 64, 64, k)
    result, schemes = multiply(a, b)
    assert schemes == [scheme]
    assert 7 / (k + 2) < ratio(result, a, b) <= 1


def test_infinities_and_nans():
    a, b = data("normal", 72, 76, 264)
    a[3, 5], a[7, 9], b[100, 11] = np.nan, np.inf, -np.inf
    result, schemes = multiply(a, b)
    assert schemes == ["split"]
    assert ratio(result, a, b) <= 1
    assert np.isnan(result[3]).all()
    assert np.isinf(result[7, :11]).all()
    assert np.isfinite(result[8:, :11]).all()


def few(m, n, k, a=(), b=()):
    """Matrices with these elements, the others 0."""
    x, y = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
    for made, elements in ((x, a), (y, b)):
        for row, column, value in elements:
            made[row, column] = value
    return x, y


@pytest.mark.parametrize(
    ("a", "b"),
    [
        # What the scale of a group would flush to 0.
        ([(1, 0, 2.0**50), (1, 1, 2.0**-115)], [(1, 1, 2.0**50)]),
        ([(1, 0, 2.0**20), (1, 1, 2.0**-145)], [(1, 1, 2.0**20)]),
        # What the scale of an operand of bfloat16 planes rounds.
        ([(0, 0, 2.0**50), (1, 1, 2.0**-123 * (1 + 2.0**-17))], [(1, 1, 2.0**60)]),
        ([(0, 0, 2.0**127), *((1, k, 2.0**-70) for k in range(64))], [(k, 1, 2.0**-47) for k in range(64)]),
    ],
)
def test_elements_that_scaling_would_lose(a, b):
    x, y = few(64, 64, 64, a, b)
    result, schemes = multiply(x, y)
    assert schemes == ["split"]
    assert ratio(result, x, y) <= 1


def test_small_elements_of_both_operands_count_together():
    """Tensor cores align a product by the least normal exponent where a factor is subnormal."""
    for small, schemes in ((0, ["f16x3"]), (2, ["f16x3"]), (3, ["split"])):  # powers of two below it, of k / 64 = 4
        a, b = few(64, 64, 256, [(1, 0, 1.0), (1, 1, 2.0 ** (-28 - small))], [(0, 1, 1.0), (1, 1, 1.0)])
        assert multiply(a, b)[1] == schemes
    a, b = few(64, 64, 256, [(1, 0, 1.0), (1, 1, 2.0**-30)], [(0, 1, 1.0), (1, 1, 2.0**-29)])
    assert multiply(a, b)[1] == ["split"]


def test_bits_do_not_depend_on_the_products_before():
    """All in one workspace, some of them taken, others not; the emulator's threads run in another order each time."""
    home = WatchedHome()
    asked = [family(kind, 72, 76, 264) for kind in ("normal", "undone", "near overflow", "small")]
    first = [multiply(a, b, WatchedHome())[0].tobytes() for a, b, _ in asked]
    for turn in ((0, 1, 2, 3), (3, 3, 1, 0), (2, 0, 1, 3)):
        for i in turn:
            a, b, scheme = asked[i]
            result, schemes = multiply(a, b, home)
            assert result.tobytes() == first[i]
            assert schemes == [scheme]


# --- the range test ---------------------------------------------------------------------------------------------


def planes(b, longest=0):
    """(planes, scales, whether each element is held) of the columns of b, by NumPy.

    ``longest``: the product's k, where b has the first rows only.
    """
    k, n = b.shape
    longest = longest or k
    groups = -(-k // 128)
    padded = np.zeros((groups * 128, n), np.float32)
    padded[:k] = b
    x = padded.reshape(groups, 128, n)
    largest = np.abs(x).max(1)
    exponent = np.maximum(np.frexp(largest)[1] - 1, -49) - 14
    exponent[largest == 0] = -49 - 14
    x = np.ldexp(x, -exponent[:, None, :])
    first = x.astype(np.float16)
    rest = (x - first.astype(np.float32)) * np.float32(4096)
    second = rest.astype(np.float16)
    lost, size = np.abs(rest - second.astype(np.float32)), np.abs(x) * np.float32(4096)
    lost, size, kept = (y.astype(np.float64) for y in (lost, size, np.abs(rest)))  # products are exact in float64
    residual, share = max(2.0**-23, longest * 2.0**-29), max(2.0**-11, sqrt(longest) * 2.0**-13.5)
    held = (lost <= np.float32(residual) * size) & (kept <= np.float32(share) * size)
    held &= (largest < np.float32(2.0**51))[:, None, :]
    both = np.stack([y.reshape(groups * 128, n)[:k] for y in (first, second)])
    return both, np.ldexp(np.float32(1), exponent), held.reshape(groups * 128, n)[:k]


def packed(b, home=HOME):
    buffer = place(home, b)
    home.cuda.complaints.clear()
    made = home.backend().pack(buffer.ctypes.data, problem(64, b.shape[1], b.shape[0], "float32"))
    assert home.cuda.complaints == []
    return made


def rejected(made):
    return bool(bytes_at(made.marks, 4).view(np.uint32)[0] & REJECTED)


def test_planes_and_scales():
    """Of operands that are taken, bit for bit, in groups that are not whole either."""
    for kind in ("normal", "own scales", "small", "powers of two"):
        b = family(kind, 64, 9, 333)[1]
        made = packed(b)
        both, scales, held = planes(b)
        assert held.all()
        assert not rejected(made)
        ld = -(-333 // 8) * 8
        stored = bytes_at(made.f16_planes, 2 * 9 * ld * 2).view(np.float16).reshape(2, 9, ld)
        assert (stored[:, :, :333].transpose(0, 2, 1) == both).all()
        pitch = f16_planes.scale_pitch(9)
        assert (bytes_at(made.scales, 3 * pitch * 4).view(np.float32).reshape(3, pitch)[:, :9] == scales).all()


@pytest.mark.parametrize("k", [64, 600, 4096])
def test_the_edges_of_the_range_test(k):
    """Of many elements beside a largest one, for each exponent: the last that passes, the first that does not."""
    rng = np.random.default_rng(k)
    seen = set()
    for exponent in (*range(-24, -40, -3), -28, -29, -31, -32):
        x = np.ldexp(1 + rng.integers(0, 2**23, 4000) * 2.0**-23, exponent).astype(np.float32)
        x[:2] = np.ldexp(np.float32(1), exponent), np.ldexp(np.float32(1.5), exponent)
        b = np.zeros((min(k, 128), len(x)), np.float32)
        b[0], b[-1] = 1, x
        _, scales, held = planes(b, k)
        passes = held.all(0)
        # How near to one of both thresholds.
        scaled = np.ldexp(x.astype(np.float64), 14)
        first = scaled.astype(np.float16).astype(np.float64)
        second = ((scaled - first) * 4096).astype(np.float16).astype(np.float64) / 4096
        over_all = np.maximum(
            np.abs(scaled - first - second) / scaled / max(2.0**-23, k * 2.0**-29),
            np.abs(scaled - first) / scaled / max(2.0**-11, sqrt(k) * 2.0**-13.5),
        )
        assert (scales[0] == 2.0**-14).all()
        assert ((over_all <= 1) == passes)[np.abs(over_all - 1) > 1e-6].all()
        for which, sign in ((passes, 1), (~passes, -1)):
            candidates = np.flatnonzero(which)
            for i in candidates[np.argsort(sign * (1 - over_all[candidates]))[:2]]:
                column = np.zeros((k, 1), np.float32)
                column[: len(b)] = b[:, i : i + 1]
                assert rejected(packed(column)) == (not passes[i]), (exponent, x[i])
                seen.add(bool(passes[i]))
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        (2.0**51 * (1 - 2.0**-24), True), (2.0**51, False), (3.4e38, False), (np.inf, False), (-np.inf, False),
        (np.nan, False), (2.0**-149, True), (2.0**-49, True), (1.5 * 2.0**-100, False), (0.0, True),
    ],
)  # fmt: skip
def test_the_largest_and_the_least_groups(value, taken):
    """A subnormal power of two passes where it is exact: not beside a scale of 2^-63."""
    b = np.zeros((264, 3), np.float32)
    b[200, 1] = value
    if np.isfinite(value):
        assert planes(b)[2].all() == (taken if value != 2.0**-149 else False)
        taken = taken and value != 2.0**-149
    assert rejected(packed(b)) != taken


# --- packed operands --------------------------------------------------------------------------------------------


def multiply_packed(a, made, b, limit=2**30, name="64x64x12h"):
    """(result, schemes)."""
    (m, k), n = a.shape, b.shape[1]
    asked = replace(problem(m, n, k, "float32"), packed_by="hopper", b=operand("float32", k, n))
    launch = HOME.backend().launch(0, named(lower.lowerings(asked), name), limit)
    left, out = place(HOME, a), place(HOME, np.full((m, n), np.nan, np.float32))
    kept = bytes_at(made.marks, made.nbytes).copy()
    with Watch(HOME, out) as watch:
        launch.run(left.ctypes.data, made, out.ctypes.data, 1, 0, 0)
    assert (bytes_at(made.marks, made.nbytes) == kept).all()
    return out[: 4 * m * n].view(np.float32).reshape(m, n), watch.schemes


@pytest.mark.parametrize("name", ["64x64x12h", "64x64x12ht"])
def test_packed(name):
    """No product writes to it; one that is rejected is so for every a."""
    for kind in ("normal", "undone"):
        a, b, scheme = family(kind, 72, 76, 264)
        made = packed(b)
        for left in (a, family("tails", 72, 76, 264)[0], a):
            result, schemes = multiply_packed(left, made, b, name=name)
            assert schemes == [scheme if left is a else "split"]
            assert ratio(result, left, b) <= 0.6
    # Finite as it is, but not beside a scaled a: no scale makes it smaller.
    a, b, _ = family("near overflow", 72, 76, 264)
    assert ratio(multiply_packed(b.T.copy(), packed(a.T.copy()), a.T, name=name)[0], b.T, a.T) <= 0.6


def test_packed_in_k_passes():
    """The planes of a are made for a few groups of K at a time; those of b begin with as many, and so do its scales."""
    a, b, _ = family("normal", 72, 76, 600)
    a *= exponents(np.random.default_rng(3), 9, 5)[np.arange(600) // 128]
    b *= exponents(np.random.default_rng(4), 9, 5)[np.arange(600) // 128][:, None]
    made = packed(b)
    limit = COUNTERS + 72 * 256 * 2 * 3 + 2**12
    result, schemes = multiply_packed(a, made, b, limit)
    assert len(schemes) > 1
    assert set(schemes) == {"f16x3"}
    assert ratio(result, a, b) <= 0.6
    a[0, 300] = 2.0**-60
    result, schemes = multiply_packed(a, made, b, limit)
    assert schemes.count("split") == 1
    assert ratio(result, a, b) <= 0.6


# --- mistakes ---------------------------------------------------------------------------------------------------


def wrong(kind, home, n=76, k=264):
    a, b, scheme = family(kind, 72, n, k)
    result, schemes = multiply(a, b, home)
    assert schemes == [scheme]
    return not errors(result, a, b) <= 4 * errors(sgemm(a, b), a, b)


# fmt: off
MUTATIONS = {
    "a scale is forgotten": ("own scales", "f16_emulation.cuh", (
        ("= row[i][r / 2 % 2] * column[r / 4][r % 2];", "= row[i][r / 2 % 2];"),)),
    "no cross products": ("positive", "f16_emulation.cuh", (
        ("fmaf(fmaf(cross[i][at], CROSS_SCALE, leading[i][at]), scale,", "fmaf(leading[i][at], scale,"),)),
    "one of two cross products": ("positive", "f16_emulation.cuh", (
        ("wgmma(cross[i], a1 + at_a, b + at_b, 1);", ""),)),
}
# fmt: on


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda name: name.replace(" ", "-"))
def test_wrong_sums_are_noticed(mutation, monkeypatch, tmp_path):
    kind, file, pairs = MUTATIONS[mutation]
    assert wrong(kind, mutated(monkeypatch, tmp_path, file, *pairs))


def test_an_operand_that_is_not_rejected_is_noticed(monkeypatch, tmp_path):
    a, b, _ = family("undone", 72, 76, 264)
    home = mutated(
        monkeypatch,
        tmp_path,
        "f16_prepass.cu",
        ("error.excess <= 0.0f ? 0 : 1", "true ? 0 : 1"),
        ("error.small()", "0u"),
    )
    result, schemes = multiply(a, b, home)
    assert schemes == ["f16x3"]
    assert ratio(result, a, b) > 1


def test_a_fallback_that_does_not_run_is_noticed(monkeypatch, tmp_path):
    a, b, _ = family("undone", 72, 76, 264)
    never = "all = kByFloat16 ? any && !some : !any;", "all = kByFloat16 ? any && !some : true;"
    home = mutated(monkeypatch, tmp_path, "rejected_tiles.cuh", never, ("if (kByBfloat16 && all) forget_small(p);", ""))
    run = Run(Product(SPLIT, 72, 76, 264, dtype="f16x3"), home)
    run.give(a, b)
    assert np.isnan(run()).all()
    assert not home.counters_are_clear()


def test_a_fallback_that_always_runs_is_noticed(monkeypatch, tmp_path):
    """A cell is computed once."""
    a, b, _ = family("normal", 72, 76, 264)
    always = "all = kByFloat16 ? any && !some : !any;", "all = kByFloat16 ? any && !some : false;"
    home = mutated(monkeypatch, tmp_path, "rejected_tiles.cuh", always)
    assert multiply(a, b, home)[1] == ["both"]


def test_a_fallback_that_forgets_its_scale_is_noticed(monkeypatch, tmp_path):
    forgets = "if (p.redo & ONLY_REJECTED) unscale(p, sums);", ""
    assert wrong("tails", mutated(monkeypatch, tmp_path, "emulation.cuh", forgets))


def test_exponents_that_are_not_forgotten_are_noticed(monkeypatch, tmp_path):
    """The largest exponent of an operand that is taken would scale the next one that is not."""
    home = mutated(monkeypatch, tmp_path, "rejected_tiles.cuh", ("if (kByBfloat16 && all) forget_small(p);", ""))
    run = Run(Product(SPLIT, 72, 76, 264, dtype="f16x3"), home)
    run.give(*family("normal", 72, 76, 264)[:2])
    run()
    place = next(at for at, nbytes, _ in home.cuda.allocated if nbytes > COUNTERS)
    words = bytes_at(place, COUNTERS).view(np.uint32)
    ends = [(at + 4 * (k_passes.MARKS - 1)) // 4 for at in (k_passes.A_MARKS, k_passes.B_MARKS)]
    assert list(np.flatnonzero(words)) == ends
