"""The fast path of torch tensors on devices: a call of a kind seen before, with or without options.

Its kind is everything that the decision rests on: types, dtypes, shapes, strides, devices, the low bits of the
addresses, the options and the settings. The call of the same options before is compared first, by one check in C
(:mod:`gemmhub._arrays.torch.guard`): loops multiply the same shapes again and again. Nothing here waits for the device,
and with ``out`` nothing is allocated: such calls can be captured in CUDA graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from gemmhub._arrays.torch.guard import guard
from gemmhub._base.geometry import MOST_ALIGNED, DeviceView, reach
from gemmhub.array_library import FastPath
from gemmhub.dtypes import scalar_kind
from gemmhub.problem import GemmProblem

_LOW = MOST_ALIGNED - 1
_MOST = 4096
"""Kinds of calls that one fast path keeps."""
_ARRAYS = ("c", "bias", "alpha", "beta")
"""Options that are read here; the values of all others are part of the kind of a call."""


class Entry(NamedTuple):
    """What a call of one kind needs besides the addresses of its tensors."""

    run: Callable[..., None]
    shape: tuple[int, ...]
    dtype: Any
    """torch's dtype of the result."""
    device: Any
    """torch's device."""
    ordinal: int
    stream: Callable[[int], int]
    """The handle of the current stream of a device, by its number."""
    spans: tuple[int, ...]
    """Bytes from the first element of each tensor to its end, in the order of the key."""
    careful: bool
    """Whether torch may have negated a tensor lazily: only those without a dense dimension (``x.conj().imag``)."""
    check: Callable[..., bool] | None
    """Whether tensors are like those of the call that was learned, but for the low bits of addresses, ``low``."""
    low: tuple[int, ...]
    settings: object
    alpha: Any
    beta: Any
    others: tuple[tuple[str, Any], ...]
    """The options that are neither tensors nor scalars."""


