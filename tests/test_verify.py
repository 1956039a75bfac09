"""spot_check always calls correct products right, and finds wrong ones."""

from __future__ import annotations

import re
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from gemmhub import accuracy, dtypes
from gemmhub._base import inner_products
from gemmhub._check import freivalds
from gemmhub._check import spot_check as verify
from gemmhub._check.spot_check import SpotCheck, spot_check
from gemmhub.errors import DTypeError, InputError, ShapeError

F16, F32, F64 = (np.dtype(x) for x in (np.float16, np.float32, np.float64))
C64, C128 = np.dtype(np.complex64), np.dtype(np.complex128)
BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
FLOATS = [F16, BF16, F32, F64, C64, C128, E4M3]
SHAPES = [(1, 1, 1), (1, 7, 40), (40, 7, 1), (33, 1, 65), (64, 64, 64), (17, 129, 100), (5, 400, 9)]


@pytest.fixture
def always_sketch(monkeypatch):
    """Small products are not recomputed whole; only elements that the sums locate are recomputed."""
    monkeypatch.setattr(verify, "_RECOMPUTE", 0)
    monkeypatch.setattr(verify, "_PAIRS", 1)


def draw(rng, shape, dtype, kind="normal"):
    x = rng.standard_normal(shape)
    if dtype.kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    if kind == "wide":
        reach = {"float16": 4, "float8_e4m3fn": 3, "float64": 300, "complex128": 300}.get(dtype.name, 40)
        x = x * np.exp2(rng.integers(-reach, reach + 1, shape))
    if kind == "subnormal":
        x = x * float(dtypes.info(dtype).smallest_normal) ** 0.5 * 0.5
    return x.astype(dtype)


def multiply(a, b, out=None):
    """The product as the CPU computes it in the accumulator's dtype."""
    out = (F16 if a.dtype == E4M3 else dtypes.result_dtype(a.dtype, b.dtype)) if out is None else out
    working = dtypes.compute_dtype(a.dtype, b.dtype, out)
    with np.errstate(all="ignore"):
        return np.matmul(a.astype(working), b.astype(working)).astype(out)


def plant(a, b, c, index, times):
    """A copy of c whose element at ``index`` is wrong by ``times`` its bound.

    Where the bound depends on the result's own size (a narrower dtype), it is at least the root mean square over
    its row: an element near 0 has a smaller bound than others in its sum.
    """
    i, j = index
    model = accuracy.error_model(a.dtype, b.dtype, c.dtype, dtypes.compute_dtype(a.dtype, b.dtype, c.dtype))
    cols = np.flatnonzero(np.isfinite(c[i])) if model.output else np.array([j])
    reference = accuracy.reference(a[i : i + 1], b[:, cols], model=model)
    here, largest = (0, np.flatnonzero(cols == j)[0]), reference.bound.max()
    bound = max(reference.bound[here], largest * np.sqrt(np.mean(np.square(reference.bound / largest))))
    wrong = c.copy()
    wrong[index] = c.dtype.type(reference.value[here] + times * bound)
    return wrong


# Right products


