"""spot_check and compare of products with every option: what is right is right, and each fault is found."""

from __future__ import annotations

import re
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import gemmhub
from gemmhub import accuracy, dtypes
from gemmhub._call.options import ARRAYS, OPTIONS
from gemmhub._check import freivalds, product
from gemmhub._check import spot_check as verify
from gemmhub._check.affine import Affine
from gemmhub._check.spot_check import spot_check
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import DTypeError, InputError, ShapeError

F16, F32, F64 = (np.dtype(x) for x in (np.float16, np.float32, np.float64))
C64, BF16, E4M3 = np.dtype(np.complex64), np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
I8, I32, U64, BOOL = (np.dtype(x) for x in (np.int8, np.int32, np.uint64, np.bool_))
DTYPES = [F16, BF16, F32, F64, C64, np.dtype(np.complex128), E4M3, I8, I32, U64, BOOL]
M, N, K = 100, 90, 40


@pytest.fixture
def always_sketch(monkeypatch):
    """Small products are not recomputed whole; only elements that the sums locate are recomputed."""
    monkeypatch.setattr(verify, "_RECOMPUTE", 0)


def draw(rng, shape, dtype, kind="normal"):
    if dtype.kind == "b":
        return rng.random(shape) < 0.3
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    x = rng.standard_normal(shape)
    if dtype.kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    if kind == "wide":
        reach = {"float16": 4, "float8_e4m3fn": 3, "float64": 200, "complex128": 200}.get(dtype.name, 30)
        x = x * np.exp2(rng.integers(-reach, reach + 1, shape))
    if kind == "wild":
        where = rng.random(shape)
        x = np.where(where < 0.002, np.inf, np.where(where < 0.004, -np.inf, np.where(where < 0.005, np.nan, x)))
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def drawn_options(rng, m, n, batch, kind, out):
    """Random options that a product with a result of dtype ``out`` takes."""
    integral, options = dtypes.info(out).kind in ("int", "uint", "bool"), {}

    def number():
        if out.kind == "b":
            return int(rng.integers(0, 2))
        if integral:
            return int(rng.integers(-5, 6))
        if out.kind == "c" and rng.random() < 0.5:
            return complex(*rng.standard_normal(2))
        return [0, 1, -1, 2.5, float(rng.standard_normal() * 2.0 ** rng.integers(-20, 20))][rng.integers(5)]

    if rng.random() < 0.5:
        options["alpha"] = number()
    if rng.random() < 0.5:
        shape = [(*batch, m, n), (m, n), (1, n), (n,)][rng.integers(4)]
        options.update(c=draw(rng, shape, out, kind), beta=number())
    if rng.random() < 0.5:
        options["bias"] = draw(rng, [(n,), (m, 1)][rng.integers(2)], out, kind)
    if dtypes.info(out).kind == "float":
        for name, shapes in (("scale_a", [(m,), (1,)]), ("scale_b", [(n,), (1, 1)])):
            if rng.random() < 0.4:
                options[name] = draw(rng, shapes[rng.integers(2)], F32, kind)
    if out.kind not in "bc" and rng.random() < 0.3:
        options["activation"] = "relu" if integral else ["relu", "gelu", "silu"][rng.integers(3)]
    return options


