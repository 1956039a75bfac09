"""The kinds of calls, as keys: all that a decision and its checks may depend on.

They are read from the arguments as these were passed: types, dtypes, shapes and strides of arrays, options, and the
settings in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gemmhub import config
from gemmhub._call.options import NUMBERS, VALUES
from gemmhub.dtypes import scalar_kind
from gemmhub.operands import WRITTEN
from gemmhub.packed import PackedB

LOOK_CLOSELY = object()
"""Kept under the key of calls whose decision depends on strides: the decision is under a key with strides."""
_SCALARS = (int, float, complex)
_SMALL, _LARGE = 2.0**-126, 2.0**127
_settings = config.context.get
_ndarray = np.ndarray


def kind_of(a: Any, b: Any, out: Any, options: Mapping[str, Any], closely: bool = False) -> tuple[Any, ...] | None:
    """The kind of a call, as a key; None where an argument has no facts to compare (a list), or is no number.

    Of NumPy arrays strides and alignment count only where ``closely``: most decisions on the CPU hold for any. Where
    one does not, :data:`LOOK_CLOSELY` is kept under the key. The key may be unhashable.
    """
    key: tuple[Any, ...]
    if a.__class__ is _ndarray and b.__class__ is _ndarray and not closely:
        key = _settings(), a.dtype, b.dtype, a.shape, b.shape
    else:
        left, right = _facts(a, closely), _facts(b, closely)
        if left is None or right is None:
            return None
        key = _settings(), *left, *right
    if out.__class__ is _ndarray and not closely:
        key += (out.strides, out.dtype, out.shape)  # by its strides elements may share memory
    elif out is not None:
        facts = _facts(out, closely)
        if facts is None:
            return None
        key += (None, *facts)
    for name, value in options.items():  # a tuple and not a list: most calls have one or two
        kind = value.__class__
        if kind is _ndarray and not closely and (shape := value.shape):
            key += (name, value.dtype, shape)
            if name in WRITTEN:
                key += (value.strides,)  # by its strides elements may share memory
        elif name in VALUES:
            key += (name, kind, value)
        elif name in NUMBERS:
            if kind is float and _SMALL <= value <= _LARGE and value != 1:  # the commonest, without a call
                key += (name, value < 2**31 and value.is_integer())
                continue
            number = number_kind(value)
            if number is None:
                return None
            key += (name, number)
        elif name == "stream" or value is None:
            key += (name, value is None)
        else:
            facts = _facts(value, closely)
            if facts is None:
                return None
            key += (name, *facts)
    return key


def number_kind(value: Any) -> object:
    """The facts of a number that count for the kind of a call; None where it is no number of Python."""
    return scalar_kind(value) if value.__class__ in _SCALARS else None


def _facts(x: Any, closely: bool) -> tuple[Any, ...] | None:
    """The facts of one array for a key; None where it has too few."""
    if x.__class__ is _ndarray:
        return (x.dtype, x.shape, x.strides, x.flags.aligned) if closely else (x.dtype, x.shape)
    if isinstance(x, PackedB):
        return PackedB, x.dtype, x.shape, x.kind
    from gemmhub._arrays.find import layout_key  # not for NumPy's arrays, so that they import no other library's module

    try:
        return type(x), x.dtype, x.shape, *layout_key(x)
    except Exception:  # foreign code; describing the operand finds out what is wrong
        return None