@pytest.mark.parametrize("kind", ["normal", "wide", "subnormal", "cancelling"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_right_products_are_right(shape, dtype, kind, always_sketch):
    m, k, n = shape
    for seed in range(3):
        rng = np.random.default_rng(seed)
        a, b = draw(rng, (m, k), dtype, kind), draw(rng, (k, n), dtype, kind)
        if kind == "cancelling":
            a, b = np.concatenate([a, -a], axis=1), np.concatenate([b, b])
        verdict = spot_check(a, b, multiply(a, b), seed=seed)
        assert verdict, str(verdict)
        assert verdict.method == "freivalds"
        assert 0 <= verdict.worst <= 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_right_products_stay_below_their_thresholds(dtype, rng):
    """Beyond what always_sketch shows: not even a recomputation is called for."""
    for kind in ("normal", "wide"):
        a, b = draw(rng, (50, 300), dtype, kind), draw(rng, (300, 70), dtype, kind)
        c = multiply(a, b)
        model = accuracy.error_model(dtype, dtype, c.dtype, dtypes.compute_dtype(dtype, dtype, c.dtype))
        assert freivalds.sketch(a, b, c, model, 1, rng).ratio.max() < 0.5


def test_elements_at_their_bounds_are_right(always_sketch, rng):
    """An error of 0.99 bounds everywhere, signs at random, is right; of 1.05 bounds it is wrong."""
    a, b = draw(rng, (64, 256), F32), draw(rng, (256, 640), F32)
    reference = accuracy.reference(a, b, model=accuracy.error_model(F32, F32, F32, F32))
    signs = rng.choice([-1, 1], reference.value.shape)
    assert spot_check(a, b, (reference.value + 0.99 * signs * reference.bound).astype(F32), seed=2)
    assert not spot_check(a, b, (reference.value + 1.05 * signs * reference.bound).astype(F32), seed=2)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_reduced_precision_is_right_only_where_allowed(precision, always_sketch, rng):
    a, b = np.abs(draw(rng, (50, 64), F32)), np.abs(draw(rng, (64, 80), F32))
    bits = 13 if precision == "tf32" else 16

    def shorten(x):
        half = np.uint32(0 if precision == "tf32" else 1 << 15)  # tf32 truncates
        return ((x.view(np.uint32) + half) & np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)).view(F32)

    c = shorten(a) @ shorten(b)
    assert spot_check(a, b, c, precision=precision, seed=3)
    assert not spot_check(a, b, c, seed=3)


# Wrong products


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_finds_one_wrong_element_of_2048_squared(dtype, rng):
    """Errors of 100 bounds at 2048 random positions: every sum that contains one exceeds its threshold.

    Sums of different rows are independent, so that one error in each row is as good as 2048 checks. Three
    planted alone show that the sums lead to the element.
    """
    n = 2048
    a, b = draw(rng, (n, n), dtype), draw(rng, (n, n), dtype)
    c = multiply(a, b)
    model = accuracy.error_model(dtype, dtype, dtype, F32)
    rows, cols = np.arange(n), rng.integers(n, size=n)
    reference = accuracy.reference(a[:, None, :], b[:, cols].T[:, :, None], model=model)
    wrong = c.copy()
    errors = 100 * rng.choice([-1, 1], n) * reference.bound[:, 0, 0]
    wrong[rows, cols] = (accuracy.widen(c[rows, cols]) + errors).astype(dtype)
    found = freivalds.sketch(a, b, wrong, model, 1, rng)
    seen = found.ratio[rows, found.groups.member[cols]] > 1
    assert np.count_nonzero(seen) >= 0.999 * n
    others = np.ones(found.ratio.shape, bool)
    others[rows, found.groups.member[cols]] = False
    assert found.ratio[others].max() < 0.5
    assert found.detects < 100
    i = int(rng.integers(n))
    index = (i, int(cols[i]))
    c[index] = wrong[index]
    verdict = spot_check(a, b, c)
    assert not verdict
    assert verdict.where == index
    assert verdict.worst == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_finds_one_wrong_element_in_small_products(dtype, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    m, k, n = (int(x) for x in rng.integers(1, 90, 3))
    a, b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
    index = (int(rng.integers(m)), int(rng.integers(n)))
    wrong = plant(a, b, multiply(a, b), index, 3)
    assert spot_check(a, b, wrong, seed=seed).where == index  # recomputed
    monkeypatch.setattr(verify, "_RECOMPUTE", 0)
    wrong = plant(a, b, multiply(a, b), index, 100)
    verdict = spot_check(a, b, wrong, seed=seed)
    assert not verdict
    assert verdict.where == index


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, C64, np.dtype(np.int8), np.dtype(np.int64)], ids=str)
def test_products_that_are_wrong_altogether(dtype, monkeypatch, rng):
    monkeypatch.setattr(verify, "_RECOMPUTE", 0)
    if dtype.kind == "i":
        a, b = (rng.integers(-100, 100, (96, 96)).astype(dtype) for _ in range(2))
    else:
        a, b = draw(rng, (96, 96), dtype), draw(rng, (96, 96), dtype)
    c = multiply(a, b)
    assert spot_check(a, b, c, seed=5)
    tail_row, tail_col, swapped, shifted, tile = (c.copy() for _ in range(5))
    tail_row[-1] = 0
    tail_col[:, -1] = c[:, -2]
    swapped[:, [10, 11]] = swapped[:, [11, 10]]
    shifted[:, 1:] = c[:, :-1]
    tile[32:64, 64:96] = 0
    wrongs = {
        "transposed": c.T, "zeros": np.zeros_like(c), "garbage": multiply(b, a), "tail row": tail_row,
        "tail column": tail_col, "swapped columns": swapped, "shifted": shifted, "missing tile": tile,
        "k one short": multiply(a[:, :-1], b[:-1]), "negated": -c, "b transposed": multiply(a, b.T),
    }  # fmt: skip
    for name, wrong in wrongs.items():
        verdict = spot_check(a, b, wrong, seed=5)
        assert not verdict, name
        assert verdict.worst > 1
    shifted_rows = np.concatenate([c[1:], c[:1]])
    assert not spot_check(a, b, shifted_rows, seed=5)