@pytest.mark.parametrize("kind", ["normal", "wide", "wild"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_right_products_are_right(dtype, kind, always_sketch):
    """Twenty of each dtype and kind of data, with random options: 660 in all."""
    for seed in range(20):
        rng = np.random.default_rng([seed, DTYPES.index(dtype), len(kind)])
        m, n, k = (int(x) for x in rng.integers(1, (90, 90, 200)))
        batch = (2,) * bool(rng.integers(2))
        a, b = draw(rng, (*batch, m, k), dtype, kind), draw(rng, (k, n), dtype, kind)
        out = F16 if dtype == E4M3 else dtypes.result_dtype(dtype, dtype)
        if dtype.kind == "i" and rng.random() < 0.5:
            out = [F32, F64][rng.integers(2)]
        options = {**drawn_options(rng, m, n, batch, kind, out), "out_dtype": out}
        verdict = spot_check(a, b, gemmhub.matmul(a, b, **options), seed=seed, **options)
        assert verdict, f"seed {seed}, {options}: {verdict}"
        assert 0 <= verdict.worst <= 1


def linear(rng, dtype):
    """Operands and options of a product whose sums are compared."""
    a, b = draw(rng, (M, K), dtype), draw(rng, (K, N), dtype)
    out = F16 if dtype == E4M3 else dtypes.result_dtype(dtype, dtype)
    options = {
        "alpha": 3, "beta": -2, "c": draw(rng, (M, N), out), "bias": draw(rng, (N,), out), "out_dtype": out,
    }  # fmt: skip
    if dtypes.info(out).kind == "float":
        scale_a = np.exp2(rng.integers(-3, 4, M)).astype(F32)
        scale_a[7] = 0.125  # the row with faults of its own: a larger bound of float8 sums would hide that of c
        options |= {"scale_a": scale_a, "scale_b": np.full(1, 0.75, F32)}
    return a, b, options


FAULTS = {
    "alpha forgotten": lambda o: {**o, "alpha": 1},
    "bias forgotten": lambda o: {**o, "bias": None},
    "bias of the next column": lambda o: {**o, "bias": np.roll(o["bias"], 1)},
    "c not added": lambda o: {**o, "c": None, "beta": 0},
    "sign of beta": lambda o: {**o, "beta": -o["beta"]},
    "one row of c": lambda o: {**o, "c": np.where(np.arange(M)[:, None] == 7, o["c"].dtype.type(0), o["c"])},
    "scale of one row": lambda o: {**o, "scale_a": np.where(np.arange(M) == 7, 2 * o["scale_a"], o["scale_a"])},
    "scale_b forgotten": lambda o: {**o, "scale_b": None},
    "activation skipped": lambda o: {**o, "activation": None},
    "another activation": lambda o: {**o, "activation": "gelu" if o["activation"] == "silu" else "silu"},
}


@pytest.mark.parametrize(
    ("dtype", "activation"),
    [(x, None) for x in (F16, BF16, F32, F64, C64, E4M3, I8, I32, U64)]
    + [(x, name) for x in (F16, BF16, F32, F64, E4M3) for name in ("relu", "silu", "gelu")]
    + [(x, "relu") for x in (I8, I32, U64)],
    ids=str,
)
def test_every_fault_of_an_epilogue_is_found(dtype, activation, always_sketch, rng):
    a, b, options = linear(rng, dtype)
    options["activation"] = activation
    if dtype.kind == "u" and activation == "relu":
        options["alpha"] = 2  # an unsigned result is never below 0
    right = gemmhub.matmul(a, b, **options)
    verdict = spot_check(a, b, right, **options)
    assert verdict, str(verdict)
    assert verdict.method == ("freivalds" if activation is None else "sampled")
    found = 0
    for name, fault in FAULTS.items():
        if ("scale" in name and "scale_a" not in options) or ("activation" in name and activation is None):
            continue
        if "activation" in name and options["out_dtype"].kind in "iu":
            continue
        if name == "another activation" and dtype == E4M3:
            continue  # the contract of fp8 sums permits a larger error than these functions differ by
        wrong = gemmhub.matmul(a, b, **fault(options))
        assert not spot_check(a, b, wrong, **options), name
        assert not spot_check(a, b, right, **fault(options)), name
        found += 1
    assert found >= 6
    for line in (np.s_[M - 1], np.s_[:, N - 1]):
        wrong = right.copy()
        wrong[line] = right[line][::-1]
        assert not spot_check(a, b, wrong, **options)


@pytest.mark.parametrize("dtype", [F16, BF16, F32, C64], ids=str)
def test_one_wrong_element_of_a_linear_epilogue_is_found(dtype, always_sketch, rng):
    """At 100 bounds, beyond ``detects`` of these sizes."""
    a, b, options = linear(rng, dtype)
    right = gemmhub.matmul(a, b, **options)
    detects = spot_check(a, b, right, **options).detects
    assert 0 < detects < 100
    given = {name: x for name, x in options.items() if name not in ("out_dtype", "scale_a")}
    model = accuracy.error_model(dtype, dtype, right.dtype, dtypes.compute_dtype(dtype, dtype, right.dtype))
    for _ in range(20):
        i, j = int(rng.integers(M)), int(rng.integers(N))
        row = {**given, "c": options["c"][i : i + 1]}
        row |= {"scale_a": options["scale_a"][i : i + 1]} if "scale_a" in options else {}
        reference = accuracy.reference(a[i : i + 1], b, model=model, **row)
        wrong = right.copy()
        rms = reference.bound.max() * np.sqrt(np.mean(np.square(reference.bound / reference.bound.max())))
        wrong[i, j] = reference.value[0, j] + 100 * rms
        verdict = spot_check(a, b, wrong, **options)
        assert not verdict
        assert verdict.where == (i, j)


@pytest.mark.parametrize("bit", [0, 7, 31])
def test_one_wrong_bit_of_an_integer_epilogue_is_found(bit, always_sketch, rng):
    a, b, options = linear(rng, I8)
    right = gemmhub.matmul(a, b, **options)
    for _ in range(20):
        i, j = int(rng.integers(M)), int(rng.integers(N))
        wrong = right.copy()
        wrong.view(np.uint32)[i, j] ^= np.uint32(1) << np.uint32(bit)
        assert spot_check(a, b, wrong, **options).where == (i, j)


def test_the_stated_chance_of_one_wrong_element_after_an_activation_is_the_true_one(always_sketch, rng):
    m, n = 130, 160
    a, b = draw(rng, (m, 20), F32), draw(rng, (20, n), F32)
    right = gemmhub.matmul(a, b, activation="silu")
    told = spot_check(a, b, right, activation="silu").reason
    assert "a row or a column of which half is wrong would have been seen but for a chance of 2**-32" in told
    stated = float(told.rpartition("chance of ")[2])
    assert stated == pytest.approx(1 - (1 - 32 / m) * (1 - 32 / n), abs=0.01)
    found, draws = 0, 300
    for _ in range(draws):
        wrong, where = right.copy(), (rng.integers(m), rng.integers(n))
        wrong[where] += 0.01
        found += not spot_check(a, b, wrong, activation="silu")
    assert abs(found / draws - stated) < 5 * np.sqrt(stated * (1 - stated) / draws)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e6])
