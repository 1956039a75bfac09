"""The checks of an epilogue that a program registers: each claim that is wrong is found and named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemmhub._base.epilogue_check import check
from gemmhub.epilogues import EPILOGUES, Epilogue
from gemmhub.errors import InputError


def softsign(x, functions):
    near = functions.clip(x, -1e30, 1e30)
    return near / (1 + abs(near))


def softsign_gradient(x, functions):
    return (1 / (1 + abs(functions.clip(x, -1e30, 1e30)))) ** 2


def mish(x, functions):
    low, power = functions.clip(x, -100.0, None), functions.exp(functions.clip(x, -100.0, 20.0))
    weight = power * (power + 2)
    return low * (weight / (weight + 2))


def softplus(x, functions):
    return functions.where(x > 30, x, np.log1p(functions.exp(functions.clip(x, -100.0, 30.0))))


SOFTSIGN = Epilogue(
    "softsign", "", softsign, softsign_gradient, 1.0, 4.0,
    "x < -1e30f ? -1.0f : x > 1e30f ? 1.0f : x / (1.0f + fabsf(x))", accurate=True,
)  # fmt: skip
MISH = Epilogue("mish", "", mish, None, 1.1, 8.0, "x < -80.0f ? 0.0f : x * tanhf(log1pf(expf(x)))")
SOFTPLUS = Epilogue("softplus", "", softplus, None, 1.0, 4.0, None, accurate=True)
CUBE = Epilogue(
    "cube", "", lambda x, f: x * x * x, lambda x, f: 3 * x * x, 3.0, 2.0, "x * x * x", accurate=True, degree=3
)


@pytest.mark.parametrize("right", [SOFTSIGN, MISH, SOFTPLUS, CUBE, *EPILOGUES.values()], ids=lambda x: x.name)
def test_what_is_right_passes(right):
    check(right)
    check(replace(right, gradient=None))
    check(replace(right, slope=2 * right.slope, evaluation=2 * right.evaluation))


@pytest.mark.parametrize(
    "right", [SOFTSIGN, CUBE, *(x for x in EPILOGUES.values() if x.accurate)], ids=lambda x: x.name
)
def test_the_bound_without_a_gradient_is_not_smaller(right):
    """The slope is in the place of the gradient, which it bounds."""
    x = np.concatenate([np.linspace(-20, 20, 4001), [-1e5, 1e5]])
    for evaluation in (0.0, 1e-6):
        given = (x,), (1e-7 * np.abs(x),), evaluation, 0.0, 0.0
        assert np.all(replace(right, gradient=None).bound(*given) >= right.bound(*given) * (1 - 1e-9))


def wrong(argument, epilogue, message):
    with pytest.raises(InputError, match=message) as caught:
        check(epilogue)
    assert caught.value.argument == argument


@pytest.mark.parametrize("name", EPILOGUES)
def test_a_bound_that_is_slightly_too_small_is_found(name):
    right = EPILOGUES[name]
    wrong("slope", replace(right, slope=0.97 * right.slope), f"{name} has a slope of ")
    wrong("slope", replace(right, slope=0.97 * right.slope, gradient=None), f"{name} has a slope of ")
    if right.evaluation:
        wrong("evaluation", replace(right, evaluation=right.evaluation / 16), "roundings in float32: .*where f is")


@pytest.mark.parametrize("name", EPILOGUES)
def test_a_gradient_and_an_expression_that_are_slightly_wrong_are_found(name):
    right = EPILOGUES[name]
    steep = replace(right, gradient=lambda x, f: 1.01 * right.gradient(x, f), slope=1.01 * right.slope)
    wrong("gradient", steep, "where the formula has a slope of")
    wrong(
        "gradient", replace(right, gradient=lambda x, f: right.gradient(x - 1, f)), "where the formula has a slope of"
    )
    text = f"1.000002f * ({right.expression})"
    wrong("expression", replace(right, expression=text), "where f is")
    other = "relu" if name != "relu" else "tanh"
    wrong("expression", replace(right, expression=EPILOGUES[other].expression), "where f is")


def test_a_wrong_gradient_is_no_wrong_slope():
    """A larger slope would hide it: the formula is compared with the gradient before the gradient with the slope."""
    tanh = EPILOGUES["tanh"]
    wrong("gradient", replace(tanh, gradient=lambda x, f: 1 - f.tanh(x)), "formula has a slope of")
    wrong("gradient", replace(CUBE, gradient=lambda x, f: 6 * x * x), "formula has a slope of")
    wrong("slope", replace(tanh, slope=0.97), "tanh has a slope of")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (lambda x, f: np.negative(x, out=x), "raises ValueError for float32: output array is read-only"),
        (lambda x, f: f.log(x), "raises AttributeError"),
        (lambda x, f: x / (1 + abs(x).max()), "depend on other elements"),
        (lambda x, f: np.cumsum(x), "makes float32 of shape"),
        (lambda x, f: x.astype(np.float64), "makes float64 of shape .* of float32"),
        (lambda x, f: 1.0, "makes float of float32"),
        (lambda x, f: x[..., :1], "makes float32 of shape"),
        (lambda x, f: f.where(x > 0, x, 0.0), "makes 0 of NaN.*choose by x < 0, so that NaN"),
        (lambda x, f: x * f.sigmoid(x), "makes NaN of -inf in float32"),
        (lambda x, f: x / (1 + abs(x)), "makes NaN of -inf in float32"),
        (lambda x, f: f.exp(x) / f.exp(x), "makes NaN of"),
    ],
)
def test_a_formula_that_cannot_be_used(formula, message):
    wrong("formula", replace(SOFTSIGN, formula=formula), message)
    wrong("gradient", replace(MISH, gradient=formula), message)


def test_a_function_that_grows_beyond_every_bound():
    wrong("slope", replace(MISH, formula=lambda x, f: f.exp(x)), "slope of")
    wrong("slope", replace(CUBE, degree=2), "times abs.x. to the power 1 near")
    wrong("slope", replace(CUBE, degree=2, gradient=None), "times abs.x. to the power 1 near")
    wrong(
        "slope",
        replace(SOFTSIGN, formula=lambda x, f: f.where(x < 1, 0 * f.clip(x, -1, 1), 1.0 + 0 * f.clip(x, -1, 1))),
        "slope of",
    )


def test_errors_that_are_not_relative_to_the_argument():
    wrong("evaluation", replace(SOFTPLUS, accurate=False), "or accurate=True where f.0. is not 0")


def test_a_degree_above_1_needs_the_accurate_bound():
    cube = replace(CUBE, accurate=False, evaluation=100.0)
    wrong("evaluation", cube, "pass accurate=True, which a degree above 1 needs")
    check(replace(cube, accurate=True))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x / (1.0f + fabsf(x))", "nan for x = -inf; allowed: -1, as the formula has"),
        ("tanhf(x)", "where f is"),
        ("x / (1 + fabsf(x))", "cannot be read; literals are floats"),
        ("fmaxf(x, -1.0f)", "where f is"),
        ("fabsf(x) < 1e-20f ? 0.0f : x < -1e30f ? -1.0f : x > 1e30f ? 1.0f : x / (1.0f + fabsf(x))", "0 for x = "),
        (
            "x != x ? 0.0f : x < -1e30f ? -1.0f : x > 1e30f ? 1.0f : x / (1.0f + fabsf(x))",
            "0 for x = nan; allowed: nan",
        ),
        ("", "it ends where a value is needed"),
    ],
)
def test_an_expression_that_is_not_the_formula(text, message):
    wrong("expression", replace(SOFTSIGN, expression=text), message)
