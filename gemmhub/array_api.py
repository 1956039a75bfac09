"""An array API namespace: NumPy's, with gemmhub's products.

``matmul``, ``tensordot``, ``vecdot`` and ``matrix_transpose`` are the linear algebra of the standard's main namespace;
every other name is NumPy's. Their results have the dtypes of the standard: int8 by int8 is int8, which wraps.
:func:`gemmhub.matmul` has gemmhub's own rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gemmhub
from gemmhub.errors import ShapeError

Array = Any

__all__ = ["matmul", "matrix_transpose", "tensordot", "vecdot"]


def matmul(x1: Array, x2: Array, /) -> Array:
    """Compute the product of matrices by :func:`gemmhub.matmul`.

    Parameters
    ----------
    x1, x2 : ndarrays, of shapes as of :func:`numpy.matmul`.

    Returns
    -------
    An ndarray of the dtype that the standard promotes both dtypes to.

    Raises
    ------
    The errors of :func:`gemmhub.matmul`.

    Examples
    --------
    >>> import gemmhub.array_api as xp
    >>> xp.matmul(xp.ones((2, 3)), xp.ones((3, 4))).shape
    (2, 4)
    """
    return gemmhub.matmul(x1, x2, out_dtype=np.result_type(x1, x2))


def matrix_transpose(x: Array, /) -> Array:
    """Exchange the last two axes.

    Parameters
    ----------
    x : ndarray of two dimensions or more.

    Returns
    -------
    A view.

    Raises
    ------
    ShapeError : fewer dimensions.
    """
    if np.ndim(x) < 2:
        raise ShapeError("x", f"{np.ndim(x)} dimensions", "2 dimensions or more")
    return np.swapaxes(x, -1, -2)


def tensordot(x1: Array, x2: Array, /, *, axes: Any = 2) -> Array:
    """Compute the sum of products over axes by :func:`gemmhub.tensordot`.

    Parameters
    ----------
    x1, x2 : ndarrays.
    axes : the number of axes, the last of x1 and the first of x2; or a pair of sequences, of axes of each.

    Returns
    -------
    An ndarray of the dtype that the standard promotes both dtypes to.

    Raises
    ------
    The errors of :func:`gemmhub.tensordot`.
    """
    return gemmhub.tensordot(x1, x2, axes, out_dtype=np.result_type(x1, x2))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Compute scalar products, with x1 conjugated, by :func:`gemmhub.vecdot`.

    Parameters
    ----------
    x1, x2 : ndarrays.
    axis : the axis of both that is summed over.

    Returns
    -------
    An ndarray of the dtype that the standard promotes both dtypes to.

    Raises
    ------
    The errors of :func:`gemmhub.vecdot`.
    """
    return gemmhub.vecdot(x1, x2, axis=axis, out_dtype=np.result_type(x1, x2))


def __getattr__(name: str) -> Any:
    """Return NumPy's object of this name."""
    if name.startswith("_") and not name.startswith("__array"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(np, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *dir(np)})
