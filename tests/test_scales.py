"""Scales of operands: ``(a * scale_a) @ (b * scale_b)``, with one factor, or one for each row of a and column of b."""

from __future__ import annotations

import importlib.util
import pickle
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from products import BF16, E4M3, F16, F32, F64, I8, I32, U8, draw

import gemmhub
from gemmhub import accuracy, dtypes
from gemmhub._call import describe, options
from gemmhub.errors import DTypeError, InputError, NoBackendError, ShapeError
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.problem import Scale

KINDS = [
    (I8, I8, F32), (U8, I8, F32), (I8, I8, F64), (E4M3, E4M3, BF16), (E4M3, E4M3, F32), (F16, F16, F16),
    (BF16, BF16, BF16), (BF16, BF16, F32), (F32, F32, F32), (F64, F64, F64), (I32, I32, F64), (F16, F32, F32),
]  # fmt: skip


def factors(rng, size, one=False):
    """float32 factors over a wide range, of either sign."""
    exponents = rng.integers(-12, 5, 1 if one else size)
    return np.ldexp(rng.uniform(-2, 2, exponents.shape), exponents).astype(np.float32)


def plain_sum(a, b, scale_a, scale_b):
    """The scaled product in float64."""
    left = a.astype(np.float64) * np.reshape(scale_a, (-1, 1)).astype(np.float64)
    return left @ (b.astype(np.float64) * np.reshape(scale_b, (1, -1)).astype(np.float64))


def ratio(got, a, b, **given):
    """The largest error over its bound."""
    model = accuracy.error_model(a.dtype, b.dtype, got.dtype, dtypes.compute_dtype(a.dtype, b.dtype, got.dtype))
    return np.max(accuracy.reference(a, b, model=model, out_dtype=got.dtype, **given).ratio(got), initial=0.0)


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: ",".join(map(str, kinds)))
@pytest.mark.parametrize("one", [(True, True), (False, False), (True, False)], ids=str)
def test_the_product_of_scaled_operands(kinds, one, rng):
    m, n, k = (int(x) for x in rng.integers(2, 90, 3))
    a, b = draw(rng, (m, k), kinds[0]), draw(rng, (k, n), kinds[1])
    scale_a, scale_b = factors(rng, m, one[0]), factors(rng, n, one[1])
    for _ in range(2):  # decided, and seen before
        got = gemmhub.matmul(a, b, out_dtype=kinds[2], scale_a=scale_a, scale_b=scale_b)
        assert got.dtype == kinds[2]
        assert ratio(got, a, b, scale_a=scale_a, scale_b=scale_b) <= 1
    value, near = plain_sum(a, b, scale_a, scale_b), dtypes.info(kinds[2]).unit_roundoff
    size = plain_sum(abs(a.astype(F64)), abs(b.astype(F64)), abs(scale_a), abs(scale_b))
    assert np.all(np.abs(got.astype(F64) - value) <= (near + (k + 6) * 2.0**-23) * size + 2.0**-24)


def test_the_whole_epilogue(rng):
    a, b = draw(rng, (3, 17, 40), I8), draw(rng, (40, 23), I8)
    scale_a, scale_b = np.abs(factors(rng, 17)), np.abs(factors(rng, 23))
    c, bias = draw(rng, (3, 17, 23), F32), draw(rng, (23,), F32)
    given = {"alpha": 0.5, "beta": -2, "c": c, "bias": bias, "scale_a": scale_a, "scale_b": scale_b}
    got = gemmhub.matmul(a, b, out_dtype="float32", activation="relu", **given)
    assert ratio(got, a, b, activation="relu", **given) <= 1
    exact = np.matmul(a.astype(F64) * scale_a[:, None], b.astype(F64) * scale_b)
    expected = np.maximum(0.5 * exact - 2 * c + bias, 0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-3 * np.abs(exact).max())


@pytest.mark.parametrize("kind", [F32, F16, BF16])
def test_small_blocks_take_their_own_factors(kind, rng):
    """A small limit of scratch memory cuts rows, columns and k."""
    a, b = draw(rng, (150, 300), kind), draw(rng, (300, 170), kind)
    scale_a, scale_b = factors(rng, 150), factors(rng, 170)
    got, given = np.empty((150, 170), F32), {"scale_a": scale_a, "scale_b": scale_b}
    asked = describe.describe(a, b, got, options.request(given)).problem
    kernel = NumpyBackend().prepare(asked, "default", 2**16)
    assert "blocks of 64 x 64" in kernel.description
    kernel.run(a, b, got, 1, 0, None, scale_a=scale_a[:, None], scale_b=scale_b[None])
    assert ratio(got, a, b, scale_a=scale_a, scale_b=scale_b) <= 1


