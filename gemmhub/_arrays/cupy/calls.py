"""The fast path of cupy arrays: a repeated plain call. Calls with options take gemmhub's general look-up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gemmhub._base.evicting import keep
from gemmhub._base.geometry import MAX_ALIGNMENT, reach
from gemmhub.array_library import FastPath
from gemmhub.problem import GemmProblem

_LOW = MAX_ALIGNMENT - 1
_MAX_ENTRIES = 4096
"""Maximum number of call signatures that one fast path keeps."""


class Entry(NamedTuple):
    """The facts of one call signature besides the addresses of its arrays."""

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

    The previous call's signature is compared first: comparing two keys takes a tenth of the time of hashing dtypes.
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
            before, entry = last_new
            if key != before:
                entry = find(key)
                if entry is not None:
                    last_new = key, entry
            if entry is None or cupy.cuda.runtime.getDevice() != entry.ordinal:
                return None
            out = ndarray(entry.shape, entry.dtype)
            entry.run(x, y, out.data.ptr, entry.alpha, entry.beta, current(entry.ordinal).ptr)
            return out
        z = out.data.ptr
        key = (settings(), *facts(a), *facts(b), *facts(out))
        before, entry = last
        if key != before:
            entry = find(key)
            if entry is not None:
                last = key, entry
        if entry is None:
            return None
        a_bytes, b_bytes, out_bytes = entry.spans
        if (z < x + a_bytes and x < z + out_bytes) or (z < y + b_bytes and y < z + out_bytes):
            return None
        entry.run(x, y, z, entry.alpha, entry.beta, current(entry.ordinal).ptr)
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
        keep(entries, key, entry, _MAX_ENTRIES)

    return FastPath(call, learn)