def fast_path(arrays: Any, settings: Callable[[], object], alpha: Any, beta: Any) -> FastPath:
    """A new fast path for the library of ``arrays``; see :meth:`gemmhub.array_library.ArrayLibrary.fast_path`."""
    torch = arrays.module
    entries: dict[Any, Entry] = {}
    recent: dict[Any, Entry] = {}
    empty, grad, find = torch.empty, torch.is_grad_enabled, entries.get
    written = arrays.increment_version
    place_of = _place_of(torch)
    last: Entry | None = None
    last_new: Entry | None = None

    def facts(x: Any) -> tuple[Any, ...]:
        return x.__class__, x.dtype, x.shape, x.stride(), place_of(x), x.data_ptr() & _LOW

    def call(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
        if options:
            return with_options(a, b, out, options)
        nonlocal last, last_new
        x, y = a.data_ptr(), b.data_ptr()
        if out is None:
            found = last_new
            if (
                found is None or found.check is None or not found.check(a, b)
                or (x & _LOW, y & _LOW) != found.low or settings() != found.settings
            ):  # fmt: skip
                found = look_up((a, b), (settings(),))
                if found is None:
                    return None
                last_new = found
            out = empty(found.shape, dtype=found.dtype, device=found.device)
            found.run(x, y, out.data_ptr(), None, None, found.alpha, found.beta, found.stream(found.ordinal))
            return out
        z = out.data_ptr()
        found = last
        if (
            found is None or found.check is None or not found.check(a, b, out)
            or (x & _LOW, y & _LOW, z & _LOW) != found.low or settings() != found.settings
        ):  # fmt: skip
            found = look_up((a, b, out), (settings(), "out"))
            if found is None:
                return None
            last = found
        a_bytes, b_bytes, out_bytes = found.spans
        if (z < x + a_bytes and x < z + out_bytes) or (z < y + b_bytes and y < z + out_bytes):
            return None
        written(out)
        found.run(x, y, z, None, None, found.alpha, found.beta, found.stream(found.ordinal))
        return out

    def with_options(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
        if "stream" in options:
            return None
        get = options.get
        c, bias, scale, weight = get("c"), get("bias"), get("alpha", alpha), get("beta", beta)
        in_place = c is out
        names = (*options, out is None, c is None, bias is None, in_place)
        tensors = [a, b]
        if out is not None:
            tensors.append(out)
        if bias is not None:
            tensors.append(bias)
        if c is not None and not in_place:
            tensors.append(c)
        places = [x.data_ptr() for x in tensors]
        found = recent.get(names)
        if (
            found is None or found.check is None or not found.check(*tensors)
            or tuple([x & _LOW for x in places]) != found.low or settings() != found.settings
            or scale != found.alpha or weight != found.beta or scale.__class__ is not found.alpha.__class__
            or weight.__class__ is not found.beta.__class__
            or (found.others and not _same(found.others, options))
        ):  # fmt: skip
            found = look_up(tensors, key_of(names, options, scale, weight))
            if found is None:
                return None
            recent[names] = found._replace(alpha=scale, beta=weight)
        spans = found.spans
        if out is None:
            result = empty(found.shape, dtype=found.dtype, device=found.device)
            z, rest = result.data_ptr(), places[2:]
        else:
            result, z, rest = out, places[2], places[3:]
            end = z + spans[2]
            for i, x in enumerate(places):
                if i != 2 and z < x + spans[i] and x < end:
                    return None
            written(out)
        v = None if bias is None else rest[0]
        w = None if c is None or weight == 0 else z if in_place else rest[-1]
        found.run(places[0], places[1], z, w, v, scale, weight, found.stream(found.ordinal))
        return result

    def key_of(names: Any, options: Mapping[str, Any], scale: Any, weight: Any) -> tuple[Any, ...]:
        others = tuple((x, options[x].__class__, options[x]) for x in options if x not in _ARRAYS)
        return settings(), names, scalar_kind(scale), scalar_kind(weight), *others

    def look_up(tensors: Any, rest: tuple[Any, ...]) -> Entry | None:
        found = find((*rest, *chain.from_iterable(map(facts, tensors))))
        if found is None or (grad() and any(x.requires_grad for x in tensors)):
            return None
        return None if found.careful and any(x.is_neg() for x in tensors) else found

    def learn(
        arrays: Any, problem: GemmProblem, shape: tuple[int, ...], run: Callable[..., None],
        a: Any, b: Any, out: Any, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        get = options.get
        c, bias, scale, weight = get("c"), get("bias"), get("alpha", alpha), get("beta", beta)
        if problem.empty or problem.packed_by is not None or problem.compute_dtype.kind == "c":
            return  # torch conjugates complex tensors lazily, which only the slow path sees
        if "stream" in options or not {scale.__class__, weight.__class__} <= {int, float}:
            return
        tensors = [x for x in (a, b, out, bias, None if c is out else c) if x is not None]
        views = [arrays.view(x, "operand") for x in tensors]
        reached = [reach(x) for x in views]
        if out is not None and any(before for before, _ in reached):
            return  # overlaps are looked for from the first element on
        rest: tuple[Any, ...] = (settings(),) if out is None else (settings(), "out")
        if options:
            rest = key_of((*options, out is None, c is None, bias is None, c is out), options, scale, weight)
        if len(entries) >= _MOST:
            entries.clear()
            recent.clear()
        entries[(*rest, *chain.from_iterable(map(facts, tensors)))] = Entry(
            run, shape, arrays.dtype_of(problem.out.dtype), arrays.place, arrays.device.index, arrays.raw_stream,
            tuple(span for _, span in reached), not all(map(_dense, views)), guard(*tensors),
            tuple(x.address & _LOW for x in views), settings(), scale, weight,
            tuple((x, options[x]) for x in options if x not in _ARRAYS),
        )  # fmt: skip

    return FastPath(call, learn)


def _same(others: tuple[tuple[str, Any], ...], options: Mapping[str, Any]) -> bool:
    for name, value in others:
        given = options[name]
        if given.__class__ is not value.__class__ or given != value:
            return False
    return True


def _dense(x: DeviceView) -> bool:
    return any(abs(step) == x.itemsize for step, size in zip(x.strides, x.shape) if size > 1)


def _place_of(torch: Any) -> Callable[[Any], object]:
    """A tensor's device; its number, which is quicker to have, where torch knows one kind of device only."""
    return torch.Tensor.get_device if "torch_musa" not in sys.modules else lambda x: x.device
