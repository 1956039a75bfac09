"""Random operands of any dtype, for products that are measured."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmhub.dtypes import DType, info
from gemmhub.errors import AllocationError

Array = Any


def random_operand(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """A new operand of standard normal numbers, or integers over the whole range of their type. AllocationError."""
    try:
        return _random(rng, shape, dtype)
    except (MemoryError, ValueError) as error:  # ValueError for sizes beyond the address space
        sizes = " x ".join(map(str, shape))
        raise AllocationError(f"no memory for an operand of {sizes} {dtype}: {error}; use smaller sizes") from None


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    dtype_class = info(dtype).kind
    if dtype_class in ("int", "uint"):
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype=dtype.type, endpoint=True)
    if dtype_class == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype_class == "complex":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    wide: Any = np.float64 if dtype.itemsize == 8 else np.float32
    return rng.standard_normal(shape, dtype=wide).astype(dtype, copy=False)
