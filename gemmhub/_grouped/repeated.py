"""Repeated grouped calls on CPUs: a signature is looked up, and the product of each size of group is decided once.

The signature lacks the size of the dimension that the offsets divide: other tokens for the same experts are no new
call. What it keeps is what :func:`gemmhub.matmul` keeps for the products of the groups, and lives as long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gemmhub import api, config
from gemmhub._base.evicting import keep
from gemmhub._call.keys import number_class
from gemmhub._call.options import NUMBERS, VALUES
from gemmhub._grouped.call import OPERANDS, Grouped, named
from gemmhub._grouped.forms import FORMS, RAGGED_K, RAGGED_M, RAGGED_N, Form, along, result_shape
from gemmhub._grouped.offsets import DTYPES
from gemmhub.backend import RunGroups
from gemmhub.errors import InputError

Array = Any
Product = Callable[..., Any]
"""``(a, b, out)`` of one group, and the options where there are some."""
Part = tuple[int, Array, Array, Array, Mapping[str, Any], int]
"""Size, a, b, out, options and number of one group."""

_MAX_SIZES = 256
"""Maximum number of sizes of groups whose functions a signature keeps."""
_MAX_SIGNATURES = 1024
"""Maximum number of signatures that are kept."""
_AXES: dict[Form, tuple[int, int, int]] = {
    form: tuple(-1 if axis is None else axis for axis in (form.a, form.b, form.out))  # type: ignore[misc]
    for form in (RAGGED_M, RAGGED_K, RAGGED_N)
}
"""The dimensions of a, b and the result that a kernel's ``groups`` divides."""
_ALONE: tuple[str, Any] = ("", None)
"""Stands for a size whose products run one by one."""
_settings = config.context.get
_ndarray = np.ndarray


class Signature:
    """The functions that run the products of groups, by the size of the group, and the facts of the result."""

    __slots__ = ("_runs", "_together", "columns", "out_dtype")

    def __init__(self, out_dtype: Any, columns: int) -> None:
        self.out_dtype = out_dtype
        self.columns = columns
        """Columns of the result, where offsets do not divide them."""
        self._runs: OrderedDict[int, Product] = OrderedDict()
        self._together: OrderedDict[int, tuple[str, RunGroups]] = OrderedDict()
        """The kernels that run the products of groups of a size in one call, where the best has such a function."""

    def multiply_divided(
        self, form: Form, ends: Sequence[int], a: Array, b: Array, out: Array, options: Mapping[str, Any]
    ) -> None:  # fmt: skip
        """Write the products of all groups of a call without operands beside a and b: by one kernel where it can."""
        if self._together and self._multiply_together(form, ends, a, b, out):
            return
        if options:
            self.multiply(_parts(form, ends, range(len(ends)), a, b, out, options), numbered=True)
        else:
            self.multiply_plain(form, ends, a, b, out)

    def _multiply_together(self, form: Form, ends: Sequence[int], a: Array, b: Array, out: Array) -> bool:
        """Do so where one kernel is the best for the sizes of all groups; else, or where it does not, return False."""
        sizes = {end - start for start, end in zip([0, *ends], ends)}
        if form.out is not None:
            sizes.discard(0)
        found = {self._together.get(size, _ALONE) for size in sizes}
        names = {name for name, _ in found}
        if len(names) != 1 or _ALONE in found:
            return False
        try:
            return bool(found.pop()[1](_AXES[form], np.array(ends, np.int64), a, b, out))
        except Exception:
            return False  # the products of the groups report it

    def multiply(self, parts: Iterable[Part], numbered: bool) -> None:
        """Write the product of each part; raise what :func:`gemmhub.matmul` raises, with the number of the group."""
        runs = self._runs
        for size, a, b, out, options, i in parts:
            run = runs.get(size)
            if run is not None:
                try:
                    run(a, b, out, options) if options else run(a, b, out)
                    continue
                except Exception:
                    pass  # matmul finds the reason, and reports it
            self._multiply_one(size, a, b, out, options, i if numbered else None)

    def multiply_plain(self, form: Form, ends: Sequence[int], a: Array, b: Array, out: Array) -> None:
        """Write the products of all groups of a call without options, whose groups are divided."""
        loop, runs, first = _LOOPS[form], self._runs, 0
        while True:
            i = loop(runs, ends, first, a, b, out)
            if i is None:
                return
            self.multiply(_parts(form, ends, range(i, i + 1), a, b, out, {}), numbered=True)
            first = i + 1

    def _multiply_one(
        self, size: int, a: Array, b: Array, out: Array, options: Mapping[str, Any], number: int | None
    ) -> None:  # fmt: skip
        """Write the product of a part of a new size, or of one that cannot be multiplied."""
        try:
            api.matmul(a, b, out=out, **options)
        except InputError as error:
            raise named(error, number) from error
        run = None if size in self._runs else api.known(a, b, out, options)
        if run is not None:
            keep(self._runs, size, run, _MAX_SIZES)
            groups = api.known_groups(a, b, out, options)
            if groups is not None:
                keep(self._together, size, groups, _MAX_SIZES)