@pytest.mark.parametrize("fill", [1e300, 1e-300, np.nan, np.inf])
def test_garbage_beyond_any_scale_is_found(fill, always_sketch, rng):
    for scale in (1.0, 1e-150, 1e150):
        a, b = draw(rng, (40, 50), F64) * scale, draw(rng, (50, 60), F64)
        c = multiply(a, b)
        c[3, 4] = fill
        verdict = spot_check(a, b, c, seed=6)
        assert not verdict
        assert verdict.where == (3, 4)


def test_columns_of_very_different_size_do_not_hide_errors(always_sketch, rng):
    a, b = draw(rng, (80, 100), F32), draw(rng, (100, 80), F32)
    a *= np.exp2(rng.integers(-40, 40, (80, 1))).astype(F32)
    b *= np.exp2(rng.integers(-40, 40, 80)).astype(F32)
    c = multiply(a, b)
    for _ in range(10):
        index = (int(rng.integers(80)), int(rng.integers(80)))
        assert spot_check(a, b, plant(a, b, c, index, 100), seed=7).where == index


# Integers


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_integers_are_checked_exactly(name, always_sketch, rng):
    dtype = np.dtype(name)
    limits = np.iinfo(dtype)
    a, b = (rng.integers(limits.min, limits.max, s, dtype, endpoint=True) for s in ((70, 90), (90, 80)))
    c = multiply(a, b)
    verdict = spot_check(a, b, c, seed=8)
    assert verdict, str(verdict)
    assert verdict.detects == 0
    for bit in (0, 3, 8 * c.itemsize - 1):
        for _ in range(5):
            index = (int(rng.integers(70)), int(rng.integers(80)))
            wrong = c.copy()
            wrong.view(f"u{c.itemsize}")[index] ^= np.array(1, f"u{c.itemsize}") << np.array(bit, f"u{c.itemsize}")
            verdict = spot_check(a, b, wrong, seed=8)
            assert not verdict
            assert verdict.where == index
            assert verdict.expected == int(c[index])


def test_int8_into_float(always_sketch, rng):
    a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((30, 500), (500, 40)))
    c = multiply(a, b, F32)
    assert spot_check(a, b, c, seed=9)
    c[5, 6] += 1
    assert spot_check(a, b, c, seed=9).where == (5, 6)
    a, b = np.full((8, 40000), 255, np.uint8), np.full((40000, 8), 255, np.uint8)  # wraps: sums say nothing
    c = np.full((8, 8), 40000 * 255 * 255 - 2**32, F32)
    verdict = spot_check(a, b, c, seed=9)
    assert verdict
    assert verdict.method == "sampled"
    assert verdict.detects is None


def test_logical_products_are_sampled(always_sketch, rng):
    a, b = rng.random((40, 5)) < 0.3, rng.random((5, 40)) < 0.3
    assert spot_check(a, b, a @ b, seed=10).method == "sampled"
    assert not spot_check(a, b, ~(a @ b), seed=10)


# NaN, infinities, overflow


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64, C64], ids=str)
def test_operands_that_are_not_finite(dtype, always_sketch, rng):
    a, b = draw(rng, (60, 40), dtype), draw(rng, (40, 70), dtype)
    a[3, 4], a[10, 0], a[11, 5] = np.inf, np.nan, -np.inf
    b[7, 20], b[5, 21] = np.nan, np.inf
    c = multiply(a, b)
    verdict = spot_check(a, b, c, seed=11)
    assert verdict, str(verdict)
    for index in [(3, 0), (10, 69), (59, 20), (0, 21), (3, 20)]:
        wrong = c.copy()
        wrong[index] = 1.5
        assert spot_check(a, b, wrong, seed=11).where == index
    for index in [(0, 0), (59, 69)]:
        wrong = c.copy()
        wrong[index] = np.nan
        assert spot_check(a, b, wrong, seed=11).where == index
        assert spot_check(a, b, plant(a, b, c, index, 100), seed=11).where == index
    zeroed = np.where(np.isfinite(c), c, dtype.type(0))
    assert not spot_check(a, b, zeroed, seed=11)
    if dtype not in (C64, BF16):  # complex infinities have no kind; a bfloat16 subnormal may be read as 0
        other = c.copy()
        other[3] = np.nan  # infinity, mostly
        assert not spot_check(a, b, other, seed=11)


