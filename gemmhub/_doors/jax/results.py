"""The dtypes of the results of compiled programs."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from gemmhub import dtypes
from gemmhub._call.options import Request
from gemmhub.errors import DTypeError


def result_dtype(a: Any, b: Any, request: Request) -> Any:
    """The dtype of the result of a compiled program; DTypeError for complex numbers, which JAX passes to none."""
    dtype = dtypes.output_dtype(a, b, request.out_dtype)
    if "c" in dtype.kind + a.kind + b.kind:
        raise DTypeError("a, b", "complex numbers in a function that JAX traces", "real ones", "multiply their parts")
    dtype = enabled(dtype, request.out_dtype is not None)
    request.check_scalars(a, b, dtype)
    return dtype


def enabled(dtype: Any, explicit: bool) -> Any:
    """``dtype``, or where JAX has not enabled its 64 bits the one of 32 bits, as jax.numpy has it: with a warning where
    the caller has named the dtype.
    """
    enabled = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    if explicit and enabled != dtype:
        warnings.warn(
            f"Explicitly requested dtype {dtype} requested in gemmhub.matmul is not available, and will be truncated "
            f"to dtype {enabled}. Set jax_enable_x64 for 64 bits.",
            UserWarning, stacklevel=3,
        )  # fmt: skip
    return enabled
