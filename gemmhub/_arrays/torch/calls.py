"""The fast path of torch tensors on devices: a repeated call, with or without options.

The kind of a call is everything that the decision depends on: types, dtypes, shapes, strides, devices, the low bits of
the addresses, the options and the settings. The previous call with the same options is compared first, by a check in C
(:mod:`gemmhub._arrays.torch.guard`): loops repeat the same shapes. Nothing here waits for the device,
and with ``out`` nothing is allocated: such calls can be captured in CUDA graphs.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from gemmhub._arrays.torch import tensors as state
from gemmhub._arrays.torch.guard import guard
from gemmhub._arrays.torch.rows import Families
from gemmhub._base import registered
from gemmhub._base.evicting import keep
from gemmhub._base.geometry import MOST_ALIGNED, DeviceView, reach
from gemmhub.array_library import FastPath
from gemmhub.dtypes import scalar_kind
from gemmhub.problem import GemmProblem

_LOW = MOST_ALIGNED - 1
_MOST = 4096
"""The most kinds of calls that one fast path keeps."""
_READ = ("c", "bias", "alpha", "beta")
"""Options that are passed to the kernel; the values of all others are part of the kind of a call."""
_SCALARS = (int, float)

Replay = Callable[[Any, Any, Any, Mapping[str, Any], bool], Any]
"""``(a, b, out, options, known) -> result``: run a call of one kind again; None where this call is of another kind.
``known`` means that the caller has already established the kind."""


def fast_path(arrays: Any, settings: Callable[[], object], alpha: Any, beta: Any) -> FastPath:
    """A new fast path for the library of ``arrays``; see :meth:`gemmhub.array_library.ArrayLibrary.fast_path`."""
    torch = arrays.module
    kinds: OrderedDict[Any, tuple[Replay, bool]] = OrderedDict()
    grad, find, kind = torch.is_grad_enabled, kinds.get, arrays.device.kind
    place_of, forward, modes = _place_of(torch), state.forward_ad(), state.dispatch_modes()

    def facts(x: Any) -> tuple[Any, ...]:
        return x.__class__, x.dtype, x.shape, x.stride(), place_of(x), x.data_ptr() & _LOW

    families = Families(settings, facts, alpha, beta)

    def remembering(records: bool = True) -> Callable[[Any, Any, Any, Mapping[str, Any]], Any]:
        """A function that compares a call with the previous one that it received itself. A plan's records no gradients:
        it has one kernel, and refuses operands unlike those it was made for.
        """
        last: dict[tuple[Any, ...], Replay] = {}
        recent = last.get
        last_new: Replay | None = None  # of plain calls, which need no look-up for it
        last_out: Replay | None = None

        def call(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
            nonlocal last_new, last_out
            if forward._current_level >= 0 or modes._is_in_torch_dispatch_mode or state.recording():
                return None  # no guard detects these
            slot: Any = None
            if options:
                slot = (*options, out is None)
                replay = recent(slot)
            else:
                replay = last_new if out is None else last_out
            if replay is not None:
                result = replay(a, b, out, options, False)
                if result is not None:
                    return result
            if records and out is None and grad() and registered.record is not None and _recorded(a, b, options):
                return registered.record(a, b, options)
            tensors = _tensors(a, b, out, options)
            found = find(key_of(tensors, out, options))
            if (found is None and out is not None) or (grad() and any(x.requires_grad for x in tensors)):
                return None
            if state.dispatched() or (out is None and state.rounded(kind, tuple(x.dtype for x in tensors))):
                return None
            if found is None:
                return families.product(a, b, options)
            replay, careful = found
            if careful and any(x.is_neg() for x in tensors):
                return None
            if options:
                last[slot] = replay
            elif out is None:
                last_new = replay
            else:
                last_out = replay
            return replay(a, b, out, options, True)

        return call

    def key_of(tensors: Sequence[Any], out: Any, options: Mapping[str, Any]) -> tuple[Any, ...]:
        key = [settings(), out is None]
        for x in tensors:
            key += facts(x)
        if options:
            get = options.get
            key += (*options, get("c") is None, get("c") is out, get("bias") is None)
            key += (scalar_kind(get("alpha", alpha)), scalar_kind(get("beta", beta)))
            key += chain.from_iterable((options[x].__class__, options[x]) for x in options if x not in _READ)
        return tuple(key)

    def learn(
        arrays: Any, problem: GemmProblem, shape: tuple[int, ...], run: Callable[..., None],
        a: Any, b: Any, out: Any, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        scalars = options.get("alpha", alpha), options.get("beta", beta)
        if problem.empty or problem.packed_by is not None or problem.compute_dtype.kind == "c":
            return  # torch conjugates complex tensors lazily, which only the slow path detects
        if "stream" in options or not all(x.__class__ in _SCALARS for x in scalars):
            return
        tensors = _tensors(a, b, out, options)
        views = [arrays.view(x, "operand") for x in tensors]
        reached = [reach(x) for x in views]
        if out is not None and any(before for before, _ in reached):
            return  # the overlap test covers memory from the first element on
        spans = tuple(span for _, span in reached)
        replay = _replay(arrays, settings, problem, shape, run, tensors, spans, out, options, *scalars)
        keep(kinds, key_of(tensors, out, options), (replay, not all(map(_dense, views))), _MOST)

    return FastPath(remembering(), learn, remembering, remembering(records=False), families.learn)


def _replay(
    arrays: Any, settings: Callable[[], object], problem: GemmProblem, shape: tuple[int, ...],
    run: Callable[..., None], tensors: Sequence[Any], spans: tuple[int, ...], out: Any, options: Mapping[str, Any],
    alpha: Any, beta: Any,
) -> Replay:  # fmt: skip
    """The replay of a call. What it compares and reads is determined here once, not in each call."""
    empty, stream, written = arrays.module.empty, arrays.raw_stream, arrays.increment_version
    dtype, place, ordinal, at = arrays.dtype_of(problem.out.dtype), arrays.place, arrays.device.index, settings()
    # A guard made under autocast would still hold after autocast rounds to another dtype.
    check = None if state.casting(arrays.device.kind) else guard(*tensors)
    grad: Callable[[], bool] = bool  # a guard compares requires_grad, and not whether grad is recorded
    if any(x.requires_grad for x in tensors):
        grad = arrays.module.is_grad_enabled
    low = tuple(x.data_ptr() & _LOW for x in tensors)
    aligned = not any(low)
    new, c, bias = out is None, options.get("c"), options.get("bias")
    has_c, has_bias, in_place = c is not None, bias is not None, c is not None and c is out
    reads_c, apart = has_c and beta != 0, has_c and not in_place
    scaled, weighted = "alpha" in options, "beta" in options
    kind, weight_kind = scalar_kind(alpha), scalar_kind(beta)
    others = tuple((x, options[x].__class__, options[x]) for x in options if x not in _READ)
    a_span, b_span, out_span = (*spans[:2], 0) if new else spans[:3]
    bias_span, c_span = spans[-2 if apart else -1], spans[-1]

    def same(
        a: Any, b: Any, out: Any, bias: Any, c: Any, scale: Any, weight: Any, options: Mapping[str, Any],
        places: tuple[int, ...] | None,
    ) -> bool:  # fmt: skip
        """Whether a call is of this kind. ``places`` has the low bits of the addresses where they matter."""
        if check is None or settings() != at or grad():
            return False
        if new:
            alike = check(a, b, *(() if bias is None else (bias,)), *((c,) if apart else ()))
        else:
            alike = check(a, b, out, *(() if bias is None else (bias,)), *((c,) if apart else ()))
        if not alike or (in_place and c is not out):
            return False
        if scaled and scale != alpha and scalar_kind(scale) != kind:
            return False
        if weighted and weight != beta and scalar_kind(weight) != weight_kind:
            return False
        for name, cls, value in others:
            given = options[name]
            if given.__class__ is not cls or given != value:
                return False
        return places is None or tuple(x & _LOW for x in places) == low

    def plain(a: Any, b: Any, out: Any, options: Mapping[str, Any], known: bool) -> Any:
        x, y = a.data_ptr(), b.data_ptr()
        if not known and (
            check is None or not check(a, b) or settings() != at or grad()
            or ((x | y) & _LOW if aligned else (x & _LOW, y & _LOW) != low)
        ):  # fmt: skip
            return None
        result = empty(shape, dtype=dtype, device=place)
        run(x, y, result.data_ptr(), None, None, alpha, beta, stream(ordinal))
        return result

    def plain_out(a: Any, b: Any, out: Any, options: Mapping[str, Any], known: bool) -> Any:
        x, y, z = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if not known and (
            check is None or not check(a, b, out) or settings() != at or grad()
            or ((x | y | z) & _LOW if aligned else (x & _LOW, y & _LOW, z & _LOW) != low)
        ):  # fmt: skip
            return None
        if (z < x + a_span and x < z + out_span) or (z < y + b_span and y < z + out_span):
            return None
        written(out)
        run(x, y, z, None, None, alpha, beta, stream(ordinal))
        return out

    def full(a: Any, b: Any, out: Any, options: Mapping[str, Any], known: bool) -> Any:
        x, y = a.data_ptr(), b.data_ptr()
        bits = x | y
        v = w = None
        scale, weight, bias, c = alpha, beta, options.get("bias"), options.get("c")
        if (bias is None) is has_bias or (c is None) is has_c:
            return None
        if bias is not None:
            v = bias.data_ptr()
            bits |= v
        if scaled:
            scale = options["alpha"]
        if weighted:
            weight = options["beta"]
        if new:
            z = 0
        else:
            z = out.data_ptr()
            bits |= z
        if apart:
            w = c.data_ptr()  # type: ignore[union-attr]
            bits |= w
        if not known:
            places = None
            if bits & _LOW or not aligned:
                places = tuple(p for p in (x, y, None if new else z, v, w) if p is not None)
            if not same(a, b, out, bias, c, scale, weight, options, places):
                return None
        if new:
            out = empty(shape, dtype=dtype, device=place)
            z = out.data_ptr()
        else:
            end = z + out_span
            if (
                (z < x + a_span and x < end) or (z < y + b_span and y < end)
                or (v is not None and z < v + bias_span and v < end)
                or (w is not None and z < w + c_span and w < end)
            ):  # fmt: skip
                return None
            written(out)
        run(x, y, z, (z if in_place else w) if reads_c else None, v, scale, weight, stream(ordinal))
        return out

    if options:
        return full
    return plain if new else plain_out


def _tensors(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> list[Any]:
    """The tensors of a call; ``c`` where it is not ``out``."""
    c = options.get("c")
    return [x for x in (a, b, out, options.get("bias"), None if c is out else c) if x is not None]


def _recorded(a: Any, b: Any, options: Mapping[str, Any]) -> bool:
    """Whether an operand requires grad."""
    if a.requires_grad or b.requires_grad:
        return True
    return bool(options) and any(x is not None and x.requires_grad for x in (options.get("c"), options.get("bias")))


def _dense(x: DeviceView) -> bool:
    return any(abs(step) == x.itemsize for step, size in zip(x.strides, x.shape) if size > 1)


def _place_of(torch: Any) -> Callable[[Any], object]:
    """A function for a tensor's device; for its index, which is faster, where torch has one kind of device only."""
    return torch.Tensor.get_device if "torch_musa" not in sys.modules else lambda x: x.device
