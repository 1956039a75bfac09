"""Decided calls, kept by their kind, so that nothing is decided twice.

The *kind* of a call is all that its decision and its checks may depend on: types, dtypes, shapes and strides of its
arrays, its options, and the settings in force. :func:`kind_of` reads it from the arguments as they were passed, so
that a call that was seen before checks nothing again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmhub import config
from gemmhub._base.evicting import keep
from gemmhub._call.options import NUMBERS, VALUES
from gemmhub.dtypes import scalar_kind
from gemmhub.packed import PackedB

if TYPE_CHECKING:
    from gemmhub._call.family import Families
    from gemmhub._choice.decide import Winner
    from gemmhub.array_library import FastPath

LOOK_CLOSELY = object()
"""Kept under the key of calls whose decision depends on strides: the decision is under a key with strides."""
_MOST_BUCKETS = 4096
"""The most buckets whose winners are kept."""
_MOST = 12_288
"""The most keys: of 4096 sizes on a CPU, three each, which take about 14 MB."""
_SCALARS = (int, float, complex)
_SMALL, _LARGE = 2.0**-126, 2.0**127
_settings = config.context.get
_ndarray = np.ndarray


class CallCache:
    """The decided calls of the process, or of one plan.

    When settings or records change, it is not emptied but replaced as a whole: a call that another thread is deciding
    keeps the cache that it began with, so that what it decides by old records and settings is forgotten with them.
    """

    __slots__ = ("_found", "families", "fast", "find", "winners")

    def __init__(self) -> None:
        self._found: OrderedDict[Any, Any] = OrderedDict()
        self.find = self._found.get
        """The function, or the decision, that was put under a key; None where there is none. TypeError for a key that
        cannot be hashed."""
        self.families: Families | None = None
        """What runs new sizes of families that were met, if any. It has a table of its own: many sizes evict none."""
        self.winners: OrderedDict[Any, Winner] = OrderedDict()
        """The winners of buckets, by representative and settings."""
        self.fast: dict[type, FastPath] = {}
        """The fast path of each type of device arrays that was met."""

    def __len__(self) -> int:
        return len(self._found)

    def look_up(self, a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> tuple[tuple[Any, ...] | None, Any]:
        """The key of a call (None where it has none), and what is kept under it."""
        key = kind_of(a, b, out, options)
        try:
            found = self.find(key)
        except TypeError:  # unhashable: an object whose shape is a list, for example
            return None, None
        if found is LOOK_CLOSELY:
            key = kind_of(a, b, out, options, closely=True)
            found = self.find(key)
        return key, found

    def put(self, key: Any, value: Any) -> None:
        """Keep ``value`` under ``key``; where the cache is full, the oldest entry goes."""
        keep(self._found, key, value, _MOST)

    def put_winner(self, key: Any, value: Winner) -> None:
        keep(self.winners, key, value, _MOST_BUCKETS)


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
        if kind is _ndarray and value.shape and not closely:
            key += (name, value.dtype, value.shape)
        elif name in VALUES:
            key += (name, kind, value)
        elif name in NUMBERS:
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
    """What counts of a number for the kind of a call; None for what is no number of Python."""
    kind = value.__class__
    if kind is float and _SMALL <= value <= _LARGE and value != 1:
        return value < 2**31 and value.is_integer()
    return scalar_kind(value) if kind in _SCALARS else None


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