def run(call: Grouped, result: Array, *, new: bool) -> None:
    """Write the products of all groups of a described call of ndarrays into ``result``, which is a ``new`` array or
    the caller's.
    """
    signature = _signature_of(call, None if new else result)
    cut, left, right = call.cut(result), call.picks["a"], call.picks["b"]
    parts = (
        (span.stop - span.start if call.form.divided else 0, left(i, span), right(i, span), cut(i, span),
         call.options(i, span), i)
        for i, span in call.busy
    )  # fmt: skip
    signature.multiply(parts, numbered=not call.stacked)


def _signature_of(call: Grouped, out: Array | None) -> Signature:
    """The signature of a described call, which later calls find."""
    operands = {name: call.natives[name] for name in OPERANDS if name in call.natives}
    key = _key(call.form, call.extent, call.natives["a"], call.natives["b"], out, call.fixed, operands)
    signature = _find(key)
    if signature is None:
        signature = Signature(call.out_dtype, call.shape[-1])
        if key is not None:
            keep(api.grouped_signatures(), key, signature, _MAX_SIGNATURES)
    return signature


def _find(key: tuple[Any, ...] | None) -> Signature | None:
    return None if key is None else api.grouped_signatures().get(key)


def product(a: Array, b: Array, offsets: Any, out: Array | None, options: Mapping[str, Any]) -> Array | None:
    """The result of a call of ndarrays whose signature is known; None, with nothing done, for any other."""
    form = FORMS.get((a.ndim, b.ndim))
    if out is not None and out.__class__ is not _ndarray:
        return None
    if form is None or form.divided is (offsets is None) or not (a.size and b.size):
        return None
    extent, ends = 0, None
    if form.divided:
        if offsets.__class__ is not _ndarray or offsets.ndim != 1 or offsets.dtype not in DTYPES:
            return None
        extent = a.shape[form.a] if form.a is not None else b.shape[form.b]
        ends = offsets.tolist()
        if not ends or ends[0] < 0 or ends[-1] > extent or ends != sorted(ends):
            return None
    try:
        signature = _find(_key(form, extent, a, b, out, options))
    except TypeError:  # an option that cannot be hashed
        return None
    if signature is None:
        return None
    groups = a.shape[0] if form.a is None else b.shape[0] if form.b is None else None
    if ends is not None and groups not in (None, len(ends)):
        return None
    if form.a is not None and form.b is not None and a.shape[1] != b.shape[0]:
        return None
    columns = extent if form is RAGGED_N else signature.columns
    shape = result_shape(form, groups or len(ends or ()), a.shape[-2], columns)
    if out is None:
        result = np.empty(shape, signature.out_dtype)
    elif (
        out.shape == shape and out.flags.carray
        and not (np.may_share_memory(out, a) or np.may_share_memory(out, b))
    ):  # fmt: skip
        result = out
    else:
        return None
    if ends is None:
        signature.multiply([(0, a, b, result, options, 0)], numbered=False)
        return result
    signature.multiply_divided(form, ends, a, b, result, options)
    if form.out is not None and ends[-1] < extent:
        result[(slice(None),) * form.out + (slice(ends[-1], None),)] = 0
    return result


