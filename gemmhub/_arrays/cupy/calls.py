"""The fast path of cupy arrays: a repeated plain call. Calls with options take gemmhub's general look-up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gemmhub._base.evicting import keep
from gemmhub._base.geometry import MOST_ALIGNED, reach
from gemmhub.array_library import FastPath
from gemmhub.problem import GemmProblem

_LOW = MOST_ALIGNED - 1
_MOST = 4096
"""The most kinds of calls that one fast path keeps."""


class Entry(NamedTuple):
    """What a call of one kind needs besides the addresses of its arrays."""

    run: Callable[..., None]
    shape: tuple[int, ...]
    dtype: Any
    ordinal: int
    spans: tuple[int, ...]
    """Bytes from the first element of each array to its end."""
    alpha: Any
    beta: Any


def fast_path(arrays: Any, settings: Callable[[], object], alpha: Any, beta: Any) -> FastPath:
    """A new fast path for the library of ``arrays``; see :meth:`gemmhub.array_library.ArrayLibrary.fast_path`.

    The kind of the previous call is compared first: comparing two keys takes a tenth of the time of hashing dtypes.
    """
    cupy = arrays.module
    entries: OrderedDict[Any, Entry] = OrderedDict()
    ndarray, current, find = cupy.ndarray, cupy.cuda.get_current_stream, entries.get
    nothing: tuple[Any, Entry | None] = (None, None)
    last, last_new = nothing, nothing

    def facts(x: Any) -> tuple[Any, ...]:
        return x.__class__, x.dtype, x.shape, x.strides, x.data.device_id, x.data.ptr & _LOW

    def call(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
        nonlocal last, last_new
        if options:
            return None
        x, y = a.data.ptr, b.data.ptr
        if out is None:
            key: tuple[Any, ...] = (settings(), *facts(a), *facts(b))
            before, found = last_new
            if key != before:
                found = find(key)
                if found is not None:
                    last_new = key, found
            if found is None or cupy.cuda.runtime.getDevice() != found.ordinal:
                return None
            out = ndarray(found.shape, found.dtype)
            found.run(x, y, out.data.ptr, found.alpha, found.beta, current(found.ordinal).ptr)
            return out
        z = out.data.ptr
        key = (settings(), *facts(a), *facts(b), *facts(out))
        before, found = last
        if key != before:
            found = find(key)
            if found is not None:
                last = key, found
        if found is None:
            return None
        a_bytes, b_bytes, out_bytes = found.spans
        if (z < x + a_bytes and x < z + out_bytes) or (z < y + b_bytes and y < z + out_bytes):
            return None
        found.run(x, y, z, found.alpha, found.beta, current(found.ordinal).ptr)
        return out

    def learn(
        arrays: Any, problem: GemmProblem, shape: tuple[int, ...], run: Callable[..., None],
        a: Any, b: Any, out: Any, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        if options or not problem.plain or problem.empty or problem.packed_by is not None:
            return
        operands = [x for x in (a, b, out) if x is not None]
        reached = [reach(arrays.view(x, "operand")) for x in operands]
        if out is not None and any(before for before, _ in reached):
            return  # the overlap test covers memory from the first element on
        key = settings(), *(fact for x in operands for fact in facts(x))
        spans = tuple(span for _, span in reached)
        entry = Entry(run, shape, problem.out.dtype, arrays.device.index, spans, alpha, beta)
        keep(entries, key, entry, _MOST)

    return FastPath(call, learn)
