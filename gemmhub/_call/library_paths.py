"""The fast paths of array libraries that have none of their own.

Arrays that :class:`gemmhub.array_library.HostArrays` views as ndarrays are multiplied as these: a repeated call costs
what it costs with ndarrays, two views and a wrapped result. Any other library's calls are looked up by its keys.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemmhub._arrays.host.operands import NumpyArrays
from gemmhub._base import registered
from gemmhub._call.cache import CallCache
from gemmhub._call.keys import STRIDE_DEPENDENT, call_key
from gemmhub.array_library import FastPath, HostArrays
from gemmhub.operands import OPERANDS, WRITTEN

Array = Any


def path(cls: type, arrays: Any, cache: CallCache, matmul: Callable[..., Any]) -> FastPath:
    """The fast path of arrays of the class ``cls``, of which ``arrays`` is a library, over the calls in ``cache``."""
    if viewed(arrays):
        return by_views(cls, arrays, cache.find, matmul)
    return by_keys(cache.keyed.setdefault(cls, OrderedDict()))


def viewed(arrays: object) -> bool:
    """Whether results of a registered library are new ndarrays, wrapped, and its ``out`` is checked as ndarrays are.

    (gemmhub's own libraries on the CPU derive from that of NumPy.)
    """
    if isinstance(arrays, NumpyArrays) or not isinstance(arrays, HostArrays):
        return False
    cls = type(arrays)
    return (cls.empty, cls.target) == (HostArrays.empty, HostArrays.target)


def by_views(
    cls: type, arrays: HostArrays, look_up: Callable[[Any], Any] | None, matmul: Callable[..., Any]
) -> FastPath:  # fmt: skip
    """The fast path of arrays of the class ``cls``: the product of their views, and a wrapped result.

    The function that ``look_up`` returns for the views' key runs the product, else ``matmul``.

    It does nothing and returns None where an operand is of another class or library, or an array to write has no
    view of its own memory. It raises what ``matmul`` raises.
    """
    find: Callable[[Any], Any] = registered.libraries.get(cls, registered.direct)
    mine, ndarray = arrays.__class__, np.ndarray

    def call(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
        library = find(a)
        if library.__class__ is not mine or b.__class__ is not cls:
            return None
        view = library.view
        x, y = view(a, "a"), view(b, "b")
        if x.__class__ is not ndarray or y.__class__ is not ndarray:
            return None
        operands: tuple[object, ...] = (a, b)
        named: dict[str, Any] = {}
        for name, value in options.items():
            if value.__class__ is cls:
                if name in WRITTEN and not library.holds(value):
                    return None
                operands += (value,)
                named[name] = view(value, name)
            elif value is not None and name in OPERANDS:
                return None
            else:
                named[name] = value
        z = None
        if out is not None:
            if out.__class__ is not cls or not library.holds(out):
                return None
            z = view(out, "out")
        run: Any = None if look_up is None else look_up(call_key(x, y, z, named))
        known = run is not None and run is not STRIDE_DEPENDENT
        result = run(x, y, z, named) if known else matmul(x, y, out=z, **named)
        if out is not None:
            return out
        return library.wrap(result if result.__class__ is ndarray else np.asarray(result), operands)

    return FastPath(call, learn_nothing)


def by_keys(entries: OrderedDict[Any, Any]) -> FastPath:
    """The fast path of a type of arrays: one look-up by the keys of its library."""
    find = entries.get

    def call(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
        run = find(call_key(a, b, out, options))
        return None if run is None else run(a, b, out, options)

    return FastPath(call, learn_nothing)


def learn_nothing(*_: Any) -> None:
    """Nothing is learned of single calls."""