def test_a_batch_with_a_shared_b_is_not_folded(rng):
    a, b = draw(rng, (4, 6, 8), F16), draw(rng, (8, 5), F16)
    scale_a = factors(rng, 6)
    got = gemmhub.matmul(a, b, out_dtype="float32", scale_a=scale_a)
    assert ratio(got, a, b, scale_a=scale_a) <= 1


def test_factors_that_all_matrices_of_a_stack_share(rng):
    """With leading dimensions of 1, where the stack is multiplied as one matrix."""
    a, b = draw(rng, (4, 6, 8), F32), draw(rng, (8, 5), F32)
    for given in ({"scale_b": factors(rng, 5).reshape(1, 1, 5)}, {"scale_a": factors(rng, 1, True).reshape(1, 1, 1)}):
        got = gemmhub.matmul(a, b, pre_activation=np.empty((4, 6, 5), F32), **given)
        assert ratio(got, a, b, **given) <= 1


def test_vectors(rng):
    x, b = draw(rng, 8, F32), draw(rng, (8, 5), F32)
    scale, one = factors(rng, 5), factors(rng, 1)
    assert ratio(gemmhub.matmul(x, b, scale_a=one, scale_b=scale)[None], x[None], b, scale_a=one, scale_b=scale) <= 1
    assert ratio(gemmhub.matmul(b.T, x, scale_a=scale)[:, None], b.T, x[:, None], scale_a=scale) <= 1
    assert gemmhub.matmul(x, x, scale_a=one[0], scale_b=np.float32(2)).shape == ()


def test_layouts_of_scales(rng):
    a, b = draw(rng, (12, 30), F16), draw(rng, (30, 12), F16)
    scale = factors(rng, 12)
    expected = gemmhub.matmul(a, b, scale_a=scale, scale_b=scale)
    spread = np.repeat(scale, 3)[::3]
    packed = np.zeros(12, np.dtype([("x", "i1"), ("y", np.float32)]))
    packed["y"] = scale
    for other in (spread, spread[::-1][::-1], packed["y"], scale[:, None], np.asfortranarray(scale)):
        assert np.array_equal(gemmhub.matmul(a, b, scale_a=other, scale_b=scale), expected)
        assert np.array_equal(gemmhub.matmul(b.T, a.T, scale_a=scale, scale_b=other.T), expected.T)
    with pytest.raises(ShapeError):
        gemmhub.matmul(a, b, scale_b=scale[:, None])


def test_out_over_a_scale(rng):
    a, b = draw(rng, (6, 6), F32), draw(rng, (6, 6), F32)
    out = factors(rng, 36).reshape(6, 6)
    before = out.copy()
    assert gemmhub.explain(a, b, out=out, scale_a=out[0]).copies[0].operand == "out"
    gemmhub.matmul(a, b, out=out, scale_a=out[0], scale_b=out[3])
    assert ratio(out, a, b, scale_a=before[0], scale_b=before[3]) <= 1


def test_alpha_zero_leaves_scales_away(rng):
    a, b = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32)
    scale, nothing = np.array([np.nan, np.inf, 1], F32), np.zeros((3, 5), F32)
    assert np.array_equal(gemmhub.matmul(a, b, alpha=0, scale_a=scale), nothing)
    assert ratio(nothing, a, b, alpha=0, scale_a=scale) == 0
    nothing[0, 2] = 1e-20
    assert ratio(nothing, a, b, alpha=0, scale_a=scale) > 1


def test_factors_that_are_not_finite_stay_in_their_rows(rng):
    a, b = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32)
    got = gemmhub.matmul(a, b, scale_a=np.array([np.nan, np.inf, 1], F32))
    assert np.isnan(got[0]).all()
    assert np.isinf(got[1]).all()
    assert np.isfinite(got[2]).all()


@pytest.mark.parametrize("kind", [F32, I8])
def test_the_bound_promises_nothing_of_factors_that_are_not_finite(kind, rng):
    a, b, scale = draw(rng, (3, 4), kind), draw(rng, (4, 5), kind), np.array([np.nan, np.inf, 1], F32)
    got = gemmhub.matmul(a, b, out_dtype="float32", scale_a=scale)
    got[:2] = 3
    assert ratio(got, a, b, scale_a=scale) <= 1
    got[2, 3] = np.nan
    assert ratio(got, a, b, scale_a=scale) > 1


