"""Activations: those that the kernels are compiled with, and one that a test adds."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Home
from gemmhub_cuda.variants import sources
from gemmhub_cuda.variants.batch import SHAPES as BATCHES
from gemmhub_cuda.variants.mma import SHAPES as TENSOR
from gemmhub_cuda.variants.sgemm import SHAPES as SINGLE
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.nvrtc import CompilerError
from mma_product import Launch, Product
from problems import problem
from sgemm_product import Single

import gemmhub
from gemmhub._base.c_expression import FUNCTIONS
from gemmhub.backend import Offer, answer
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES, Epilogue

SMALL = next(shape for shape in SINGLE if (shape.m, shape.n) == (64, 64))


def twice(x, functions):
    return 2 * functions.tanh(x)


def twice_gradient(x, functions):
    return 2 - 2 * functions.tanh(x) ** 2


@pytest.fixture
def changes():
    """What changes in the kernels' files for products with twice_tanh, which a program registers."""
    before = sources.activations()
    gemmhub.register_epilogue(
        "twice_tanh", twice, gradient=twice_gradient, slope=2.0, evaluation=8.0, accurate=True,
        expression="2.0f * tanhf(x)",
    )  # fmt: skip
    assert sources.activations() == before  # the kernels of other products are the same
    yield tuple((name, before[name], text) for name, text in sources.activations("twice_tanh").items())
    gemmhub.unregister_epilogue("twice_tanh")


def products(activation):
    """One for each kernel."""
    return (
        Single(SMALL, 72, 76, 36, "k", "n", bias="n", activation=activation),
        Product(next(x for x in TENSOR if (x.m, x.n) == (64, 64)), 70, 77, 72, activation=activation),
        Product(BATCHES[0], 9, 5, 33, batch=3, out="bfloat16", activation=activation),
    )


@pytest.mark.parametrize("kernel", range(3))
def test_an_activation_that_is_added(kernel, changes):
    Launch(products("twice_tanh")[kernel], changes=changes).check()


def test_an_activation_that_is_added_compiles(changes):
    try:
        compiler = nvrtc.load()
    except CompilerError as error:
        pytest.skip(str(error))
    for product in products("twice_tanh"):
        assert compiler.compile(sources.source(product.variant, (8, 0)), verbose=True).spilled == 0


def test_the_compiler_has_every_function_of_the_language(monkeypatch):
    """And reports a function that it has not: the message of the refusal."""
    try:
        compiler = nvrtc.load()
    except CompilerError as error:
        pytest.skip(str(error))
    calls = [f"{name}({', '.join(['x'] * count)})" for name, (count, _) in FUNCTIONS.items()]
    for expression in (" + ".join(calls), "no_such_function(x)"):
        monkeypatch.setitem(EPILOGUES, "every", Epilogue("every", "", twice, None, 2.0, 8.0, expression))
        source = sources.source(products("every")[2].variant, (8, 0))
        if expression.startswith("no_such"):
            with pytest.raises(CompilerError, match='identifier "no_such_function" is undefined'):
                compiler.compile(source)
        else:
            assert compiler.compile(source).cubin


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_activation_that_is_added_is_taken(dtype, changes):
    assert isinstance(answer(Home().backend(), problem(64, 64, 64, dtype, activation="twice_tanh")), Offer)


@pytest.mark.parametrize("kernel", range(3))
def test_only_its_own_kernels_are_compiled_with_it(kernel, changes):
    """The kernels of other products have the digest that they had without it: the wheel's and the cache's serve."""
    expression = "{ return 2.0f * tanhf(x); }  // twice_tanh"
    own = sources.source(products("twice_tanh")[kernel].variant, (8, 0))
    assert expression in own.files["activations.cuh"]
    for other in (None, "relu", "tanh"):
        source = sources.source(products(other)[kernel].variant, (8, 0))
        assert expression not in source.files["activations.cuh"]
        assert source.digest != own.digest


def test_one_without_an_expression_is_refused():
    gemmhub.register_epilogue("formula_only", twice, slope=2.0, evaluation=8.0, accurate=True)
    try:
        refused = answer(Home().backend(), problem(64, 64, 64, activation="formula_only"))
    finally:
        gemmhub.unregister_epilogue("formula_only")
    assert refused.reason == "it compiles the expressions of activations, and formula_only has none"
    assert "expression=" in refused.remedy


@pytest.mark.parametrize("activation", ["swiglu", "swiglu_interleaved", "geglu"])
def test_gates_are_refused(activation):
    assert f"no activation {activation}" in answer(Home().backend(), problem(activation=activation)).reason


@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_extremes(activation):
    """Infinities make the limits, NaN stays, and large arguments do not overflow on the way."""
    values = np.float32([np.inf, -np.inf, np.nan, 3e38, -3e38, 60, -200, -0.0])
    launch = Launch(Single(SMALL, len(values), 8, 1, "k", "n", activation=activation))
    launch.values["a"][0, :, 0], launch.values["b"][:] = values, 1
    launch.set(**launch.values)
    with np.errstate(over="ignore"):
        expected = EPILOGUES[activation](values)
    np.testing.assert_allclose(launch()[0][0, :, 0], expected, rtol=2e-7, atol=1e-37)


@pytest.mark.parametrize("activation", ELEMENTWISE)
def test_everywhere(activation):
    """The values of a whole range of arguments are within the bound, and the functions are told apart."""
    x = np.linspace(-15, 15, 512 * 128, dtype=np.float32).reshape(1, 512, 128)
    launch = Launch(Single(SMALL, 512, 128, 1, "k", "n", beta=1.0, activation=activation))
    launch.values["a"][:], launch.values["c"] = 0, x
    launch.set(**launch.values)
    launch.check()
    result = launch()[0]
    with np.errstate(over="ignore"):
        others = {name: EPILOGUES[name](x.astype(np.float64)) for name in ELEMENTWISE if name != activation}
    assert all(np.abs(result - other).max() > 1e-4 for other in others.values())
