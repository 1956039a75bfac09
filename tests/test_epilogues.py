"""The list of activation functions: their gradients and slopes belong to their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from gemmhub import dtypes
from gemmhub.accuracy import activate
from gemmhub.epilogues import ACTIVATIONS


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


def test_the_list_is_one():
    assert tuple(ACTIVATIONS) == dtypes.ACTIVATIONS
    with pytest.raises(ValueError, match="swish"):
        activate(np.zeros(1), "swish")
