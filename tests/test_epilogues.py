"""The table of epilogues: formulas, their derivatives and bounds, and an epilogue that is added by one object."""

from __future__ import annotations

import math
import typing
from dataclasses import replace
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from products import ratio

import gemmhub
from gemmhub._call.options import Options
from gemmhub.accuracy import activate
from gemmhub.backend import BASIC, Offer, answer
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES, NUMPY, Epilogue, columns
from gemmhub.errors import DTypeError, InputError, NoBackendError, ShapeError
from gemmhub.kit import epilogue_source
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.testing import Case, check, draw, matrix, taken
from gemmhub.testing.problems import problem

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
GATED = [name for name in EPILOGUES if name not in ELEMENTWISE]


LIMITS = {
    "tanh": ((-1, 1), (0, 0)), "sigmoid": ((0, 1), (0, 0)), "relu_squared": ((0, np.inf), (0, np.inf)),
    "leaky_relu": ((-np.inf, np.inf), (0.01, 1)),
}  # fmt: skip
"""Values and slopes at the infinities, of epilogues that are not 0 and x there."""


@pytest.mark.parametrize("name", EPILOGUES)
def test_the_gradient_is_that_of_the_formula(name):
    x = np.concatenate([np.linspace(-12, 12, 4801) + 1e-3, [-400.0, 400.0]])
    step = 1e-6
    function = EPILOGUES[name]
    slope = (function.formula(x + step, NUMPY) - function.formula(x - step, NUMPY)) / (2 * step)
    np.testing.assert_allclose(function.gradient(x, NUMPY), slope, atol=1e-7)


@pytest.mark.parametrize("name", EPILOGUES)
def test_the_slope_bounds_the_gradient_closely(name):
    x, function = np.linspace(-30, 30, 60001), EPILOGUES[name]
    slope = np.abs(function.gradient(x, NUMPY)) / np.abs(x + (x == 0)) ** (function.degree - 1)
    assert 0.98 * function.slope < slope.max() <= function.slope
    assert np.all(np.abs(function.formula(x, NUMPY)) <= np.maximum(1, np.abs(x)) ** function.degree)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", EPILOGUES)
def test_at_the_ends(name, dtype):
    ends = np.array([-np.inf, np.inf, np.nan, 0.0, -1e18, 1e18], dtype)
    function = EPILOGUES[name]
    limits, slopes = LIMITS.get(name, ((0, np.inf), (0, 1)))
    with np.errstate(all="raise", under="ignore"):
        values, gradients = function.formula(ends, NUMPY), function.gradient(ends, NUMPY)
    assert values.dtype == gradients.dtype == dtype
    assert np.array_equal(values[:2], limits)
    assert np.isnan([values[2], gradients[2]]).all()
    np.testing.assert_allclose(gradients[:2], dtype(slopes), atol=1e-18)
    np.testing.assert_allclose(gradients[4:], dtype(slopes if name != "relu_squared" else (0, 2e18)), atol=1e-18)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["tanh", "leaky_relu", "hardswish"])
def test_the_sign_of_zero_stays(name, dtype):
    values = EPILOGUES[name](np.array([0.0, -0.0], dtype))
    assert np.array_equal(values, [0, 0])
    assert np.signbit(values).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_formulas_are_those_of_the_literature(dtype):
    x = np.linspace(-9, 9, 1801).astype(dtype)
    wide = [float(value) for value in x]
    exact = {
        "relu": [max(value, 0.0) for value in wide],
        "gelu": [0.5 * value * math.erfc(-value / math.sqrt(2)) for value in wide],
        "gelu_tanh": [
            0.5 * value * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3))) for value in wide
        ],
        "silu": [value / (1 + math.exp(-value)) for value in wide],
        "tanh": [math.tanh(value) for value in wide],
        "sigmoid": [1 / (1 + math.exp(-value)) for value in wide],
        "relu_squared": [value**2 if value > 0 else 0.0 for value in wide],
        "leaky_relu": [value if value > 0 else value / 100 for value in wide],
        "hardswish": [value * min(max(value + 3, 0.0), 6.0) / 6 for value in wide],
    }  # fmt: skip
    for name, expected in exact.items():
        function = EPILOGUES[name]
        arguments, errors = np.array(wide), np.zeros(len(wide))
        bound = function.bound((arguments,), (errors,), function.evaluation * np.finfo(dtype).eps / 2, 0.0, 0.0)
        assert np.all(np.abs(function(x).astype(np.float64) - expected) <= bound), name
    assert tuple(exact) == ELEMENTWISE


