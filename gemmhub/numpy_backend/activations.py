"""Activation functions in place, on a tile of a result in the dtype of its epilogue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gemmhub.errors import InputError
from gemmhub.numpy_backend.scratch import Lease

Array = Any

_LEAST = -1000.0
"""Below this argument gelu and silu are 0 to working precision. Such arguments are replaced, as minus infinity times 0
would be NaN."""


class InPlace(NamedTuple):
    """One activation function."""

    apply: Callable[[Lease, Array], None]
    """Replaces the elements of a tile by the function's values."""
    blocks: int
    """Tiles of scratch memory that it takes."""


def _relu(lease: Lease, tile: Array) -> None:
    np.maximum(tile, tile.dtype.type(0), out=tile)


def _gelu(lease: Lease, tile: Array) -> None:
    """Compute the tanh form: x (1 + tanh(sqrt(2 / pi) x (1 + 0.044715 x^2))) / 2."""
    kind = tile.dtype.type
    other = lease.take(tile.shape, tile.dtype)
    with np.errstate(all="ignore"):  # infinite intermediates give finite results
        np.maximum(tile, kind(_LEAST), out=tile)
        np.multiply(tile, tile, out=other)
        np.multiply(other, kind(0.044715), out=other)
        np.add(other, kind(1), out=other)
        np.multiply(other, tile, out=other)
        np.multiply(other, kind(np.sqrt(2.0 / np.pi)), out=other)
        np.tanh(other, out=other)
        np.add(other, kind(1), out=other)
        np.multiply(other, kind(0.5), out=other)
        np.multiply(tile, other, out=tile)


def _silu(lease: Lease, tile: Array) -> None:
    """Compute x / (1 + exp(-x))."""
    kind = tile.dtype.type
    other = lease.take(tile.shape, tile.dtype)
    with np.errstate(all="ignore"):
        np.maximum(tile, kind(_LEAST), out=tile)
        np.negative(tile, out=other)
        np.exp(other, out=other)
        np.add(other, kind(1), out=other)
        np.divide(tile, other, out=tile)


IN_PLACE = {"relu": InPlace(_relu, 0), "gelu": InPlace(_gelu, 1), "silu": InPlace(_silu, 1)}
"""By the names of :data:`gemmhub.epilogues.ACTIVATIONS`. A backend that finishes tiles by :func:`activate` refuses
others."""


def activate(name: str, lease: Lease, tile: Array) -> None:
    """Apply an activation function to a tile, in place; InputError for one that is not in :data:`IN_PLACE`."""
    found = IN_PLACE.get(name)
    if found is None:
        raise InputError("activation", f"{name!r}, which this backend does not compute", ", ".join(IN_PLACE))
    found.apply(lease, tile)
