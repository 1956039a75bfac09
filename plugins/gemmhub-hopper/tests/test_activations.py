"""Activations: one more than the kernels have, gates, and the erf form of gelu."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes import FakeMemory, Home, mutated
from gemmhub_hopper.variants import sources
from gemmhub_hopper.variants.config import GATED
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.nvrtc import CompilerError
from problems import problem
from products import SMALL, Product
from runs import Run
from vectors import Vector, vector

import gemmhub
from gemmhub.backend import Offer, answer
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES
from gemmhub.testing import Case, check


def twice(x, functions):
    return 2 * functions.tanh(x)


def twice_gradient(x, functions):
    return 2 - 2 * functions.tanh(x) ** 2


@pytest.fixture
def registered():
    """twice_tanh, which a program registers, and what changes in the kernels' files for its products."""
    before = sources.activations()
    gemmhub.register_epilogue(
        "twice_tanh", twice, gradient=twice_gradient, slope=2.0, evaluation=8.0, accurate=True,
        expression="2.0f * tanhf(x)",
    )  # fmt: skip
    assert sources.activations() == before  # the kernels of other products are the same
    ((file, text),) = sources.activations("twice_tanh").items()
    yield file, (before[file], text)
    gemmhub.unregister_epilogue("twice_tanh")


@pytest.fixture
def home(monkeypatch, tmp_path, registered):
    """A machine whose kernels are compiled with twice_tanh."""
    return mutated(monkeypatch, tmp_path, *registered)


@pytest.mark.parametrize(
    "case",
    [Case(40, 24, 40, *["bfloat16"] * 3, bias="n", activation="twice_tanh"), Case(1, 40, 24, activation="twice_tanh")],
    ids=str,
)
def test_an_activation_that_is_added(home, case):
    """Through matrices, and through vectors, whose kernel has the activation's number at run time."""
    check(home.backend(), case, FakeMemory(home))
    assert home.cuda.complaints == []


def test_an_activation_that_is_added_compiles(home):
    try:
        compiler = nvrtc.load()
    except CompilerError as error:
        pytest.skip(str(error))
    products = Product(SMALL, 72, 72, 72, activation="twice_tanh"), vector(1, 72, 64, activation="twice_tanh")
    for source in (x for product in products for x in product.sources):
        made = compiler.compile(source, verbose=True)
        assert (made.spilled, made.warnings) == (0, [])


@pytest.mark.parametrize("of", [Product(SMALL, 72, 72, 72), vector(1, 72, 64)], ids=["matrix", "vector"])
def test_only_its_own_kernels_are_compiled_with_it(of, registered):
    """The kernels of other products have the digest that they had without it: the wheel's and the cache's serve."""
    expression = "{ return 2.0f * tanhf(x); }  // twice_tanh"
    (own,) = replace(of, activation="twice_tanh").sources
    assert expression in own.files["activations.cuh"]
    for other in (None, "relu", "tanh"):
        (source,) = replace(of, activation=other).sources
        assert expression not in source.files["activations.cuh"]
        assert source.digest != own.digest


def test_what_is_taken(registered):
    backend = Home().backend()
    assert isinstance(answer(backend, problem(activation="twice_tanh")), Offer)
    for activation in GATED:
        assert isinstance(answer(backend, problem(activation=activation)), Offer)


def test_one_without_an_expression_is_refused():
    gemmhub.register_epilogue("formula_only", twice, slope=2.0, evaluation=8.0, accurate=True)
    try:
        refused = answer(Home().backend(), problem(activation="formula_only"))
    finally:
        gemmhub.unregister_epilogue("formula_only")
    assert refused.reason == "it compiles the expressions of activations, and formula_only has none"
    assert "expression=" in refused.remedy


@dataclass(frozen=True)
class Range(Product):
    """The values of c, of all magnitudes, without a product."""

    def data(self, seed=0):
        a, b, _, bias = super().data(seed)
        return 0 * a, 0 * b, np.linspace(-15, 15, self.m * self.n, dtype=np.float32).reshape(self.m, self.n), bias


@dataclass(frozen=True)
class VectorRange(Range, Vector):
    """The same in a kernel for vectors."""


@pytest.mark.parametrize("of_vectors", [False, True])
@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_everywhere(activation, of_vectors):
    """A whole range of arguments is within the bound of the functions, and the functions are told apart."""
    shared = {"dtype": "bfloat16", "out": "float32", "beta": 1, "activation": activation}
    product = VectorRange(SMALL, 1, 8192, 8, spread=32, **shared) if of_vectors else Range(SMALL, 64, 128, 8, **shared)
    run = Run(product)
    result, x = run(), run.values[2].astype(np.float64)
    function = EPILOGUES[activation]
    bound = function.bound((x,), (2.0**-24 * np.abs(x),), function.evaluation * 2.0**-24, 0.0, 2.0**-126)
    with np.errstate(over="ignore"):
        errors = {name: np.abs(EPILOGUES[name](x) - result) for name in ELEMENTWISE}
    assert (errors[activation] <= bound).all()
    assert all((errors[name] > bound).any() for name in errors if name != activation)
