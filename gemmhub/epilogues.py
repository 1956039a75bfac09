"""The list of activation functions that end a product: formula, gradient and error bound of each.

``out = activation(alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias)``. Backends fuse them; what checks or
differentiates a product reads them here. The operands of an epilogue are fields of
:class:`~gemmhub.problem.GemmProblem`, and options of a call (:data:`gemmhub._call.options.OPTIONS`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any

_SCALE = float(np.sqrt(2.0 / np.pi))
_CUBIC = 0.044715
_FLAT = 50.0
"""Beyond this argument the gradient of every function here is 0 or 1, in float64, too."""


@dataclass(frozen=True)
class Activation:
    """One function of a result's elements."""

    formula: Callable[[Array], Array]
    """``f(x)`` in the precision of ``x``, a float array. NaN stays NaN; minus infinity becomes 0."""
    gradient: Callable[[Array], Array]
    """``f'(x)`` in the precision of ``x``."""
    slope: float
    """An upper bound of abs(f'): how much an error of the argument can grow."""
    evaluation: float
    """Roundings, relative to the argument, that evaluating the function may cost."""


def _relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _relu_gradient(x: Array) -> Array:
    return np.where(np.isnan(x), x, (x > 0).astype(x.dtype))


def _gelu(x: Array) -> Array:
    kind = x.dtype.type
    with np.errstate(all="ignore"):
        inner = kind(_SCALE) * (x + kind(_CUBIC) * x * x * x)
        value = kind(0.5) * x * (1 + np.tanh(inner))
    return np.where(np.isneginf(x), kind(0), value)


def _gelu_gradient(x: Array) -> Array:
    kind, near = x.dtype.type, np.clip(x, -_FLAT, _FLAT)
    square = near * near
    tanh = np.tanh(kind(_SCALE) * near * (1 + kind(_CUBIC) * square))
    rest = kind(_SCALE) * near * (1 - tanh * tanh) * (1 + kind(3 * _CUBIC) * square)
    return kind(0.5) * (1 + tanh + rest)


def _silu(x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.where(np.isneginf(x), x.dtype.type(0), x / (1 + np.exp(-x)))


def _silu_gradient(x: Array) -> Array:
    near = np.clip(x, -_FLAT, _FLAT)
    sigmoid = 1 / (1 + np.exp(-near))
    return sigmoid * (1 + near * (1 - sigmoid))


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(_relu, _relu_gradient, 1.0, 0.0),
    # The tanh form of Hendrycks and Gimpel (arXiv:1606.08415), which libraries fuse.
    "gelu": Activation(_gelu, _gelu_gradient, 1.13, 8.0),
    # x * sigmoid(x).
    "silu": Activation(_silu, _silu_gradient, 1.1, 8.0),
}
"""By the name that ``activation=`` takes."""