def test_results_that_overflow(always_sketch, rng):
    a, b = draw(rng, (60, 40), F16), draw(rng, (40, 70), F16)
    a, b = np.abs(a), np.abs(b)
    a[7] = b[:, 9] = 3000
    c = multiply(a, b)
    assert np.isinf(c).sum() > 50
    verdict = spot_check(a, b, c, seed=12)
    assert verdict, str(verdict)
    assert verdict.detects is not None  # all of them were computed again
    saturated = np.clip(c, -65504, 65504)
    assert not spot_check(a, b, saturated, seed=12)
    for value in (np.inf, np.nan):
        wrong = c.copy()
        wrong[20, 30] = value
        assert spot_check(a, b, wrong, seed=12).where == (20, 30)
    wrong = plant(a, b, c, (20, 30), 100)
    assert not spot_check(a, b, wrong, seed=12)


def test_overflow_everywhere_is_no_hiding_place(always_sketch):
    a, b = np.full((50, 50), 3e20, F32), np.full((50, 50), 3e20, F32)
    assert spot_check(a, b, np.full((50, 50), np.inf, F32))
    assert not spot_check(a, b, np.zeros((50, 50), F32))
    assert not spot_check(a / F32.type(1e20), b, np.full((50, 50), np.inf, F32))


def test_float64_near_the_ends_of_its_range(always_sketch, rng):
    for low, high in ((1e-200, 1e-100), (1e150, 1e150), (1e-308, 1.0), (1e-308, 1e307)):
        a, b = draw(rng, (40, 50), F64) * low, draw(rng, (50, 60), F64) * high
        c = multiply(a, b)
        assert spot_check(a, b, c, seed=13)
        wrong = plant(a, b, c, (30, 40), 200)
        assert spot_check(a, b, wrong, seed=13).where == (30, 40)


# Shapes and samples


@pytest.mark.parametrize(
    ("a", "b"),
    [((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 4, 5), (5, 3)), ((2, 1, 4, 5), (3, 5, 6)), ((2, 4, 5), (5,)),
     ((0, 5), (5, 3)), ((4, 0), (0, 3)), ((3, 0, 5), (5, 2)), ((0, 4, 5), (5, 3))],
)  # fmt: skip
def test_shapes_are_those_of_matmul(a, b, monkeypatch, rng):
    a, b = draw(rng, a, F32), draw(rng, b, F32)
    c = a @ b
    for limit in (verify._RECOMPUTE, 0):
        monkeypatch.setattr(verify, "_RECOMPUTE", limit)
        verdict = spot_check(a, b, c)
        assert verdict, str(verdict)
        if c.size:
            index = tuple(int(rng.integers(size)) for size in c.shape)
            wrong = np.array(c)
            wrong[index] += 10
            found = spot_check(a, b, wrong)
            assert not found
            assert found.where == index
            assert not spot_check(a, b, wrong, points=[index])
            assert found.got == wrong[index]
        else:
            assert verdict.where is None


def test_batches_stop_at_the_first_wrong_matrix(always_sketch, rng):
    a, b = draw(rng, (4, 30, 40), F32), draw(rng, (40, 50), F32)
    c = a @ b
    c[2, 3, 4] += 10
    c[3, 0, 0] += 10
    verdict = spot_check(a, b, c)
    assert verdict.where == (2, 3, 4)


def test_strided_operands_and_sequences(always_sketch, rng):
    a, b = draw(rng, (80, 60), F32).T[::2, ::-1], draw(rng, (80, 90), F32)[:, ::3]
    assert spot_check(a, b, np.asfortranarray(a @ b))
    assert spot_check([[1.0, 2.0]], [[3.0], [4.0]], [[11.0]])
    assert not spot_check([[1, 2]], [[3], [4]], [[12]])


def test_points_and_samples_recompute_just_those(rng):
    a, b = draw(rng, (2, 30, 40), F32), draw(rng, (40, 50), F32)
    c = a @ b
    c[1, 2, 3] += 1
    assert spot_check(a, b, c, points=[(0, 2, 3), (1, 3, 3)]).checked == 2
    verdict = spot_check(a, b, c, points=[(0, 2, 3), (1, 2, 3)])
    assert not verdict
    assert (verdict.where, verdict.method, verdict.detects) == ((1, 2, 3), "sampled", None)
    assert spot_check(a, b, c, points=[]).where is None
    verdict = spot_check(a, b, c, samples=100, seed=0)
    assert verdict.checked == 100
    assert not spot_check(a, b, c, samples=10**6)
    assert spot_check(a, b, c, samples=10**6).checked == c.size
    assert spot_check(np.ones(3), np.ones(3), 3.0, points=[()])


