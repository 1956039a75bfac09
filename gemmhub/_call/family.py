"""Families of calls of NumPy arrays: what a call is when its sizes are left out.

A kernel that takes its sizes from the operands runs each call of a family, or of a bucket of sizes where several
backends can. A call of new sizes is then looked up by its family, and neither described nor decided.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Set
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gemmhub import config
from gemmhub._base.evicting import keep
from gemmhub._call.keys import STRIDE_DEPENDENT, number_class
from gemmhub._call.options import NUMBERS, VALUES
from gemmhub.buckets import end
from gemmhub.epilogues import columns
from gemmhub.layout import MatrixLayout
from gemmhub.operands import OPERANDS

if TYPE_CHECKING:
    from gemmhub._call.describe import Call
    from gemmhub.backend import Kernel
    from gemmhub.verdict import Decision

_BY_BUCKET = object()
"""Kept under the key of a family whose decision depends on sizes: the decision is under a key with the bucket."""
_PLAIN = 5
"""Parts of the key of a family without out and options."""
_MAX_ENTRIES = 16_384
"""Maximum number of families and buckets that are kept."""
Key = tuple[Any, ...]
_settings = config.context.get
_ndarray = np.ndarray


class Families:
    """The functions that run the families that were met."""

    def __init__(self, measured: Set[tuple[int, ...]]) -> None:
        """``measured``: sizes that have tuning records, which decide them exactly."""
        self._measured = measured
        self._runs: OrderedDict[Any, Any] = OrderedDict()
        self._plain: OrderedDict[Any, Any] = OrderedDict()
        """The functions that run a product of two matrices of any sizes, by settings and dtypes."""

    def find(
        self, a: Any, b: Any, out: Any, options: Mapping[str, Any], put: Callable[[Any, Any], None], options_key: object
    ) -> Any:
        """Return the function that runs a call of new sizes; None where its family, or its bucket, was not met.

        It takes (a, b, out), and the options where there are some. ``put`` keeps it for calls of these sizes, with
        options under ``options_key``.
        """
        if not options and out is None and a.__class__ is _ndarray and b.__class__ is _ndarray:
            left, right = a.shape, b.shape
            if len(left) == 2 and len(right) == 2 and left[1] == right[0]:  # the commonest, in half the time
                settings, first, second = _settings(), a.dtype, b.dtype
                run = self._plain.get((settings, first, second))
                if run is not None:
                    put((_ndarray, _ndarray, first, second, left, right, settings), run)
                    return run
        family = self.key_of(a, b, out, options)
        if family is None:
            return None
        run, with_strides = self._runs.get(family[0]), False
        if run is _BY_BUCKET:
            if family[1][:3] in self._measured:
                return None
            bucket = _bucket(family)
            run = self._runs.get(bucket)
            with_strides = run is STRIDE_DEPENDENT
            if with_strides:
                run = self._runs.get((bucket, _order(a), _order(b)))
        if run is None:
            return None
        if options:
            m, n, _, *batch = family[1]
            run = run(m * n * prod(batch))
            key = options_key
        else:
            key = (_ndarray, _ndarray, a.dtype, b.dtype, a.shape, b.shape, _settings()) if out is None else None
        if key is not None and not with_strides:
            put(key, run)
        return run

    def learn(
        self, call: Call, decision: Decision, kernel: Kernel, operands: tuple[Any, Any, Any], options: Mapping[str, Any]
    ) -> None:
        """Keep the kernel of a decided call for its family, or for its bucket where the decision depends on sizes."""
        from gemmhub._call import bind  # here, so that importing gemmhub does not

        family = self.key_of(*operands, options)
        if family is None:
            return
        chosen = decision.chosen or ""
        run: Any = bind.shortcut(call, kernel) or bind.bind(call, chosen, kernel, any_size=True)
        if options:
            run = bind.by_size(call, chosen, kernel, options)
        a, b, _ = operands
        if decision.size_free and decision.layout_free:
            keep(self._runs, family[0], run, _MAX_ENTRIES)
            if len(family[0]) == _PLAIN and a.ndim == 2 and b.ndim == 2:
                keep(self._plain, family[0][:3], run, _MAX_ENTRIES)
            return
        keep(self._runs, family[0], _BY_BUCKET, _MAX_ENTRIES)
        bucket = _bucket(family)
        keep(self._runs, bucket, run if decision.layout_free else STRIDE_DEPENDENT, _MAX_ENTRIES)
        if not decision.layout_free:
            keep(self._runs, (bucket, _order(a), _order(b)), run, _MAX_ENTRIES)

    def key_of(self, a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> tuple[Key, tuple[int, ...]] | None:
        """The family of a call and its sizes; None unless it is a plain call of NumPy's arrays that fit."""
        if a.__class__ is not _ndarray or b.__class__ is not _ndarray:
            return None
        left, right = a.shape, b.shape
        rows, cols = len(left), len(right)
        if rows == 2 and cols == 2:
            m, k = left
            inner, n = right
            batch: tuple[int, ...] = ()
        elif rows and cols:
            m, k = left[-2:] if rows > 1 else (1, *left)
            inner, n = right[-2:] if cols > 1 else (*right, 1)
            batch = left[:-2]
            if right[:-2] not in ((), batch):
                return None
        else:
            return None
        if k != inner:
            return None
        if options.get("symmetric") and m != n:
            return None
        key: Key = (_settings(), a.dtype, b.dtype, rows, cols)
        wide = n
        if options.get("activation") is not None:
            wide = columns(options["activation"], n)
            if wide != n and (cols == 1 or n % 2):
                return None  # a column without its pair
        if out is not None:
            shape = (*left[:-1], wide) if cols > 1 else left[:-1]
            if out.__class__ is not _ndarray or out.shape != shape or not out.flags.carray:
                return None
            key += (out.dtype,)
        for name, value in options.items():
            cls = value.__class__
            if cls is _ndarray and name in OPERANDS:
                find = OPERANDS[name].pattern
                pattern = find is not None and rows > 1 and cols > 1 and find(value.shape, m, n, k, batch)
                if pattern is False:
                    return None
                key += (name, value.dtype, pattern)
            elif name in VALUES:
                key += (name, cls, value)
            elif name in NUMBERS:
                facts = number_class(value)
                if facts is None:
                    return None
                key += (name, facts)
            elif value is None:
                key += (name, None)
            else:
                return None
        return key, (m, n, k, *batch)


def _bucket(family: tuple[Key, tuple[int, ...]]) -> Key:
    key, sizes = family
    return key, tuple(map(end, sizes))


def _order(x: Any) -> tuple[str | None, bool]:
    """The storage order of a stack of matrices, and whether its elements are aligned, on which a bucket may depend."""
    if x.ndim < 2:
        return "row", bool(x.flags.aligned)
    size = x.itemsize
    row, col = x.strides[-2:]
    if row % size or col % size:
        return None, False
    layout = MatrixLayout(x.shape[-2], x.shape[-1], row // size, col // size)
    return layout.order, bool(x.flags.aligned)
