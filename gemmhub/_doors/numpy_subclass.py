"""A subclass of numpy.ndarray whose products run on gemmhub, by NumPy's protocols, with no effect on other arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import index
from string import ascii_letters
from typing import Any

import numpy as np

from gemmhub import api, array_library, dtypes
from gemmhub._contractions.einsum import einsum
from gemmhub._contractions.tensordot import tensordot, vecdot
from gemmhub.errors import DTypeError, InputError

_UFUNCS = frozenset(getattr(np, name) for name in ("matmul", "vecdot", "matvec", "vecmat") if hasattr(np, name))
"""The ufuncs that sum products. Older versions of NumPy have only the first."""
_VECDOT = getattr(np, "vecdot", None)
_NUMPYS = frozenset({"dtype", "signature", "casting"})
"""Keyword arguments with which the caller chooses NumPy's own dtypes."""


class HubArray(np.ndarray):
    """An ndarray whose ``@`` and other products are computed by :func:`gemmhub.matmul`, with its dtype rules.

    :func:`gemmhub.numpy.asarray` creates one. Everything else is as in numpy.ndarray; results are of this class, too.
    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        if ufunc in _UFUNCS and method == "__call__":
            result = _ufunc(ufunc, inputs, out[0] if out else None, options)
            if result is not NotImplemented:
                return result
        if any(_foreign(x) for x in (*inputs, *out)):
            return NotImplemented
        if out:
            options["out"] = tuple(map(_plain, out))
        results = getattr(ufunc, method)(*map(_plain, inputs), **options)
        if out:
            return out[0] if len(out) == 1 else out
        return tuple(map(_wrapped, results)) if isinstance(results, tuple) else _wrapped(results)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        ours = _FUNCTIONS.get(function)
        if ours is not None:
            result = ours(*arguments, **options)
            if result is not NotImplemented:
                return result
        return super().__array_function__(function, types, arguments, options)

    def dot(self, b: Any, out: Any = None) -> Any:
        """Compute :func:`numpy.dot` by gemmhub."""
        return np.dot(self, b, out) if out is not None else np.dot(self, b)


def asarray(x: Any, dtype: Any = None) -> HubArray:
    """View ``x`` as an array whose products gemmhub computes.

    ``@``, :func:`numpy.matmul`, :func:`numpy.dot`, :func:`numpy.inner`, :func:`numpy.vdot`, :func:`numpy.vecdot`,
    :func:`numpy.tensordot` and :func:`numpy.einsum` of two or more operands go through :func:`gemmhub.matmul`: 8-bit
    integers give int32, half precision is summed in float32, and bfloat16 of ml_dtypes works. Every other spelling of a
    sum of products has the same dtypes. No other array of the process is affected.

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

    See Also
    --------
    gemmhub.matmul : the product, with its options.

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
    """``result`` in ``out`` unless it is None, whose shape and dtype must be those of the result, as in NumPy."""
    if out is None:
        return result
    if out.shape != result.shape:
        raise ValueError(f"output array has shape {out.shape}; the result has {result.shape}")
    out[...] = result
    return out


def _ufunc(ufunc: np.ufunc, inputs: tuple[Any, ...], out: Any, options: Mapping[str, Any]) -> Any:
    if ufunc is np.matmul and options.keys() <= {"dtype"}:
        a, b = inputs
        return _product(a, b, out, options.get("dtype"))
    if ufunc is _VECDOT and options.keys() <= {"axis"}:
        result = _contracted(vecdot, inputs, **options)
        if result is not NotImplemented:
            return _written(result, out)
    if not _NUMPYS.isdisjoint(options) or not _supported(*inputs):
        return NotImplemented
    return _written(_accumulated(inputs, lambda *arguments: ufunc(*arguments, **options)), out)


def _accumulated(operands: tuple[Any, ...], multiply: Callable[..., Any]) -> Any:
    """``multiply`` of the operands by NumPy, in the accumulator's dtype and rounded to that of a product.

    For sums of products with options of NumPy alone: its own loops wrap 8-bit integers, and round each step of 16-bit
    floats. More than two operands are products from left to right.
    """
    plain = [np.asarray(_plain(x)) for x in operands]
    dtype = total = plain[0].dtype
    for x in plain[1:]:
        product_dtype = dtypes.result_dtype(dtype, x.dtype)
        dtype, total = product_dtype, dtypes.compute_dtype(dtype, x.dtype, product_dtype)
    with np.errstate(all="ignore"):
        result = multiply(*(x.astype(total, copy=False) for x in plain))
        return _wrapped(result.astype(dtype, copy=False))


def _tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    return _contracted(tensordot, (a, b), axes)


def _contracted(function: Callable[..., Any], operands: tuple[Any, ...], *others: Any, **options: Any) -> Any:
    """A contraction; NotImplemented for what NumPy multiplies, or refuses in its own words."""
    if not _supported(*operands):
        return NotImplemented
    try:
        result = function(*(np.asarray(_plain(x)) for x in operands), *others, **options)
    except InputError:
        return NotImplemented
    return _wrapped(result[()])


def _dot(a: Any, b: Any, out: Any = None) -> Any:
    if np.ndim(a) == 0 or np.ndim(b) == 0 or not _supported(a, b):
        return NotImplemented
    if np.ndim(a) <= 2 and np.ndim(b) <= 2:
        return _product(a, b, out=out)
    return _written(_tensordot(a, b, (-1, -1 if np.ndim(b) == 1 else -2)), out)


def _inner(a: Any, b: Any) -> Any:
    return NotImplemented if np.ndim(a) == 0 or np.ndim(b) == 0 else _tensordot(a, b, (-1, -1))


def _vdot(a: Any, b: Any) -> Any:
    return _contracted(vecdot, (np.ravel(a), np.ravel(b)))


def _einsum(*arguments: Any, out: Any = None, **options: Any) -> Any:
    """An equation and operands; or operands, each with a list of axes after it, and perhaps a list for the result."""
    spelled = bool(arguments) and isinstance(arguments[0], str)
    operands = arguments[1:] if spelled else arguments[: len(arguments) // 2 * 2 : 2]
    if len(operands) < 2 or "dtype" in options or not _supported(*operands):
        return NotImplemented
    if options.keys() <= {"optimize"}:
        equation = arguments[0] if spelled else _equation(arguments)
        result = _contracted(partial(einsum, equation), operands)
        if result is not NotImplemented:
            return _written(result, out)

    def numpys(*widened: Any) -> Any:
        if spelled:
            return np.einsum(arguments[0], *widened, **options)
        mixed = list(arguments)
        mixed[: 2 * len(widened) : 2] = widened
        return np.einsum(*mixed, **options)

    return _written(_accumulated(operands, numpys), out)


def _equation(arguments: tuple[Any, ...]) -> str | None:
    """The equation of operands with lists of axes; None where an axis has no letter."""
    letters = dict(enumerate(sorted(ascii_letters)))
    lists = [*arguments[1::2], *arguments[-1:] * (len(arguments) % 2)]
    try:
        texts = ["".join("..." if x is Ellipsis else letters[index(x)] for x in axes) for axes in lists]
    except (TypeError, KeyError):
        return None
    inputs = ",".join(texts[: len(arguments) // 2])
    return f"{inputs}->{texts[-1]}" if len(arguments) % 2 else inputs


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.dot: _dot, np.inner: _inner, np.vdot: _vdot, np.tensordot: _tensordot, np.einsum: _einsum,
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