def test_a_seed_repeats_the_check(always_sketch, rng):
    a, b = draw(rng, (40, 50), F32), draw(rng, (50, 60), F32)
    c = a @ b
    assert spot_check(a, b, c, seed=1) == spot_check(a, b, c, seed=1)


@pytest.mark.parametrize(
    ("error", "argument", "a", "b", "c", "options"),
    [
        (InputError, "a", [[1, 2], [3]], np.ones((2, 2)), np.ones((2, 2)), {}),
        (DTypeError, "a", np.array([[None]]), np.ones((1, 1)), np.ones((1, 1)), {}),
        (DTypeError, "b", np.ones((1, 1)), np.ones((1, 1), ">f8"), np.ones((1, 1)), {}),
        (DTypeError, "result", np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1), int), {}),
        (ShapeError, "a", np.float64(1), np.ones((1, 1)), np.ones((1, 1)), {}),
        (ShapeError, "a, b", np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3)), {}),
        (ShapeError, "a, b", np.ones((2, 2, 3)), np.ones((3, 3, 3)), np.ones((2, 2, 3)), {}),
        (ShapeError, "result", np.ones((2, 3)), np.ones((3, 2)), np.ones((2, 3)), {}),
        (InputError, "precision", np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), {"precision": "fp32"}),
        (InputError, "samples", np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), {"samples": 0}),
        (InputError, "samples", np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), {"samples": 1.5}),
        (InputError, "points", np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), {"points": [(0, 2)]}),
        (InputError, "points", np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), {"points": [(0, -1)]}),
        (InputError, "points", np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), {"points": [(0,)]}),
        (InputError, "points", np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), {"points": [3]}),
        (InputError, "points", np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)), {"points": 5}),
        (InputError, "seed", np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), {"seed": -1}),
        (InputError, "seed", np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), {"seed": 1.5}),
        (InputError, "points, samples", np.ones(2), np.ones(2), 2.0, {"points": [()], "samples": 1}),
    ],
)
def test_bad_arguments(error, argument, a, b, c, options):
    with pytest.raises(error) as caught:
        spot_check(a, b, c, **options)
    assert caught.value.argument == argument


# Memory and presentation


def test_large_operands_are_never_widened_whole():
    """8 Mi elements each, 16 MiB in float16: a float64 copy of one would take 64 MiB."""
    a, b = np.ones((16384, 512), F16), np.ones((512, 16384), F16)
    c = np.broadcast_to(F16.type(512), (16384, 16384))  # takes no memory
    tracemalloc.start()
    try:
        left = freivalds.Side.survey(a, 1)
        assert left.norm[0] == pytest.approx(512**0.5)
        for _, _, tile in inner_products.tiles(c[:2048]):
            assert tile.nbytes <= 8 * inner_products.TILE
        del tile
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
        tracemalloc.reset_peak()
        assert spot_check(a[:4096], b[:, :4096], c[:4096, :4096], seed=0)
        assert tracemalloc.get_traced_memory()[1] < 150 * 2**20
    finally:
        tracemalloc.stop()


def test_tiles_cover_a_matrix_once():
    x = np.arange(5 * 100_000, dtype=np.int32).reshape(5, -1)
    seen = np.zeros(x.shape, int)
    for rows, cols, tile in inner_products.tiles(x):
        seen[rows, cols] += 1
        assert tile.dtype == F64
        np.testing.assert_array_equal(tile, x[rows, cols])
    assert (seen == 1).all()


def test_verdicts_read_well():
    right = spot_check(np.eye(2), np.eye(2), np.eye(2))
    assert isinstance(right, SpotCheck)
    assert str(right).startswith("verdict  passed (recomputed: 4 elements recomputed)\nreason   ")
    wrong = spot_check(np.eye(2), np.eye(2), np.ones((2, 2)))
    assert str(wrong).startswith(
        "verdict  failed (recomputed: 4 elements recomputed)\nreason   element (0, 1) is 1, expected 0 within"
    )


def test_a_wrong_element_is_reported_in_few_digits(rng):
    a, b = rng.standard_normal((8, 100), np.float32), rng.standard_normal((100, 8), np.float32)
    c = a @ b
    c[3, 4] += 1
    text = spot_check(a, b, c).reason
    assert max(len(number) for number in re.findall(r"[-\d.e]+", text)) <= 12, text
