"""Operands of NumPy: ``numpy.ndarray``, and the scalars and nested sequences that NumPy converts to one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from gemmhub._arrays import array_types
from gemmhub._base.guard import words
from gemmhub._base.wording import instance
from gemmhub.array_library import HostArrays
from gemmhub.errors import InputError

Array = Any

SEQUENCES = (int, float, complex, list, tuple)
"""Types that NumPy converts to an array; beside an array they take that array's library."""


class NumpyArrays(HostArrays):
    """``numpy.ndarray``, and scalars and nested sequences, which are copied to one."""

    name = "numpy"

    def view(self, x: object, argument: str) -> Array:
        """``x`` as an ndarray; InputError for ragged sequences and for arrays that carry more than numbers."""
        cls: Any = type(x)
        if cls is np.ndarray:
            return x
        if not array_types.numbers_alone(cls, argument == "out"):
            raise array_types.refusal(x, argument)
        try:
            return np.asarray(x)
        except MemoryError:
            raise
        except Exception as error:  # __array__ is foreign code
            raise InputError(
                argument, f"not an array: {words(error)}", "arrays, or nested sequences of equal lengths of numbers"
            ) from error

    def holds(self, out: object) -> bool:
        return isinstance(out, np.ndarray)

    def key(self, x: Any) -> Hashable:
        """The facts of an array. TypeError for what is copied to one, which may change from call to call."""
        if not isinstance(x, (np.ndarray, np.generic)):
            raise TypeError(f"{instance(type(x))} has no key")
        return x.dtype, x.shape, x.strides, x.flags.num


NUMPY = NumpyArrays()
