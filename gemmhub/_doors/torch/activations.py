"""Activations of products by torch: the formulas of :mod:`gemmhub.epilogues`, or torch's own kernels for them.

torch's kernels are one pass over memory where a formula is several. They give NaN where the square of their argument
overflows, so they get it within :data:`_FLAT`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from gemmhub.epilogues import EPILOGUES, Epilogue
from gemmhub.errors import InputError

Tensor = Any

_FLAT = 1000.0
"""Beyond this argument gelu, silu and hardswish are linear, in float64, too."""


class TorchFunctions:
    """The functions of :class:`gemmhub.epilogues.Functions` for tensors."""

    exp, tanh, erf, sigmoid = map(staticmethod, (torch.exp, torch.tanh, torch.erf, torch.sigmoid))
    where = staticmethod(torch.where)

    @staticmethod
    def clip(x: Tensor, low: float, high: float | None) -> Tensor:
        """Limit ``x`` to a range; ``high`` None for no upper limit."""
        return x.clamp(low, high)


FUNCTIONS = TorchFunctions()


class Fused(NamedTuple):
    """torch's own kernels of a function."""

    function: Callable[[Tensor], Tensor]
    """The function, differentiable."""
    gradient: Callable[[Tensor, Tensor], Tensor]
    """``(grad, x) -> grad * f'(x)``, differentiable."""


def _within(function: Callable[..., Tensor], gradient: Callable[..., Tensor]) -> Fused:
    """torch's kernels of a function that is 0 on the left of ``-_FLAT`` and x on the right of ``_FLAT``."""
    return Fused(
        lambda x: function(x.clamp(-_FLAT, _FLAT)) + torch.relu(x - _FLAT),
        lambda grad, x: gradient(grad, x.clamp(-_FLAT, _FLAT)),
    )


_nn, _aten = torch.nn.functional, torch.ops.aten


def _silu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """torch's kernel where nothing differentiates it: it has no gradient."""
    if torch.is_grad_enabled():
        return grad * EPILOGUES["silu"].derivative(x, FUNCTIONS)
    return _aten.silu_backward(grad, x)


_FUSED: dict[object, Fused] = {
    EPILOGUES[name].formula: fused
    for name, fused in {
        "relu": Fused(torch.relu, lambda grad, x: _aten.threshold_backward(grad, x, 0)),
        "gelu": _within(_nn.gelu, _aten.gelu_backward),
        "gelu_tanh": _within(
            partial(_nn.gelu, approximate="tanh"), partial(_aten.gelu_backward, approximate="tanh")
        ),
        "silu": _within(_nn.silu, _silu_gradient),
        "tanh": Fused(torch.tanh, lambda grad, x: _aten.tanh_backward(grad, torch.tanh(x))),
        "sigmoid": Fused(torch.sigmoid, lambda grad, x: _aten.sigmoid_backward(grad, torch.sigmoid(x))),
        "leaky_relu": Fused(_nn.leaky_relu, lambda grad, x: _aten.leaky_relu_backward(grad, x, 0.01, False)),
        "hardswish": _within(_nn.hardswish, _aten.hardswish_backward),
    }.items()
}  # fmt: skip
"""torch's kernels by formula; that of a gated epilogue is its gate's."""


def activated(name: str, x: Tensor) -> Tensor:
    """The result of ``x`` (..., n), a floating tensor, in its dtype; differentiable."""
    epilogue = known(name)
    first, *rest = epilogue.split(x)
    value = _function(epilogue, first)
    return value * rest[0] if rest else value


def gradient(name: str, grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of ``x``, given that of its result; differentiable.

    ``x`` may be the result itself where :attr:`~gemmhub.epilogues.Epilogue.from_result`.
    """
    epilogue = known(name)
    first, *rest = epilogue.split(x)
    if not rest:
        return _slope(epilogue, grad, first)
    of_both = _slope(epilogue, grad * rest[0], first), grad * _function(epilogue, first)
    return torch.cat(of_both, -1) if epilogue.gate == "halves" else torch.stack(of_both, -1).flatten(-2)


def tangent(name: str, x: Tensor, by: Tensor) -> Tensor:
    """The tangent of the result of ``x``, whose own is ``by``; differentiable."""
    epilogue = known(name)
    first, *rest = epilogue.split(x)
    along, *others = epilogue.split(by)
    if not rest:
        return _slope(epilogue, along, first)
    return _slope(epilogue, along * rest[0], first) + others[0] * _function(epilogue, first)


def known(name: str) -> Epilogue:
    """Return the epilogue of this name; InputError where there is none."""
    epilogue = EPILOGUES.get(name)
    if epilogue is None:
        raise InputError("activation", f"{name!r}", ", ".join(EPILOGUES))
    return epilogue


def _function(epilogue: Epilogue, x: Tensor) -> Tensor:
    fused = _FUSED.get(epilogue.formula)
    return epilogue.formula(x, FUNCTIONS) if fused is None else fused.function(x)


def _slope(epilogue: Epilogue, grad: Tensor, x: Tensor) -> Tensor:
    fused = _FUSED.get(epilogue.formula)
    return grad * epilogue.derivative(x, FUNCTIONS) if fused is None else fused.gradient(grad, x)