def test_the_bound_counts_an_operation_for_each_scale():
    one, scale = np.ones((1, 1), F32), np.ones(1, F32)
    model = accuracy.error_model(F32, F32, F32, F32)
    bounds = [accuracy.reference(one, one, model=model, scale_a=x, scale_b=y).bound[0, 0] for x, y in (
        (None, None), (scale, None), (scale, scale))]  # fmt: skip
    assert np.allclose(np.diff(bounds), 2.0**-24, rtol=1e-3)


def test_partial_products_that_underflow():
    """Factors of any size in any order: the sum by a small one first, or two small ones first."""
    a, b = np.full((1, 1), 1 + 2.0**-9, F32), np.full((1, 1), 2.0**-40, F32)
    small, large = np.full(1, 2.0**-105, F32), np.full(1, 2.0**105, F32)
    got = gemmhub.matmul(a, b, scale_a=small, scale_b=large)
    assert got[0, 0] != b[0, 0] * a[0, 0]
    assert ratio(got, a, b, scale_a=small, scale_b=large) <= 1
    small, b = np.full(1, 2.0**-80, F32), np.full((1, 1), 2.0**60, F32)
    for kind, wide in ((F32, b), (I8, np.ones((1, 1), I8))):
        first = ratio(np.zeros((1, 1), F32), np.ones((1, 1), kind), wide, scale_a=small, scale_b=small)
        assert first <= 1, kind


def test_factors_whose_product_leaves_the_range_of_float32(rng):
    a, b = np.full((2, 3), 2.0**60, F32), np.full((3, 2), 2.0**60, F32)
    small, large = np.array([2.0**-130, 2.0**-70], F32), np.array([2.0**-100, 2.0**100], F32)
    got = gemmhub.matmul(a, b, scale_a=small, scale_b=large)
    assert ratio(got, a, b, scale_a=small, scale_b=large) <= 1
    assert ratio(np.zeros((2, 2), F32), a, b, scale_a=small, scale_b=large) > 1


# Checked before anything is written


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"scale_a": np.ones(3, F32)}, DTypeError, "scale_a: given for a result of int32; allowed: real floating"),
        ({"scale_a": np.ones(3), "out_dtype": F32}, DTypeError, "scale_a: dtype float64; allowed: float32"),
        ({"scale_b": 0.5, "out_dtype": F32}, DTypeError, "pass one number as alpha="),
        ({"scale_a": np.ones(5, F32), "out_dtype": F32}, ShapeError, r"shape \(5,\); allowed: one element, \(3,\)"),
        ({"scale_b": np.ones(3, F32), "out_dtype": F32}, ShapeError, r"one element, \(5,\), or \(1, 1 or 5\)"),
        ({"scale_b": np.ones((5, 1), F32), "out_dtype": F32}, ShapeError, r"shape \(5, 1\).* pass scale_b.T"),
        ({"scale_a": np.ones((1, 3), F32), "out_dtype": F32}, ShapeError, r"shape \(1, 3\).* pass scale_a.T"),
        ({"scale_a": np.ones((1, 5), F32), "out_dtype": F32}, ShapeError, "it fits scale_b: are the two exchanged"),
        ({"scale_b": np.ones((3, 1), F32), "out_dtype": F32}, ShapeError, "it fits scale_a: are the two exchanged"),
        ({"scale_b": np.ones((2, 5), F32), "out_dtype": F32}, ShapeError, "batch dimensions before$"),
        ({"scale_a": np.ones((1, 3, 1), F32), "out_dtype": F32}, ShapeError, "scale_a"),
        ({"scale_a": "ab", "out_dtype": F32}, InputError, "scale_a"),
    ],
)
def test_wrong_scales(given, error, message, rng):
    a, b, out = draw(rng, (3, 4), I8), draw(rng, (4, 5), I8), np.full((3, 5), 7, F32)
    with pytest.raises(error, match=message):
        gemmhub.matmul(a, b, **given, **({"out": out} if "out_dtype" in given else {}))
    assert (out == 7).all()


def test_complex_products_have_none(rng):
    a = draw(rng, (3, 3), np.complex64)
    with pytest.raises(DTypeError, match="scale_a: given for a result of complex64"):
        gemmhub.matmul(a, a, scale_a=np.ones(1, F32))


def test_the_problem(rng):
    a, b = draw(rng, (3, 4), F16), draw(rng, (4, 5), F16)

    def described(**given):
        return describe.describe(a, b, None, options.request(given)).problem

    asked = described(scale_a=np.ones((3, 1), F32), scale_b=np.ones(1, F32))
    assert dict(asked.operands) == {"scale_a": Scale("m"), "scale_b": Scale(None)}
    assert not asked.plain
    assert asked.per_row
    assert asked.key == f"{described().key} scale_a=row scale_b=tensor"
    assert described(scale_b=np.ones(10, F32)[::2]).operands["scale_b"] == Scale("n", 2)
    assert described(scale_a=None) == described()


