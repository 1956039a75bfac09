"""The epilogues that end a product: one object for each name that ``activation=`` takes.

``out = activation(x)`` with ``x = alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias``. An :class:`Epilogue` has
all that is known of a function: its formula, its derivative, the constants of its error bound, and the C expression
that generated kernels compute. Backends, the reference, gradients in every array library and the conformance kit read
it there. Formulas are written for any array library; :class:`Functions` names what they need of one.

A gated epilogue takes pairs of columns and makes one column of each: ``activation(gate) * up``. The product has n
columns, c and bias too, and the result half as many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any, NewType, Protocol

import numpy as np

from gemmhub.errors import InputError

Array = Any
EpilogueName = NewType("EpilogueName", str)
"""The name of a registered epilogue, as :func:`gemmhub.register_epilogue` returns it. To type checkers it is no other
text, so that they find a misspelt name; at run time it is one."""

_FLAT = 50.0
"""Beyond this argument each function here is linear to working precision, in float64, too."""
_LOW = -1000.0
"""Arguments below count as this one, at which each function here is 0: minus infinity times 0 would be NaN."""


class Functions(Protocol):
    """The elementwise functions of an array library that formulas consist of. All keep NaN."""

    def exp(self, x: Array, /) -> Array: ...
    def tanh(self, x: Array, /) -> Array: ...
    def erf(self, x: Array, /) -> Array: ...
    def sigmoid(self, x: Array, /) -> Array: ...
    def where(self, condition: Array, x: Array | float, y: Array | float, /) -> Array: ...
    def clip(self, x: Array, low: float, high: float | None, /) -> Array: ...


class NumpyFunctions:
    """The functions of :class:`Functions` for NumPy's arrays, in the precision of their arguments."""

    @staticmethod
    def exp(x: Array) -> Array:
        """Compute the exponential function."""
        return np.exp(x)

    @staticmethod
    def tanh(x: Array) -> Array:
        """Compute the hyperbolic tangent."""
        return np.tanh(x)

    @staticmethod
    def where(condition: Array, x: Array | float, y: Array | float) -> Array:
        """Take elements of ``x`` where the condition holds, else of ``y``."""
        return np.where(condition, x, y)

    @staticmethod
    def clip(x: Array, low: float, high: float | None) -> Array:
        """Limit ``x`` to a range; ``high`` None for no upper limit."""
        return np.clip(x, low, high)

    @staticmethod
    def sigmoid(x: Array) -> Array:
        """Compute 1 / (1 + exp(-x))."""
        with np.errstate(over="ignore"):  # where it is 0
            return 1 / (1 + np.exp(-x))

    @staticmethod
    def erf(x: Array) -> Array:
        """Compute the error function to a few roundings, by the rational approximations of Cody (1969)."""
        size = np.abs(x)
        near = np.minimum(size, 0.46875)
        square = near * near
        small = near * _quotient(square, *_ERF)
        far = np.clip(size, 0.46875, 6.0)  # beyond, it is 1 in float64
        large = 1 - np.exp(-far * far) * _quotient(far, *_ERFC)
        return np.copysign(np.where(size < 0.46875, small, large), x)


def _quotient(x: Array, above: tuple[float, ...], below: tuple[float, ...]) -> Array:
    """The quotient of two polynomials, whose coefficients begin with those of the highest powers."""
    numerator, denominator = above[0] * x, x
    for factor in above[1:-1]:
        numerator = (numerator + factor) * x
    for factor in below[:-1]:
        denominator = (denominator + factor) * x
    return (numerator + above[-1]) / (denominator + below[-1])


_ERF = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_ERFC = (
    (
        2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
        2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
        1.23033935479799725e3,
    ),
    (
        1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
        3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
    ),
)  # fmt: skip
"""W. J. Cody, Rational Chebyshev approximations for the error function, Math. Comp. 23 (1969): erf(x) / x by x squared
up to 0.46875, and exp(x * x) * erfc(x) by x beyond, both to 18 digits (the second up to 4, where erfc is 1.5e-8)."""