@pytest.mark.parametrize("name", GATED)
def test_a_gated_one_multiplies_pairs_of_columns(name):
    rng = np.random.default_rng()
    x = rng.standard_normal((3, 4, 10))
    function = EPILOGUES[name]
    gate, up = function.split(x)
    if function.gate == "halves":
        assert np.shares_memory(gate, x)
        assert np.array_equal(np.concatenate([gate, up], -1), x)
    else:
        assert np.array_equal(np.stack([gate, up], -1).reshape(x.shape), x)
    assert np.array_equal(function(x), function.formula(gate, NUMPY) * up)
    assert (function.columns(10), columns(name, 10), columns(None, 10)) == (5, 5, 10)
    step = 1e-6
    for argument, derivative in ((gate, function.gradient(gate, NUMPY) * up), (up, function.formula(gate, NUMPY))):
        before = function(x)
        argument += step
        np.testing.assert_allclose((function(x) - before) / step, derivative, atol=1e-5)
        argument -= step


@pytest.mark.parametrize("name", GATED)
def test_products_with_a_gate(name, rng):
    a, b = rng.standard_normal((5, 7), np.float32), rng.standard_normal((7, 10), np.float32)
    wide = a.astype(np.float64) @ b.astype(np.float64)
    gate, up = (wide[:, :5], wide[:, 5:]) if EPILOGUES[name].gate == "halves" else (wide[:, ::2], wide[:, 1::2])
    expected = EPILOGUES[name].formula(gate, NUMPY) * up
    for _ in range(2):
        got = gemmhub.matmul(a, b, activation=name)
        assert got.shape == (5, 5)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        out = np.empty((5, 5), np.float32)
        assert gemmhub.matmul(a, b, out=out, activation=name) is out
        assert np.array_equal(out, got)
    planned = gemmhub.plan(a, b, activation=name)
    assert np.array_equal(planned(a, b), got)
    for _ in range(2):
        with pytest.raises(ShapeError, match=r"activation.*9 columns"):
            gemmhub.matmul(a, b[:, :9], activation=name)
        with pytest.raises(ShapeError, match=r"activation.*vector b"):
            gemmhub.matmul(a, b[:, 0], activation=name)
        with pytest.raises((ShapeError, gemmhub.OutputError), match="out"):
            gemmhub.matmul(a, b, out=np.empty((5, 10), np.float32), activation=name)
        with pytest.raises(DTypeError, match="activation"):
            gemmhub.matmul(a.astype(np.int32), b.astype(np.int32), activation=name)


ADDED = {
    name: Epilogue(
        name, "2 tanh x", lambda x, f: 2 * f.tanh(x), lambda x, f: 2 - 2 * f.tanh(x) ** 2, slope=2.0, evaluation=8.0,
        expression="2.0f * tanhf(x)", gate=gate,
    )
    for name, gate in (("twice_tanh", None), ("tanhglu", "halves"))
}  # fmt: skip


@pytest.fixture(params=ADDED)
def added(monkeypatch, request):
    """The name of an epilogue that nothing knows but the table."""
    monkeypatch.setitem(EPILOGUES, request.param, ADDED[request.param])
    gemmhub.reload()
    yield request.param
    gemmhub.reload()


@pytest.mark.parametrize("size", [2, 8, 300])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_added_one_is_computed_by_numpy(added, dtype, size, rng):
    a, b, c = (rng.standard_normal((size, size)).astype(dtype) for _ in range(3))
    for given in ({}, {"bias": c[0]}, {"alpha": 0.5, "beta": 2, "c": c}):
        for _ in range(2):
            assert ratio(gemmhub.matmul(a, b, activation=added, **given), a, b, activation=added, **given) <= 1
        planned = gemmhub.plan(a, b, activation=added, **given)
        operands = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
        numbers = {name: x for name, x in given.items() if name not in operands}
        assert ratio(planned(a, b, **operands, **numbers), a, b, activation=added, **given) <= 1
    assert ratio(gemmhub.matmul(a, b, activation=None), a, b) <= 1


