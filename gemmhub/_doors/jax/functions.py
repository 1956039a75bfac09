"""The activations of :mod:`gemmhub.epilogues` as functions of JAX, with their derivatives."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from gemmhub.epilogues import EPILOGUES

Array = Any


class JaxFunctions:
    """JAX's functions for formulas; see :class:`gemmhub.epilogues.Functions`."""

    exp, tanh, erf = staticmethod(jnp.exp), staticmethod(jnp.tanh), staticmethod(jax.scipy.special.erf)
    sigmoid, clip = staticmethod(jax.nn.sigmoid), staticmethod(jnp.clip)

    @staticmethod
    def where(condition: Array, x: Array | float, y: Array | float) -> Array:
        """Choose elements; a number has the dtype of the other, which may be integers."""
        dtype = next((z.dtype for z in (x, y) if hasattr(z, "dtype")), None)
        return jnp.where(condition, jnp.asarray(x, dtype), jnp.asarray(y, dtype))


JAX = JaxFunctions()


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _formula(name: str, x: Array) -> Array:
    """The function of an epilogue, of each element. JAX's derivative of a formula is NaN at infinities."""
    return EPILOGUES[name].formula(x, JAX)


@_formula.defjvp
def _gradient(name: str, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    return _formula(name, x), EPILOGUES[name].derivative(x, JAX) * tangent


def activated(name: str | None, x: Array) -> Array:
    """The activation of ``x`` (..., n): of each element, or of each pair of columns; ``x`` itself for None."""
    if name is None:
        return x
    first, *up = EPILOGUES[name].split(x)
    value = _formula(name, first)
    return value * up[0] if up else value