NUMPY = NumpyFunctions()
"""The functions that formulas are computed by where arrays are NumPy's."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """One function of a result: of each element, or of each pair of columns where it is gated."""

    name: str
    """The name that ``activation=`` takes."""
    summary: str
    """The formula, for the documentation's table."""
    formula: Callable[[Array, Functions], Array]
    """``f(x, functions)`` in the precision of ``x``, floating arrays. NaN stays NaN; no finite or infinite argument
    makes NaN. Of a gated epilogue: the function of the gate."""
    gradient: Callable[[Array, Functions], Array] | None
    """``f'(x, functions)``, likewise; None for a function that is not differentiated (:meth:`derivative`)."""
    slope: float
    """An upper bound of abs(f'), or of abs(f'(x)) / abs(x) ** (degree - 1): how much an error of the argument can
    grow."""
    evaluation: float
    """Roundings that evaluating the function may cost, relative to the argument unless it is :attr:`accurate`; 0 for
    none."""
    expression: str | None
    """f in C, of a float ``x``, for kernels that are compiled at run time. Beside the operators it may use the
    functions that :mod:`gemmhub.kit.epilogue_source` declares. None where kernels refuse it."""
    gate: str | None = None
    """None, or where the two columns of a pair are: "halves", column j and column j + n / 2; "interleaved", columns 2 j
    and 2 j + 1. The first is the gate."""
    from_result: bool = False
    """Whether f' can be computed from f(x) instead of x, as that of relu."""
    accurate: bool = False
    """Whether ``evaluation`` is relative to abs(f(x)) + abs(x f'(x)), as roundings of the result and of the argument
    are. The usual formulas of gelu and silu cancel where f is small, and are accurate relative to abs(x) only."""
    degree: int = 1
    """The power that abs(f(x)) grows by: it is at most max(1, abs(x)) ** degree."""
    arithmetic: bool = False
    """Whether the formula consists of additions, multiplications and comparisons, whose bits are the same wherever
    an element lies in an array."""

    @property
    def arity(self) -> int:
        """Columns of the product for each column of the result: 1, or 2 where it is gated."""
        return 1 if self.gate is None else 2

    @property
    def compiled(self) -> bool:
        """Whether kernels that compile expressions can end a product with it: it has one, and is not gated."""
        return self.gate is None and self.expression is not None

    def derivative(self, x: Array, functions: Functions = NUMPY) -> Array:
        """Compute the gradient of the formula. Raises InputError where the epilogue has none."""
        if self.gradient is None:
            remedy = "pass gradient= to gemmhub.register_epilogue, or differentiate a product without it"
            raise InputError("activation", f"{self.name}, which has no gradient", "one that has a gradient", remedy)
        return self.gradient(x, functions)

    def columns(self, n: int) -> int:
        """Return the columns of the result of a product of ``n`` columns."""
        return n // self.arity

    def split(self, x: Array) -> tuple[Array, ...]:
        """Return the views of ``x`` (..., n) that are its arguments: itself, or (gate, up)."""
        if self.gate is None:
            return (x,)
        if self.gate == "interleaved":
            return x[..., 0::2], x[..., 1::2]
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]

    def __call__(self, x: Array, functions: Functions = NUMPY) -> Array:
        """Compute the result of ``x`` (..., n), a floating array, in its precision."""
        first, *rest = self.split(x)
        value = self.formula(first, functions)
        value = value * rest[0] if rest else value
        return value.astype(x.dtype) if value.dtype != x.dtype else value  # of one element NumPy 1.26 makes float64

    def bound(
        self, parts: tuple[Array, ...], errors: tuple[Array, ...], evaluation: float, roundoff: float, underflow: float
    ) -> Array:
        """Return how far the result may be from that of the exact arguments.

        ``parts`` are the arguments in the order of :meth:`split`, each known to within ``errors``, or the gate alone;
        ``evaluation`` is the error of the function relative to its argument, ``roundoff`` that of the multiplication of
        a gate, and ``underflow`` the absolute error of either.
        """
        (x, *up), (error, *others) = parts, errors
        value, size = np.abs(self.formula(x, NUMPY)), np.abs(x)
        grown = self.slope * error if self.degree == 1 else self.slope * (size + error) ** (self.degree - 1) * error
        if self.accurate:  # within the error, the size grows by a few times what f does
            steep = self.slope * size**self.degree if self.gradient is None else size * np.abs(self.gradient(x, NUMPY))
            size, error = value + steep, 4 * grown
        error = grown + evaluation * (size + error) + underflow
        # Of an infinite argument the function has no error but that of its finite limit.
        error = np.where(np.isinf(x) & np.isfinite(value), evaluation * value + underflow, error)
        if not up:
            return error
        error = (value + error) * others[0] + error * np.abs(up[0])
        return error + roundoff * (value * np.abs(up[0]) + error) + underflow


