"""Activations: one more than the kernels have, gates, and the erf form of gelu."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from fakes import FakeMemory, Home, mutated
from gemmhub_hopper.backend import HopperBackend
from gemmhub_hopper.variants import config, sources
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.nvrtc import CompilerError
from problems import problem
from products import SMALL, Product
from runs import Run
from vectors import Vector, vector

from gemmhub.backend import Offer, answer
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES, Epilogue
from gemmhub.testing import Case, check

TWICE = Epilogue(
    name="twice_tanh", summary="2 tanh(x)", formula=lambda x, f: 2 * f.tanh(x),
    gradient=lambda x, f: 2 - 2 * f.tanh(x) ** 2, slope=2.0, evaluation=8.0, expression="2.0f * tanhf(x)",
    accurate=True,
)  # fmt: skip


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A machine whose plugin takes twice_tanh, which is one more of the epilogues."""
    before = sources.activations()
    names = (*config.ACTIVATIONS, "twice_tanh")
    monkeypatch.setitem(EPILOGUES, "twice_tanh", TWICE)
    monkeypatch.setattr(config, "ACTIVATIONS", names)
    monkeypatch.setattr(HopperBackend, "takes", {**HopperBackend.takes, "activation": frozenset(names)})
    ((file, text),) = sources.activations().items()
    return mutated(monkeypatch, tmp_path, file, (before[file], text))


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


def test_only_named_activations_are_taken(monkeypatch, request):
    monkeypatch.setitem(EPILOGUES, "twice_tanh", TWICE)
    asked = problem(activation="twice_tanh")
    assert "no activation twice_tanh" in answer(Home().backend(), asked).reason
    assert isinstance(answer(request.getfixturevalue("home").backend(), asked), Offer)
    for activation in ("swiglu", "swiglu_interleaved", "geglu"):
        assert f"no activation {activation}" in answer(Home().backend(), problem(activation=activation)).reason


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
