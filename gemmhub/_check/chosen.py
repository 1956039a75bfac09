"""The random choices of a check, and the elements that its caller chooses."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_index
from typing import Any

import numpy as np
import numpy.random

from gemmhub.errors import InputError

Array = Any


def generator(seed: Any) -> np.random.Generator:
    """A generator of random numbers; InputError for an invalid seed."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InputError("seed", f"{seed!r:.80}", "None, or an integer of at least 0") from None


def inside(points: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Array:
    """Flat indices of ``points``; InputError for invalid indices of an array of ``shape``."""
    flat = []
    try:
        points = tuple(points)
    except TypeError:
        raise InputError("points", repr(points), f"a sequence of tuples of {len(shape)} integers") from None
    for point in points:
        try:
            index = tuple(as_index(i) for i in point)
        except TypeError:
            raise InputError("points", repr(point), f"tuples of {len(shape)} integers") from None
        if len(index) != len(shape) or not all(0 <= i < size for i, size in zip(index, shape)):
            raise InputError("points", f"{index}", f"{len(shape)} indices inside the shape {shape} of the result")
        flat.append(int(np.ravel_multi_index(index, shape)) if shape else 0)
    return np.array(flat, dtype=np.intp)


def sample(samples: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    try:
        count = as_index(samples)
    except TypeError:
        count = 0
    if count < 1:
        raise InputError("samples", repr(samples), "an integer of at least 1")
    size = prod(shape)
    return np.arange(size) if size <= count else rng.choice(size, count, replace=False)
