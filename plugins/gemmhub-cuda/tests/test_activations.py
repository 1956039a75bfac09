"""Activations: those that the kernels are compiled with, and one that a test adds."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Home
from gemmhub_cuda.backend import CudaBackend
from gemmhub_cuda.variants import form, sources
from gemmhub_cuda.variants.batch import SHAPES as BATCHES
from gemmhub_cuda.variants.mma import SHAPES as TENSOR
from gemmhub_cuda.variants.sgemm import SHAPES as SINGLE
from gemmhub_nvidia import nvrtc
from gemmhub_nvidia.nvrtc import CompilerError
from mma_product import Launch, Product
from problems import problem
from sgemm_product import Single

from gemmhub.backend import Offer, answer
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES, Epilogue

SMALL = next(shape for shape in SINGLE if (shape.m, shape.n) == (64, 64))
TWICE = Epilogue(
    name="twice_tanh", summary="2 tanh(x)", formula=lambda x, f: 2 * f.tanh(x),
    gradient=lambda x, f: 2 - 2 * f.tanh(x) ** 2, slope=2.0, evaluation=8.0, expression="2.0f * tanhf(x)",
    accurate=True,
)  # fmt: skip


@pytest.fixture
def changes(monkeypatch):
    """twice_tanh among the epilogues, and among those that the plugin takes; what changes in the kernels' files."""
    before = sources.activations()
    names = (*form.ACTIVATIONS, "twice_tanh")
    monkeypatch.setitem(EPILOGUES, "twice_tanh", TWICE)
    monkeypatch.setattr(form, "ACTIVATIONS", names)
    monkeypatch.setattr(CudaBackend, "takes", {**CudaBackend.takes, "activation": frozenset(names)})
    return tuple((name, before[name], text) for name, text in sources.activations().items())


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_activation_that_is_added_is_taken(dtype, monkeypatch, request):
    monkeypatch.setitem(EPILOGUES, "twice_tanh", TWICE)
    asked = problem(64, 64, 64, dtype, activation="twice_tanh")
    assert "no activation twice_tanh" in answer(Home().backend(), asked).reason
    request.getfixturevalue("changes")
    assert isinstance(answer(Home().backend(), asked), Offer)


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