def _relu(x: Array, functions: Functions) -> Array:
    return functions.clip(x, 0, None)  # of integers, too


def _relu_gradient(x: Array, functions: Functions) -> Array:
    return functions.where(x > 0, 1.0, functions.where(x <= 0, 0.0, x))


def _silu(x: Array, functions: Functions) -> Array:
    low = functions.clip(x, _LOW, None)
    return low * functions.sigmoid(low)


def _silu_gradient(x: Array, functions: Functions) -> Array:
    near = functions.clip(x, -_FLAT, _FLAT)
    sigmoid = functions.sigmoid(near)
    return sigmoid * (1 + near * (1 - sigmoid))


def _gelu(x: Array, functions: Functions) -> Array:
    low = functions.clip(x, _LOW, None)
    return 0.5 * low * (1 + functions.erf(functions.clip(x, -_FLAT, _FLAT) * sqrt(0.5)))


def _gelu_gradient(x: Array, functions: Functions) -> Array:
    near = functions.clip(x, -_FLAT, _FLAT)
    density = functions.exp(-0.5 * near * near) * (1 / sqrt(2 * pi))
    return 0.5 * (1 + functions.erf(near * sqrt(0.5))) + near * density


_SCALE = 2 * sqrt(2 / pi)
_CUBIC = 0.044715


def _gelu_tanh(x: Array, functions: Functions) -> Array:
    low, near = functions.clip(x, _LOW, None), functions.clip(x, -_FLAT, _FLAT)
    return low * functions.sigmoid(_SCALE * near * (1 + _CUBIC * near * near))


def _gelu_tanh_gradient(x: Array, functions: Functions) -> Array:
    near = functions.clip(x, -_FLAT, _FLAT)
    square = near * near
    sigmoid = functions.sigmoid(_SCALE * near * (1 + _CUBIC * square))
    return sigmoid * (1 + near * (1 - sigmoid) * _SCALE * (1 + 3 * _CUBIC * square))


def _tanh(x: Array, functions: Functions) -> Array:
    return functions.tanh(x)


def _tanh_gradient(x: Array, functions: Functions) -> Array:
    value = functions.tanh(x)
    return 1 - value * value


def _sigmoid(x: Array, functions: Functions) -> Array:
    return functions.sigmoid(x)


def _sigmoid_gradient(x: Array, functions: Functions) -> Array:
    value = functions.sigmoid(x)
    return value * (1 - value)


def _relu_squared(x: Array, functions: Functions) -> Array:
    value = functions.clip(x, 0, None)
    return value * value


def _relu_squared_gradient(x: Array, functions: Functions) -> Array:
    return 2 * functions.clip(x, 0, None)


_LEAK = 0.01
"""The slope of leaky_relu on the left, torch's default."""


def _leaky_relu(x: Array, functions: Functions) -> Array:
    return functions.where(x < 0, _LEAK * x, x)


def _leaky_relu_gradient(x: Array, functions: Functions) -> Array:
    return functions.where(x > 0, 1.0, functions.where(x <= 0, _LEAK, x))


def _hardswish(x: Array, functions: Functions) -> Array:
    low = functions.clip(x, _LOW, None)
    return low * (functions.clip(low + 3, 0, 6) / 6)  # in this order the largest numbers do not overflow