def _parts(
    form: Form, ends: Sequence[int], groups: Iterable[int], a: Array, b: Array, result: Array,
    options: Mapping[str, Any],
) -> Iterator[Part]:  # fmt: skip
    """The parts of some groups, but for those whose results have no elements."""
    left, right, cut = along(a, form.a), along(b, form.b), along(result, form.out)
    for i in groups:
        start, end = ends[i - 1] if i else 0, ends[i]
        if end > start or form.out is None:
            span = slice(start, end)
            yield end - start, left(i, span), right(i, span), cut(i, span), options, i


# One loop a form, which has no function or test that it can do without: 64 products of four rows take as long as a loop
# in Python around numpy.matmul.


def _ragged_m(
    runs: Mapping[int, Product], ends: Sequence[int], first: int, a: Array, b: Array, out: Array
) -> int | None:  # fmt: skip
    """Multiply the groups from the ``first`` on; return the one that has no function, or whose function raised."""
    i, start = first, ends[first - 1] if first else 0
    try:
        for i, end in enumerate(ends[first:], first):
            if end > start:
                runs[end - start](a[start:end], b[i], out[start:end])
                start = end
    except Exception:
        return i
    return None


def _ragged_k(
    runs: Mapping[int, Product], ends: Sequence[int], first: int, a: Array, b: Array, out: Array
) -> int | None:  # fmt: skip
    """The same where the groups are columns of a and rows of b; one without has zeros."""
    i, start = first, ends[first - 1] if first else 0
    try:
        for i, end in enumerate(ends[first:], first):
            runs[end - start](a[:, start:end], b[start:end], out[i])
            start = end
    except Exception:
        return i
    return None


def _ragged_n(
    runs: Mapping[int, Product], ends: Sequence[int], first: int, a: Array, b: Array, out: Array
) -> int | None:  # fmt: skip
    """The same where the groups are columns of b."""
    i, start = first, ends[first - 1] if first else 0
    try:
        for i, end in enumerate(ends[first:], first):
            if end > start:
                runs[end - start](a[i], b[:, start:end], out[:, start:end])
                start = end
    except Exception:
        return i
    return None


_LOOPS = {RAGGED_M: _ragged_m, RAGGED_K: _ragged_k, RAGGED_N: _ragged_n}


def _key(
    form: Form, extent: int, a: Array, b: Array, out: Array | None, options: Mapping[str, Any],
    operands: Mapping[str, Array] = {},
) -> tuple[Any, ...] | None:  # fmt: skip
    """All that the functions of a signature may depend on; None where an option has no facts to compare.

    Of the result these are dtype and strides: of a new array, which is None or dense, they follow from the rest.
    """
    left, right = a.shape, b.shape
    if form.a is not None:
        left = left[1 - form.a]
    if form.b is not None:
        right = right[1 - form.b]
    key: tuple[Any, ...] = (
        _settings(), a.dtype, b.dtype, left, right, a.strides, b.strides, a.flags.aligned and b.flags.aligned,
        extent if form is RAGGED_N else None,
    )  # fmt: skip
    if out is not None:
        key += (out.dtype, out.strides, out.flags.aligned)
    for name, value in options.items():
        if name in VALUES:
            key += (name, value.__class__, value)
        else:
            facts = number_class(value) if name in NUMBERS else None
            if facts is None:
                return None
            key += (name, facts)
    for name, x in operands.items():
        key += (name, x.dtype, x.strides, x.flags.aligned, tuple(None if size == extent else size for size in x.shape))
    return key
