"""A subclass of numpy.ndarray whose products run on gemmhub, by NumPy's protocols, with no effect on other arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmhub import api, array_library, dtypes
from gemmhub._doors.einsum import contraction
from gemmhub.errors import DTypeError

_OPTIONS = frozenset({"out", "dtype"})
"""Keyword arguments of numpy.matmul that gemmhub has too; with any other NumPy multiplies."""


class HubArray(np.ndarray):
    """An ndarray whose ``@`` and other products are computed by :func:`gemmhub.matmul`, with its dtype rules.

    :func:`gemmhub.numpy.asarray` creates one. Everything else is as in numpy.ndarray; results are of this class, too.
    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        if ufunc is np.matmul and method == "__call__" and _OPTIONS.issuperset(options):
            a, b = inputs
            result = _product(a, b, out[0] if out else None, options.get("dtype"))
            if result is not NotImplemented:
                return result
        if any(_foreign(x) for x in (*inputs, *out)):
            return NotImplemented
        if out:
            options["out"] = tuple(map(_plain, out))
        made = getattr(ufunc, method)(*map(_plain, inputs), **options)
        if out:
            return out[0] if len(out) == 1 else out
        return tuple(map(_wrapped, made)) if isinstance(made, tuple) else _wrapped(made)

    def __array_function__(self, function: Any, types: Any, given: Any, options: Any) -> Any:
        ours = _FUNCTIONS.get(function)
        if ours is not None:
            result = ours(*given, **options)
            if result is not NotImplemented:
                return result
        return super().__array_function__(function, types, given, options)

    def dot(self, b: Any, out: Any = None) -> Any:
        """Compute :func:`numpy.dot` by gemmhub."""
        return np.dot(self, b, out) if out is not None else np.dot(self, b)