# Other calls


def test_plans(rng):
    a, b = draw(rng, (16, 24), I8), draw(rng, (24, 8), I8)
    first, second = factors(rng, 16), factors(rng, 16)
    plan = gemmhub.plan(a, b, out_dtype="float32", scale_a=first)
    for scale in (first, second, np.repeat(second, 2)[::2]):
        for _ in range(2):
            assert ratio(plan(a, b, scale_a=scale), a, b, scale_a=scale) <= 1
    with pytest.raises(InputError, match="scale_a"):
        plan(a, b)
    with pytest.raises(InputError, match="scale_a"):
        plan(a, b, scale_a=first[:1])
    with pytest.raises(InputError, match="make a plan with scale_b="):
        plan(a, b, scale_a=first, scale_b=first[:8])
    with pytest.raises(InputError, match="make a plan with scale_a="):
        gemmhub.plan(a, b, out_dtype="float32")(a, b, scale_a=first)
    again = pickle.loads(pickle.dumps(plan))
    assert np.array_equal(again(a, b, scale_a=second), plan(a, b, scale_a=second))


def test_packed_b(rng):
    a, b = draw(rng, (16, 24), I8), draw(rng, (24, 8), I8)
    scale_a, scale_b = factors(rng, 16), factors(rng, 8)
    packed = gemmhub.pack(b, backend="numpy")
    got = gemmhub.matmul(a, packed, out_dtype="float32", scale_a=scale_a, scale_b=scale_b)
    assert ratio(got, a, b, scale_a=scale_a, scale_b=scale_b) <= 1