def _hardswish_gradient(x: Array, functions: Functions) -> Array:
    return functions.where(x <= -3, 0.0, functions.where(x >= 3, 1.0, x / 3 + 0.5))


_SILU = "gated(x, x)"
_GELU = "normal_weighted(x)"


class Epilogues(dict[str, Epilogue]):
    """Epilogues by name, whose look-up of an unknown name raises InputError: a plan may outlive a registered one."""

    def __missing__(self, name: str) -> Epilogue:
        remedy = "register one of your own by gemmhub.register_epilogue, in each process that multiplies with it"
        raise InputError("activation", f"{name!r}", ", ".join(self), remedy)


EPILOGUES: Epilogues = Epilogues(
    (x.name, x)
    for x in (
        Epilogue(
            "relu", "max(x, 0)", _relu, _relu_gradient, 1.0, 0.0, "x < 0.0f ? 0.0f : x", from_result=True,
            arithmetic=True,
        ),
        Epilogue(
            "gelu", "x Φ(x), Φ the normal distribution function (erf): torch's default", _gelu, _gelu_gradient, 1.13,
            8.0, _GELU,
        ),
        # The tanh form of Hendrycks and Gimpel (arXiv:1606.08415): (1 + tanh(u)) / 2 is the sigmoid of 2 u.
        Epilogue(
            "gelu_tanh", "x (1 + tanh(√(2 / π) (x + 0.044715 x³))) / 2, an approximation of gelu", _gelu_tanh,
            _gelu_tanh_gradient, 1.13, 8.0,
            "gated(x, x * (1.5957691216057308f + 0.07135481627159286f * x * x))",
        ),
        Epilogue("silu", "x / (1 + exp(-x))", _silu, _silu_gradient, 1.1, 8.0, _SILU),
        Epilogue("tanh", "tanh(x)", _tanh, _tanh_gradient, 1.0, 8.0, "tanhf(x)", accurate=True),
        Epilogue(
            "sigmoid", "1 / (1 + exp(-x))", _sigmoid, _sigmoid_gradient, 0.25, 8.0, "gated(1.0f, x)", accurate=True
        ),
        # The activation of Primer (arXiv:2109.08668).
        Epilogue(
            "relu_squared", "max(x, 0)²", _relu_squared, _relu_squared_gradient, 2.0, 1.0, "x < 0.0f ? 0.0f : x * x",
            accurate=True, degree=2, arithmetic=True,
        ),
        Epilogue(
            "leaky_relu", "x, or 0.01 x where x < 0: torch's default slope", _leaky_relu, _leaky_relu_gradient, 1.0,
            2.0, "x < 0.0f ? 0.01f * x : x", from_result=True, accurate=True, arithmetic=True,
        ),
        # The piecewise silu of MobileNetV3 (arXiv:1905.02244).
        Epilogue(
            "hardswish", "x min(max(x + 3, 0), 6) / 6", _hardswish, _hardswish_gradient, 1.5, 4.0,
            "x <= -3.0f ? 0.0f : x >= 3.0f ? x : x * (x + 3.0f) * 0.16666667f", accurate=True, arithmetic=True,
        ),
        # Gated linear units of Shazeer (arXiv:2002.05202).
        Epilogue("swiglu", "silu(gate) up", _silu, _silu_gradient, 1.1, 8.0, _SILU, gate="halves"),
        Epilogue("swiglu_interleaved", "silu(gate) up", _silu, _silu_gradient, 1.1, 8.0, _SILU, gate="interleaved"),
        Epilogue("geglu", "gelu(gate) up", _gelu, _gelu_gradient, 1.13, 8.0, _GELU, gate="halves"),
    )
)  # fmt: skip
"""Epilogues by the name that ``activation=`` takes: built in, and those of :func:`gemmhub.register_epilogue`."""

ELEMENTWISE = tuple(name for name, x in EPILOGUES.items() if x.arity == 1)
"""Names of the built-in epilogues whose result has as many columns as the product."""


def columns(activation: str | None, n: int) -> int:
    """Return the columns of the result of a product of ``n`` columns that ends by ``activation``."""
    return n if activation is None else EPILOGUES[activation].columns(n)