def asarray(x: Any, dtype: Any = None) -> HubArray:
    """View ``x`` as an array whose products gemmhub computes.

    ``@``, :func:`numpy.matmul`, :func:`numpy.dot`, :func:`numpy.inner`, :func:`numpy.tensordot` and
    :func:`numpy.einsum` of two operands go through :func:`gemmhub.matmul`: 8-bit integers give int32, half precision is
    summed in float32, and bfloat16 of ml_dtypes works. No other array of the process is affected.

    Parameters
    ----------
    x : array or sequence of numbers, of any shape. An ndarray is not copied.
    dtype : dtype or name ("bfloat16" too) to convert to; that of ``x`` by default.

    Returns
    -------
    An ndarray subclass that shares the memory of ``x`` where that is an ndarray of the dtype.

    Raises
    ------
    DTypeError : a dtype that gemmhub does not support.

    Examples
    --------
    >>> a = gemmhub.numpy.asarray(np.ones((2, 300), np.int8))
    >>> a @ a.T
    HubArray([[300, 300],
              [300, 300]], dtype=int32)
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype, "dtype")
    return np.asarray(x, dtype=wanted).view(HubArray)


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, HubArray) else x


def _foreign(x: Any) -> bool:
    """Whether an operand has its own ``__array_ufunc__``."""
    own = getattr(type(x), "__array_ufunc__", None)
    return own is not None and own is not HubArray.__array_ufunc__ and own is not np.ndarray.__array_ufunc__


def _wrapped(x: Any) -> Any:
    return x.view(HubArray) if isinstance(x, np.ndarray) else x


def _supported(*operands: Any) -> bool:
    """Whether gemmhub multiplies these: arrays of its dtypes, and sequences. NumPy multiplies objects and dates."""
    for x in operands:
        if _foreign(x):
            return False
        try:
            dtypes.info(np.asarray(x).dtype)
        except (DTypeError, ValueError):
            return False
    return True


def _product(a: Any, b: Any, out: Any = None, dtype: Any = None) -> Any:
    if not _supported(a, b) or np.ndim(a) == 0 or np.ndim(b) == 0:
        return NotImplemented
    options = {} if dtype is None else {"out_dtype": dtype}
    if out is not None:
        api.matmul(_plain(a), _plain(b), out=_plain(out), **options)
        return out
    return _wrapped(api.matmul(_plain(a), _plain(b), **options))


def _written(result: Any, out: Any) -> Any:
    """``result`` in ``out`` where given, whose shape and dtype must be those of the result, as in NumPy."""
    if out is None:
        return result
    if out.shape != result.shape:
        raise ValueError(f"output array has shape {out.shape}; the result has {result.shape}")
    out[...] = result
    return out


def _tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    a, b = np.asanyarray(a), np.asanyarray(b)
    if not _supported(a, b):
        return NotImplemented
    if isinstance(axes, (int, np.integer)):
        left, right = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    else:
        left, right = (tuple(np.atleast_1d(np.asarray(x, int)).tolist()) for x in axes)
    left, right = tuple(x % max(a.ndim, 1) for x in left), tuple(x % max(b.ndim, 1) for x in right)
    if not left or len(left) != len(right) or [a.shape[x] for x in left] != [b.shape[x] for x in right]:
        return NotImplemented  # an outer product, or NumPy's own error
    rows = [x for x in range(a.ndim) if x not in left]
    columns = [x for x in range(b.ndim) if x not in right]
    inner = int(np.prod([a.shape[x] for x in left], dtype=int))
    first = _plain(a).transpose(*rows, *left).reshape(-1 if inner else _size(a, rows), inner)
    second = _plain(b).transpose(*right, *columns).reshape(inner, -1 if inner else _size(b, columns))
    made = api.matmul(first, second)
    return _wrapped(made.reshape([a.shape[x] for x in rows] + [b.shape[x] for x in columns])[()])


def _size(x: Any, axes: list[int]) -> int:
    return int(np.prod([x.shape[axis] for axis in axes], dtype=int))


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    if np.ndim(a) == 0 or np.ndim(b) == 0 or not _supported(a, b):
        return NotImplemented
    if np.ndim(a) <= 2 and np.ndim(b) <= 2:
        return _product(a, b, out=out)
    return _written(_tensordot(a, b, (-1, -1 if np.ndim(b) == 1 else -2)), out)


def _inner(a: Any, b: Any) -> Any:
    return NotImplemented if np.ndim(a) == 0 or np.ndim(b) == 0 else _tensordot(a, b, (-1, -1))


def _einsum(equation: Any, *operands: Any, out: Any = None, optimize: Any = False, **options: Any) -> Any:
    if not isinstance(equation, str) or len(operands) != 2 or options or not _supported(*operands):
        return NotImplemented
    a, b = (_plain(np.asanyarray(x)) for x in operands)
    asked = contraction(equation.replace(" ", ""))
    sizes = None if asked is None else asked.sizes(a.shape, b.shape)
    if asked is None or sizes is None:
        return NotImplemented
    left = a.transpose(asked.left()).reshape(asked.shape(sizes, asked.rows, asked.inner))
    right = b.transpose(asked.right()).reshape(asked.shape(sizes, asked.inner, asked.columns))
    apart = [sizes[x] for x in asked.batch + asked.rows + asked.columns]
    made = api.matmul(left, right).reshape(apart).transpose(asked.result())
    return _written(_wrapped(made), out) if made.ndim or out is not None else made[()]


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.dot: _dot, np.inner: _inner, np.tensordot: _tensordot, np.einsum: _einsum,
}  # fmt: skip


def take(call: str, operands: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """gemmhub's own calls with such arrays: the calls on their values, with a result of their class."""
    if call not in ("matmul", "explain", "pack", "spot_check"):
        return NotImplemented
    from gemmhub._check.spot_check import spot_check

    functions: dict[str, Callable[..., Any]] = {
        "matmul": api.matmul, "explain": api.explain, "pack": api.pack, "spot_check": spot_check
    }  # fmt: skip
    named = {name: _plain(x) for name, x in options.items()}
    result = functions[call](*map(_plain, operands), **named)
    if call != "matmul":
        return result
    return options["out"] if "out" in options else _wrapped(result)


array_library.register_deferring(HubArray, take)