def test_compare_tune_and_race_check_scaled_products(rng, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMHUB_RECORDS", str(tmp_path / "records.jsonl"))
    gemmhub.reload()
    a, b = draw(rng, (20, 24), F16), draw(rng, (24, 8), F16)
    given = {"scale_a": factors(rng, 20), "scale_b": factors(rng, 8)}
    found = gemmhub.compare(a, b, **given)
    assert {row.backend: row.ok for row in found.rows}["numpy"]
    assert all(row.seconds is not None for row in gemmhub.tune(a, b, **given).rows if row.backend == "numpy")
    with gemmhub.use(tune="first"):
        assert ratio(gemmhub.matmul(a, b, **given), a, b, **given) <= 1


def test_a_comparison_sees_rows_that_are_scaled_by_others(rng, monkeypatch):
    from gemmhub.numpy_backend import blocked

    a, b, scale = draw(rng, (20, 24), F16), draw(rng, (24, 8), F16), factors(rng, 20)
    right = blocked.Scales
    monkeypatch.setattr(blocked, "Scales", lambda x, y, n: right(x[::-1], y, n))
    assert gemmhub.compare(a, b, scale_a=scale, backends=["numpy"]).deviating == ("numpy",)


def test_a_backend_without_scales_refuses_and_says_so(rng):
    from gemmhub import Backend, BackendDescription, Device, Kernel, Ready
    from gemmhub._choice import registry

    class Unscaled(Backend):
        name = "unscaled"

        def probe(self):
            return Ready((Device(),))

        def offer(self, problem):
            return gemmhub.Offer((gemmhub.Candidate(seconds=1e-9),))

        def prepare(self, problem, candidate, workspace_limit):
            return Kernel(lambda a, b, out, *_: np.matmul(a, b, out=out), "no scales")

    registry.registry().add(BackendDescription("unscaled", Unscaled, "for tests", contract=2), "unscaled", "unscaled")
    a, b, scale = draw(rng, (3, 4), F32), draw(rng, (4, 5), F32), factors(rng, 3)
    assert gemmhub.explain(a, b).chosen == "unscaled"
    assert gemmhub.explain(a, b, scale_a=scale).chosen == "numpy"
    with pytest.raises(NoBackendError) as caught:
        gemmhub.matmul(a, b, scale_a=scale, backend="unscaled")
    refused = caught.value.decision["unscaled"]
    assert refused.reason == "it does not take quantization scales (scale_a=)"
    assert "pass one factor as alpha=" in refused.remedy


def test_a_kernel_gets_scales_that_out_lies_over_and_no_shortcut(rng):
    from gemmhub import Backend, BackendDescription, Device, Kernel, Ready
    from gemmhub._choice import registry

    def run(a, b, out, alpha, beta, stream, scale_a):
        out[...] = np.nan
        np.matmul(a, b, out=out)
        out *= scale_a

    def never(*_):
        raise AssertionError("the product without its scales")

    class Scaled(Backend):
        name = "scaled"
        takes = {"scale_a": frozenset({"row"})}  # noqa: RUF012

        def probe(self):
            return Ready((Device(),))

        def offer(self, problem):
            return gemmhub.Offer()

        def prepare(self, problem, candidate, workspace_limit):
            return Kernel(run, "scaled", direct=never)

    registry.registry().add(BackendDescription("scaled", Scaled, "for tests", contract=2), "scaled", "scaled")
    a, b, out = draw(rng, (6, 6), F32), draw(rng, (6, 6), F32), np.empty((6, 6), F32)
    plan = gemmhub.plan(a, b, out=out, scale_a=out[2], backend="scaled")
    for call in (partial(gemmhub.matmul, backend="scaled"), plan):
        for _ in range(2):
            out[...] = factors(rng, 36).reshape(6, 6)
            scale = out[2].copy()
            call(a, b, out=out, scale_a=out[2])
            assert ratio(out, a, b, scale_a=scale) <= 1


def test_a_warm_call_describes_nothing(rng, monkeypatch):
    a, b, scale = draw(rng, (3, 4), I8), draw(rng, (4, 5), I8), factors(rng, 3)
    given = {"out_dtype": F32, "scale_a": scale}
    gemmhub.matmul(a, b, **given)

    def never(*_, **named):
        raise AssertionError

    monkeypatch.setattr(describe, "describe", never)
    assert ratio(gemmhub.matmul(a, b, **given), a, b, scale_a=scale) <= 1
    given["scale_a"] = factors(rng, 3)  # other numbers are no other kind of call
    assert ratio(gemmhub.matmul(a, b, **given), a, b, scale_a=given["scale_a"]) <= 1
    with pytest.raises(AssertionError):
        gemmhub.matmul(a, b, out_dtype=F32, scale_a=scale[:1])


def test_of_torch(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b = torch.randn(6, 8, dtype=torch.bfloat16), torch.randn(8, 5, dtype=torch.bfloat16)
    scale = torch.from_numpy(factors(rng, 6))
    view = lambda x: x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)  # noqa: E731
    for _ in range(2):
        got = gemmhub.matmul(a, b, scale_a=scale)
        assert isinstance(got, torch.Tensor)
        assert ratio(view(got), view(a), view(b), scale_a=scale.numpy()) <= 1
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            assert torch.equal(gemmhub.matmul(a, b, scale_a=scale), got)
            assert gemmhub.matmul(a.float(), b.float(), scale_a=scale).dtype is torch.bfloat16
    for wanting in ("a", "scale_a"):
        given = {"a": a.float(), "b": b.float(), "scale_a": scale}
        given[wanting] = given[wanting].clone().requires_grad_()
        left, right = given.pop("a"), given.pop("b")
        with pytest.raises(InputError, match="scale_a: given with a tensor that requires grad"):
            gemmhub.matmul(left, right, **given)
        with torch.no_grad():
            assert gemmhub.matmul(left, right, **given).shape == (6, 5)
    with pytest.raises(Exception, match="scale_a: given in a function that torch traces"):
        torch.func.vmap(lambda x: gemmhub.matmul(x, b, scale_a=scale))(a[None])


def test_of_jax(rng):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    x = jax.numpy.asarray(draw(rng, (4, 4), F32))
    scale = jax.numpy.asarray(factors(rng, 4))
    calls = [lambda y: gemmhub.matmul(y, x, scale_a=scale)]
    if importlib.util.find_spec("jax_tvm_ffi"):
        calls += [jax.jit(calls[0])]
    for call in calls:
        assert ratio(np.asarray(call(x)), np.asarray(x), np.asarray(x), scale_a=np.asarray(scale)) <= 1


def test_of_dask(rng):
    array = pytest.importorskip("dask.array", reason="dask is not installed")
    x = array.from_array(draw(rng, (4, 4), F32), chunks=2)
    for call in (gemmhub.matmul, gemmhub.explain, gemmhub.plan):
        with pytest.raises(InputError, match="scale_b: given with arrays of Dask"):
            call(x, x, scale_b=np.ones(4, F32))


def test_of_subclasses_of_numpy(rng):
    import gemmhub.numpy as door

    a, b, scale = draw(rng, (3, 4), I8), draw(rng, (4, 5), I8), factors(rng, 3)
    got = gemmhub.matmul(door.asarray(a), b, out_dtype="float32", scale_a=scale)
    assert ratio(np.asarray(got), a, b, scale_a=scale) <= 1