def test_an_element_beyond_its_operands_is_found_after_an_activation(activation, value, always_sketch, rng):
    """Rows, columns and addends of very different size do not hide it."""
    a, b = draw(rng, (M, K), F32), draw(rng, (K, N), F32)
    options = {
        "bias": np.geomspace(1, 1e5, N).astype(F32), "scale_a": np.geomspace(1e-3, 1e3, M).astype(F32),
        "c": draw(rng, (M, N), F32), "beta": -2, "activation": activation,
    }  # fmt: skip
    right = gemmhub.matmul(a, b, **options)
    for _ in range(10):
        wrong, where = right.copy(), (int(rng.integers(M)), int(rng.integers(N)))
        wrong[where] = value
        assert spot_check(a, b, wrong, **options).where == where


@pytest.mark.parametrize("name", ["c", "bias", "scale_a", "scale_b"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_options_that_are_not_finite(name, value, always_sketch, rng):
    a, b, options = linear(rng, F32)
    options[name] = np.broadcast_to(options[name], {"scale_b": (N,)}.get(name, options[name].shape)).copy()
    options[name][3] = value
    right = gemmhub.matmul(a, b, **options)
    assert not np.isfinite(right).all()
    verdict = spot_check(a, b, right, **options)
    assert verdict, str(verdict)
    index = tuple(np.argwhere(~np.isfinite(right))[-1])
    for other in (0.0, np.nan, np.inf, -np.inf):
        wrong = right.copy()
        wrong[index] = other
        same = np.array_equal(wrong, right, equal_nan=True)
        # There is no bound for elements whose scales are not finite.
        assert spot_check(a, b, wrong, **options).ok == (same or name.startswith("scale")), other
    clean = tuple(int(x) for x in np.argwhere(np.isfinite(right))[-1])
    wrong = right.copy()
    wrong[clean] += 1000
    assert spot_check(a, b, wrong, **options).where == clean


def test_the_kinds_of_all_elements_with_infinite_addends_are_compared(rng):
    """More of them than are ever recomputed: one of another sign is found all the same."""
    a, b = draw(rng, (300, 60), F32), draw(rng, (60, 300), F32)
    c = np.where(rng.random((300, 300)) < 0.5, F32.type(np.inf), F32.type(-np.inf))
    right = gemmhub.matmul(a, b, c=c, beta=-1)
    verdict = spot_check(a, b, right, c=c, beta=-1)
    assert verdict
    assert "further elements" not in verdict.reason
    right[123, 45] *= -1
    assert spot_check(a, b, right, c=c, beta=-1).where == (123, 45)


def test_addends_of_very_different_size_do_not_hide_errors(always_sketch, rng):
    """A column with a large bias does not raise the threshold of the others in its group."""
    a, b, bias = draw(rng, (M, K), F32), draw(rng, (K, N), F32), draw(rng, (N,), F32)
    bias *= np.exp2(rng.integers(0, 40, N)).astype(F32)
    right = gemmhub.matmul(a, b, bias=bias)
    small = int(np.argmin(np.abs(bias)))
    for _ in range(10):
        wrong, where = right.copy(), (int(rng.integers(M)), small)
        wrong[where] += 0.05
        assert spot_check(a, b, wrong, bias=bias).where == where


def test_sums_of_right_products_stay_below_their_thresholds(rng):
    """No recomputation is called for: the sums carry the whole epilogue."""
    for dtype in (F16, BF16, F32, F64, C64, E4M3):
        a, b, options = linear(rng, dtype)
        right = gemmhub.matmul(a, b, **options)
        described = gemmhub._call.describe.describe(a, b, None, gemmhub._call.options.request(options))
        whole = product.product(described, gemmhub._call.options.request(options))
        found = freivalds.sketch(a, b, right, whole.model, 1, rng, Affine.of(whole, ()))
        assert found.ratio.max() < 0.5, dtype


def test_every_option_of_a_product_is_taken(rng):
    """Whatever matmul takes, but out, spot_check and compare take."""
    a, b = draw(rng, (60, 50), F32), draw(rng, (50, 40), F32)
    values = {
        "out_dtype": F64, "alpha": 2, "beta": 3, "c": np.ones((60, 40)), "bias": np.ones(40),
        "scale_a": np.ones(60, F32), "scale_b": np.ones(1, F32), "activation": "relu", "precision": "tf32",
        "reproducible": "run", "backend": "numpy", "stream": None,
    }  # fmt: skip
    assert values.keys() >= {name for name in OPTIONS if name in values} >= set(ARRAYS) & values.keys()
    right = gemmhub.matmul(a, b, **values)
    assert spot_check(a, b, right, **values)
    assert spot_check(a, b, right, samples=20, seed=0, **values).checked == 20
    assert spot_check(a, b, right, points=[(3, 4)], **values).checked == 1
    assert not spot_check(a, b, right + 1, points=[(3, 4)], **values)
    assert gemmhub.compare(a, b, **values)


@pytest.mark.parametrize("axes", ["", "m", "n"])
def test_an_operand_that_only_the_reference_knows_is_recomputed_with(axes, monkeypatch, rng):
    """A new operand needs no line here: what it runs along is read from its field, and no sums are trusted."""
    plain = accuracy.reference

    def reference(*operands, scale_out, **rest):
        found = plain(*operands, **rest)
        size = np.abs(scale_out)
        return accuracy.Reference(found.value * scale_out, found.bound * size, found.magnitude, found.model, np.True_)

    monkeypatch.setattr(accuracy, "reference", reference)
    monkeypatch.setattr(verify, "_RECOMPUTE", 0)
    a, b = draw(rng, (M, K), F64), draw(rng, (K, N), F64)
    factor = np.exp2(rng.integers(-3, 4, {"": 1, "m": M, "n": N}[axes])).astype(F64)
    model = accuracy.error_model(F64, F64, F64, F64)
    whole = product.Product(a, b, (), model, F64, 1.0, 0.0, None, {"scale_out": (factor, axes)})
    right = (a @ b) * (factor[:, None] if axes == "m" else factor)

    def check(result):
        found = verify._Check(whole, result)
        found.batches(np.random.default_rng(0))
        return found.verdict(2, 2)

    assert check(right)
    assert check(right).method == "sampled"
    for line in (np.s_[M - 1], np.s_[:, N - 1]):
        wrong = right.copy()
        wrong[line] *= 2
        assert not check(wrong)


@pytest.mark.parametrize(("a", "b", "bias"), [
    ((5,), (5, 3), (3,)), ((4, 5), (5,), (4,)), ((2, 4, 5), (5, 3), (4, 1)), ((2, 1, 4, 5), (3, 5, 6), (1, 6)),
    ((5,), (5,), (1,)), ((0, 5), (5, 3), (3,)), ((4, 0), (0, 3), (4, 1)),
])  # fmt: skip
@pytest.mark.parametrize("activation", [None, "silu"])
def test_shapes_are_those_of_matmul(a, b, bias, activation, monkeypatch, rng):
    a, b, bias = (draw(rng, shape, F32) for shape in (a, b, bias))
    c = draw(rng, gemmhub.matmul(a, b).shape, F32)
    options = {"c": c, "beta": 2, "bias": bias, "activation": activation}
    right = gemmhub.matmul(a, b, **options)
    for limit in (verify._RECOMPUTE, 0):
        monkeypatch.setattr(verify, "_RECOMPUTE", limit)
        assert spot_check(a, b, right, **options)
        if right.size:
            index = tuple(int(rng.integers(size)) for size in right.shape)
            wrong = np.array(right)
            wrong[index] += 10
            assert spot_check(a, b, wrong, **options).where == index
            assert not spot_check(a, b, wrong, points=[index], **options)


def test_an_addend_of_a_batch_is_its_own(always_sketch, rng):
    a, b, c = draw(rng, (3, 40, 50), F32), draw(rng, (50, 60), F32), draw(rng, (3, 40, 60), F32)
    right = gemmhub.matmul(a, b, c=c, beta=1)
    assert spot_check(a, b, right, c=c, beta=1)
    assert not spot_check(a, b, right, c=c[[0, 2, 1]], beta=1)
    assert not spot_check(a, b, right, c=c[0], beta=1)


def test_integers_that_wrap(always_sketch, rng):
    for dtype in (I32, np.dtype(np.int64), U64, np.dtype(np.uint8)):
        a, b = draw(rng, (70, 90), dtype), draw(rng, (90, 80), dtype)
        out = dtypes.result_dtype(dtype, dtype)
        options = {"alpha": -(2**31) + 1, "beta": 3, "c": draw(rng, (70, 80), out), "bias": draw(rng, (70, 1), out)}
        right = gemmhub.matmul(a, b, **options)
        assert spot_check(a, b, right, **options)
        for bit in (0, 8 * out.itemsize - 1):
            wrong = right.copy()
            wrong.view(f"u{out.itemsize}")[6, 7] ^= np.array(1, f"u{out.itemsize}") << np.array(bit, f"u{out.itemsize}")
            assert spot_check(a, b, wrong, **options).where == (6, 7)


def test_alpha_of_zero_reads_no_operand(always_sketch, rng):
    a, b, bias = np.full((60, 50), np.nan, F32), np.full((50, 40), np.inf, F32), draw(rng, (40,), F32)
    right = gemmhub.matmul(a, b, alpha=0, bias=bias)
    assert np.isfinite(right).all()
    assert spot_check(a, b, right, alpha=0, bias=bias)
    right[3, 4] += 1
    assert spot_check(a, b, right, alpha=0, bias=bias).where == (3, 4)


def test_scalars_that_are_not_finite(always_sketch, rng):
    a, b = np.abs(draw(rng, (60, 50), F32)), np.abs(draw(rng, (50, 40), F32))
    right = gemmhub.matmul(a, b, alpha=np.inf)
    verdict = spot_check(a, b, right, alpha=np.inf)
    assert verdict, str(verdict)
    assert verdict.method == "sampled"
    assert not spot_check(a, b, -right, alpha=np.inf)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_large_addends_are_never_widened_whole(activation):
    """16 Mi elements of the addend and of the result: float64 copies of both would take 256 MiB."""
    a, b, c = np.zeros((4096, 32), F16), np.zeros((32, 4096), F16), np.zeros((4096, 4096), F16)
    scale = np.ones(4096, F32)
    tracemalloc.start()
    try:
        assert spot_check(a, b, c, c=c, beta=2, bias=c[0], scale_a=scale, scale_b=scale, activation=activation, seed=0)
        assert tracemalloc.get_traced_memory()[1] < 250 * 2**20
    finally:
        tracemalloc.stop()


# Gated activations: half as many columns


GATED = [name for name, x in EPILOGUES.items() if x.arity == 2]


@pytest.mark.parametrize("name", GATED)
def test_a_gated_activation_has_half_as_many_columns(name, rng):
    a, b, c = draw(rng, (2, 100, 60), F32), draw(rng, (60, 140), F32), draw(rng, (2, 100, 140), F32)
    bias, scale = draw(rng, (140,), F32), np.exp2(rng.integers(-2, 3, 100)).astype(F32)
    options = {"alpha": 2.0, "beta": 3.0, "c": c, "bias": bias, "scale_a": scale, "activation": name}
    right = EPILOGUES[name](2 * scale[:, None] * (a.astype(F64) @ b) + 3.0 * c + bias).astype(F32)
    found = spot_check(a, b, right, **options)
    assert found, str(found)
    assert found.method == "recomputed"
    assert spot_check(a, b, right, points=[(0, 0, 0), (0, 0, 69), (1, 99, 69)], **options)
    wrong = right.copy()
    wrong[1, 7, 30] += 1
    assert spot_check(a, b, wrong, **options).where == (1, 7, 30)
    assert spot_check(a, b, wrong, points=[(1, 7, 30)], **options).where == (1, 7, 30)


@pytest.mark.parametrize("name", GATED)
def test_faults_of_a_large_gated_product_are_found(name, monkeypatch, rng):
    monkeypatch.setattr(verify, "_RECOMPUTE", 0)
    a, b = draw(rng, (200, 60), F32), draw(rng, (60, 240), F32)
    right = EPILOGUES[name](a.astype(F64) @ b).astype(F32)
    found = spot_check(a, b, right, activation=name)
    assert found, str(found)
    assert found.method == "sampled"
    for line in (np.s_[150], np.s_[:, 100]):
        wrong = right.copy()
        wrong[line] *= 2
        assert not spot_check(a, b, wrong, activation=name)
    wrong = right.copy()
    wrong[3, 4] = np.nan
    assert spot_check(a, b, wrong, activation=name).where == (3, 4)
    others = {name: EPILOGUES[name](a.astype(F64) @ b).astype(F32) for name in GATED}
    for other, result in others.items():
        assert bool(spot_check(a, b, result, activation=name)) is (other == name)


SCALES = {
    "rows by blocks of k": {"scale_a": (200, 3)},
    "blocks of k and n": {"scale_b": (3, 2)},
    "columns by blocks of k": {"scale_b": (3, 240)},
    "both": {"scale_a": (200, 3), "scale_b": (3, 2)},
    "result": {"scale_out": (1,)},
}


@pytest.mark.parametrize("activation", [None, "swiglu", "silu"])
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("shapes", SCALES.values(), ids=SCALES)
def test_scales_of_every_form(shapes, large, activation, monkeypatch, rng):
    if large:
        monkeypatch.setattr(verify, "_RECOMPUTE", 0)
    a, b = draw(rng, (200, 300), F32), draw(rng, (300, 240), F32)
    options = {name: rng.uniform(0.5, 2, shape).astype(F32) for name, shape in shapes.items()}
    options["activation"] = activation
    right = gemmhub.matmul(a, b, **options)
    found = spot_check(a, b, right, **options)
    assert found, str(found)
    for name, shape in shapes.items():
        scale = options[name].copy()
        scale[-1] *= 1.5  # a row, or a block of k
        assert not spot_check(a, b, right, **{**options, name: scale}), f"{name} {shape}"


def test_what_a_call_writes_is_refused_and_checked_as_a_result(rng):
    a, b = draw(rng, (20, 30), F32), draw(rng, (30, 40), F32)
    before, amax = np.empty((20, 40), F32), np.empty(1, F32)
    right = gemmhub.matmul(a, b, activation="silu", pre_activation=before, amax=amax)
    assert spot_check(a, b, right, activation="silu")
    assert spot_check(a, b, before)
    for name, x in (("pre_activation", before), ("amax", amax)):
        with pytest.raises(InputError) as caught:
            spot_check(a, b, right, activation="silu", **{name: x})
        assert caught.value.argument == name


# Arguments


@pytest.mark.parametrize(("error", "argument", "options"), [
    (InputError, "out", {"out": np.ones((2, 2))}),
    (InputError, "beta", {"beta": 2}),
    (InputError, "c", {"c": np.ones((2, 2))}),
    (ShapeError, "c", {"c": np.ones((3, 2)), "beta": 1}),
    (DTypeError, "c", {"c": np.ones((2, 2), int), "beta": 1}),
    (ShapeError, "bias", {"bias": np.ones(3)}),
    (DTypeError, "scale_a", {"scale_a": np.ones(2)}),
    (ShapeError, "scale_b", {"scale_b": np.ones(3, F32)}),
    (InputError, "activation", {"activation": "softmax"}),
    (InputError, "alpha", {"alpha": "one"}),
    (InputError, "alpha", {"alpha": 1j}),
    (DTypeError, "result", {"out_dtype": "float32"}),
    (InputError, "stream", {"stream": 0}),
    (InputError, "backend", {"backend": "a,b"}),
])  # fmt: skip
def test_bad_options(error, argument, options):
    with pytest.raises(error) as caught:
        spot_check(np.ones((2, 2)), np.ones((2, 2)), np.full((2, 2), 2.0), **options)
    assert caught.value.argument == argument


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match=r"argument 'bais'; did you mean bias=\?; allowed: points, samples, seed, "):
        spot_check(np.ones((2, 2)), np.ones((2, 2)), np.full((2, 2), 2.0), bais=np.ones(2))
    with pytest.raises(TypeError, match="result"):
        spot_check(np.ones((2, 2)), np.ones((2, 2)), c=np.full((2, 2), 2.0))


def test_the_reason_of_a_sampled_check_reads_well(rng):
    a, b = draw(rng, (300, 100), F32), draw(rng, (100, 256), F32)
    right = spot_check(a, b, gemmhub.matmul(a, b, activation="relu"), activation="relu", seed=0)
    assert re.fullmatch(
        r"every recomputed element is within its bound, the worst at \S+ of it; a row or a column of which half "
        r"is wrong would have been seen but for a chance of 2\*\*-32, and a single wrong element with a chance of 0.22",
        right.reason,
    ), right.reason