@pytest.mark.parametrize("gate", [None, "halves", "interleaved"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_infinite_arguments_of_a_bounded_function(gate, dtype, monkeypatch, rng):
    """The limit has its bound, which is neither 0 nor infinite: a third is no number of any dtype."""
    third = Epilogue(
        "third", "", lambda x, f: f.tanh(x) / 3, lambda x, f: (1 - f.tanh(x) ** 2) / 3, 1 / 3, 8.0, "tanhf(x) / 3", gate
    )
    monkeypatch.setitem(EPILOGUES, "third", third)
    gemmhub.reload()
    a, b = rng.standard_normal((6, 8)).astype(dtype), rng.standard_normal((8, 10)).astype(dtype)
    # Only gates are infinite.
    a[:, 0], b[0] = 1, 0
    columns = {None: slice(None), "halves": slice(5), "interleaved": slice(None, None, 2)}[gate]
    b[0, columns] = np.inf
    got = gemmhub.matmul(a, b, activation="third")
    assert np.isfinite(got).all()
    assert ratio(got, a, b, activation="third") <= 1
    assert ratio(got * dtype(1.1), a, b, activation="third") > 1
    assert ratio(np.full_like(got, np.nan), a, b, activation="third") > 1


def test_an_added_one_is_refused_by_what_does_not_take_it(added):
    asked = problem(16, 16, 16, activation=added)
    backend = NumpyBackend()
    backend.offer = lambda asked: Offer()
    backend.takes = BASIC
    assert answer(backend, asked).reason == f"it has no activation {added}"
    backend.takes = {**BASIC, "activation": frozenset({added})}
    assert answer(backend, asked) == Offer()


def test_an_added_one_has_a_key_and_an_explanation(added):
    a = np.ones((4, 4), np.float32)
    found = gemmhub.explain(a, a, activation=added)
    assert found.chosen == "numpy"
    assert f"epilogue={added}" in found.problem.key
    assert found.problem.out_columns == EPILOGUES[added].columns(4)


def test_the_kit_draws_an_added_one(added, rng):
    backend = NumpyBackend()
    backend.probe()
    chosen = [case for case in matrix() if case.activation == added]
    assert len(chosen) > 5
    for case in chosen[:12]:
        assert check(backend, case).accepted
    assert sum(case.activation == added for case in taken(matrix(), BASIC)) == 1
    drawn = [draw(rng, {"activation": frozenset({added})}) for _ in range(600)]
    assert {case.activation for case in drawn} == {None, added}


def test_the_kit_tells_an_added_one_from_others(added):
    class Wrong(NumpyBackend):
        def prepare(self, problem, candidate, workspace_limit):
            other = "silu" if EPILOGUES[added].gate is None else "swiglu"
            return super().prepare(replace(problem, activation=other), candidate, workspace_limit)

    backend = Wrong()
    backend.probe()
    with pytest.raises(AssertionError, match=f"{added} was not applied: (silu|swiglu) was, in place of it"):
        check(backend, Case(m=9, n=10, k=11, activation=added))


def test_an_added_one_has_a_gradient_in_torch(added):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((5, 7), (7, 6)))

    def expected(a, b):
        x = a @ b
        return 2 * (torch.tanh(x) if EPILOGUES[added].gate is None else torch.tanh(x[:, :3]) * x[:, 3:])

    got, want = gemmhub.matmul(a, b, activation=added), expected(a, b)
    torch.testing.assert_close(got, want)
    cotangent = torch.randn_like(want)
    for x, y in zip(torch.autograd.grad(got, (a, b), cotangent), torch.autograd.grad(want, (a, b), cotangent)):
        torch.testing.assert_close(x, y)


def test_an_added_one_has_a_gradient_in_jax(added, rng):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    door = pytest.importorskip("gemmhub.jax")
    a, b = (jax.numpy.asarray(rng.standard_normal(shape), np.float32) for shape in ((5, 7), (7, 6)))

    def expected(a, b):
        x = a @ b
        return 2 * (jax.numpy.tanh(x) if EPILOGUES[added].gate is None else jax.numpy.tanh(x[:, :3]) * x[:, 3:])

    def total(function):
        return jax.grad(lambda a, b: (function(a, b) ** 2).sum(), argnums=(0, 1))

    product = jax.jit(lambda a, b: door.matmul(a, b, activation=added))
    np.testing.assert_allclose(product(a, b), expected(a, b), rtol=1e-5, atol=1e-5)
    for x, y in zip(total(product)(a, b), total(expected)(a, b)):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_an_added_one_is_in_the_source_of_kernels(added):
    assert epilogue_source.numbers(("relu", added)) == {None: 0, "relu": 1, added: 2}
    text = epilogue_source.source(("relu", added))
    assert f"activated<2>(float x) {{ return 2.0f * tanhf(x); }}  // {added}" in text


def test_names_that_are_no_epilogue(added):
    a = np.ones((2, 2), np.float32)
    with pytest.raises(InputError, match=f"activation: 'swish'; allowed: relu, .*{added}"):
        gemmhub.matmul(a, a, activation="swish")
    with pytest.raises(ValueError, match="swish"):
        activate(np.zeros(1), "swish")
    refused = pytest.raises(NoBackendError, match=f"no activation {added}")
    with mock.patch.object(NumpyBackend, "takes", BASIC), gemmhub.use(backend="numpy"), refused:
        gemmhub.matmul(a, a, activation=added)


def test_the_type_of_the_option_names_every_epilogue():
    hint = typing.get_type_hints(Options)["activation"]
    literal = next(x for x in typing.get_args(hint) if typing.get_origin(x) is typing.Literal)
    assert typing.get_args(literal) == tuple(EPILOGUES)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", GATED)
def test_a_column_without_its_pair_is_refused_by_warm_calls_too(name, dtype):
    a = np.ones((2, 3), dtype)
    for n in (4, 6, 8, 10):
        assert gemmhub.matmul(a, np.ones((3, n), dtype), activation=name).shape == (2, n // 2)
    for n in (1, 3, 5, 7):
        for given in ({}, {"out": np.empty((2, n // 2), dtype)}):
            with pytest.raises(gemmhub.ShapeError, match="even number"):
                gemmhub.matmul(a, np.ones((3, n), dtype), activation=name, **given)
