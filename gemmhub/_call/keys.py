"""Call signatures, as cache keys: all facts that a decision and its checks may depend on.

They are read from the arguments as these were passed: types, dtypes, shapes and strides of arrays, options, and the
settings in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gemmhub import config
from gemmhub._base.registered import direct, libraries
from gemmhub._call.options import ARRAYS, NUMBERS, VALUES
from gemmhub.dtypes import scalar_class
from gemmhub.operands import WRITTEN
from gemmhub.packed import PackedB

STRIDE_DEPENDENT = object()
"""Kept under the key of calls whose decision depends on strides: the decision is under a key with strides."""
_SCALARS = (int, float, complex)
_SMALL, _LARGE, _INTEGERS = 2.0**-126, 2.0**127, 2.0**31
_READ = frozenset(ARRAYS) - {*WRITTEN}
_settings = config.context.get
_ndarray = np.ndarray


def call_key(
    a: Any, b: Any, out: Any, options: Mapping[str, Any], with_strides: bool = False
) -> tuple[Any, ...] | None:
    """The key of a call; None where an argument has no facts to compare (a list), or is no number.

    Of NumPy arrays strides and alignment count only where ``with_strides``: most decisions on the CPU hold for any.
    Where one does not, :data:`STRIDE_DEPENDENT` is kept under the key. The key may be unhashable.
    """
    key: tuple[Any, ...]
    if a.__class__ is _ndarray and b.__class__ is _ndarray and not with_strides:
        key = _settings(), a.dtype, b.dtype, a.shape, b.shape
    else:
        left, right = _facts(a, with_strides), _facts(b, with_strides)
        if left is None or right is None:
            return None
        key = _settings(), *left, *right
    if out.__class__ is _ndarray and not with_strides:
        key += (out.strides, out.dtype, out.shape)  # by its strides elements may share memory
    elif out is not None:
        facts = _facts(out, with_strides)
        if facts is None:
            return None
        key += (None, *facts)
    read = _READ if not with_strides else ()
    for name, value in options.items():  # a tuple and not a list: usually there are one or two
        cls = value.__class__
        if cls is _ndarray and name in read:
            key += (name, value.dtype, value.shape)
        elif name in VALUES:
            key += (name, cls, value)
        elif name in NUMBERS:
            if cls is float and _SMALL <= value <= _LARGE and value != 1.0:  # the commonest, without a call
                key += (name, value < _INTEGERS and value.is_integer())
                continue
            number = number_class(value)
            if number is None:
                return None
            key += (name, number)
        elif name == "stream" or value is None:
            key += (name, value is None)
        else:
            facts = _facts(value, with_strides or name in WRITTEN)  # by its strides elements may share memory
            if facts is None:
                return None
            key += (name, *facts)
    return key


def number_class(value: Any) -> object:
    """The facts of a number that enter a cache key; None where it is no number of Python."""
    return scalar_class(value) if value.__class__ in _SCALARS else None


def _facts(x: Any, with_strides: bool) -> tuple[Any, ...] | None:
    """The facts of one array for a key; None where it has too few."""
    if x.__class__ is _ndarray:
        return (x.dtype, x.shape, x.strides, x.flags.aligned) if with_strides else (x.dtype, x.shape)
    if x.__class__ is PackedB:
        return PackedB, x.dtype, x.shape, x.kind
    try:
        find = libraries.get(x.__class__)
        if find is not None:
            return x.__class__, find(x).key(x)
        library = direct(x)
        if library is None:
            from gemmhub._arrays.find import arrays_of  # not for NumPy's arrays: it imports other libraries' modules

            library = arrays_of(x, "x")
        return x.__class__, library.key(x)
    except Exception:  # foreign code; describing the operand reports the fault
        return None
