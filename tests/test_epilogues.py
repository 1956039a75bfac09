"""The list of activation functions: their gradients and slopes belong to their formulas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import gemmhub
from gemmhub import dtypes
from gemmhub._call import options
from gemmhub.accuracy import activate
from gemmhub.backend import Offer, answer
from gemmhub.epilogues import ACTIVATIONS, Activation
from gemmhub.errors import InputError, NoBackendError
from gemmhub.numpy_backend.backend import NumpyBackend
from gemmhub.numpy_backend.blocked import finish
from gemmhub.numpy_backend.scratch import unleased
from gemmhub.testing.problems import problem


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_gradient_is_that_of_the_formula(name):
    x = np.concatenate([np.linspace(-12, 12, 4801) + 1e-3, [-400.0, 400.0]])
    step = 1e-6
    function = ACTIVATIONS[name]
    slope = (function.formula(x + step) - function.formula(x - step)) / (2 * step)
    np.testing.assert_allclose(function.gradient(x), slope, atol=1e-7)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_slope_bounds_the_gradient_closely(name):
    gradient = np.abs(ACTIVATIONS[name].gradient(np.linspace(-30, 30, 60001)))
    assert 0.98 * ACTIVATIONS[name].slope < gradient.max() <= ACTIVATIONS[name].slope


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_at_the_ends(name, dtype):
    ends = np.array([-np.inf, np.inf, np.nan, 0.0, -1e30, 1e30], dtype)
    with np.errstate(all="raise", under="ignore"):
        values, gradients = ACTIVATIONS[name].formula(ends), ACTIVATIONS[name].gradient(ends)
    assert values.dtype == gradients.dtype == dtype
    assert np.array_equal(values[:2], [0, np.inf])
    assert np.isnan([values[2], gradients[2]]).all()
    np.testing.assert_allclose(gradients[[0, 1, 4, 5]], [0, 1, 0, 1], atol=1e-18)


@pytest.fixture
def planted(monkeypatch):
    """A new entry of the list, which nothing else knows."""
    names = (*ACTIVATIONS, "tanh")
    monkeypatch.setitem(ACTIVATIONS, "tanh", Activation(np.tanh, lambda x: 1 - np.tanh(x) ** 2, 1.0, 8.0))
    for module in (dtypes, options):
        monkeypatch.setattr(module, "ACTIVATIONS", names)
    gemmhub.reload()
    yield
    gemmhub.reload()


@pytest.mark.parametrize("size", [1, 8, 300])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int8, np.int32], ids=str)
def test_a_new_one_is_refused_by_every_backend(planted, dtype, size):
    a = np.ones((size, size), dtype)
    wanted = "float32" if np.dtype(dtype).kind == "i" else None
    for call in (gemmhub.matmul, gemmhub.plan):
        with pytest.raises(NoBackendError, match="no activation tanh"):
            call(a, a, activation="tanh", out_dtype=wanted)
    assert gemmhub.explain(a, a, activation="tanh", out_dtype=wanted).chosen is None


def test_a_backend_is_not_asked_about_a_function_that_came_after_it():
    asked = problem(16, 16, 16, activation="tanh")
    backend = NumpyBackend()
    assert "no activation tanh" in backend.offer(asked).reason
    backend.offer = lambda asked: Offer()  # type: ignore[method-assign]
    assert "no activation tanh" in answer(backend, asked).reason
    backend.activations = frozenset({"tanh"})
    assert answer(backend, asked) == Offer()


def test_a_tile_is_never_finished_by_another_function():
    tile = np.ones((2, 2), np.float32)
    with pytest.raises(InputError, match=r"activation: 'tanh', which this backend does not compute; allowed: relu, g"):
        finish(unleased(), tile, None, None, 1, 0, "tanh")
    assert (tile == 1).all()


def test_the_list_is_one():
    assert tuple(ACTIVATIONS) == dtypes.ACTIVATIONS
    with pytest.raises(ValueError, match="swish"):
        activate(np.zeros(1), "swish")
