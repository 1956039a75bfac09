"""The fast path of torch tensors: a repeated call, with or without options, on the CPU or a device.

The kind of a call is everything that the decision depends on: types, dtypes, shapes, strides, devices, the low bits of
the addresses, the options and the settings. A call is first compared with the previous one, then with the last one of
the same layouts and options, by a check in C (:mod:`gemmhub._arrays.torch.guard`). A call whose operands require grad
goes to autograd before any comparison. Nothing here waits for the device, and with ``out`` nothing is allocated: such
calls can be captured in CUDA graphs.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from gemmhub.operands import OPERANDS
from gemmhub.problem import GemmProblem

_LOW = MOST_ALIGNED - 1
_MOST = 4096
"""The most kinds of calls that one fast path keeps."""
_READ = frozenset((*OPERANDS, "alpha", "beta"))
"""Options that are passed to the kernel; the values of all others are part of the kind of a call."""
_SCALARS = (int, float)

Replay = Callable[[Any, Any, Any, Mapping[str, Any], bool, bool], Any]
"""``(a, b, out, options, known, recorded) -> result``: run a call of one kind again; None where this call is of another
kind. ``known`` means that the caller has already established the kind. For a call that autograd has to record, the
result is the replay itself, and nothing is done."""


def fast_path(arrays: Any, settings: Callable[[], object], alpha: Any, beta: Any) -> FastPath:
    """A new fast path for the library of ``arrays``; see :meth:`gemmhub.array_library.ArrayLibrary.fast_path`."""
    torch = arrays.module
    kinds: OrderedDict[Any, Kind] = OrderedDict()
    grad, find = torch.is_grad_enabled, kinds.get
    place_of, forward, modes = _place_of(torch), state.forward_ad(), state.dispatch_modes()
    transformed, traced = state.transform_test(), state.recording_test()

    def facts(x: Any) -> tuple[Any, ...]:
        return x.__class__, x.dtype, x.shape, x.stride(), place_of(x), x.data_ptr() & low_bits(x)

    families = Families(settings, facts, alpha, beta)

    def remembering(
        records: bool = True, transposed: bool = False
    ) -> Callable[[Any, Any, Any, Mapping[str, Any]], Any]:
        """A function that runs the calls that were seen. One for plans, without ``records``, leaves those that autograd
        records: a plan has one kernel, and refuses operands unlike those it was made for. One with ``transposed`` is
        given the transpose of b.
        """
        recent: OrderedDict[tuple[Any, ...], Replay] = OrderedDict()
        last: Replay | None = None  # of calls with a and b alone, which need no look-up for it

        def call(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
            nonlocal last
            if forward._current_level >= 0 or modes._is_in_torch_dispatch_mode or traced():
                return None  # no guard detects these
            recorded = grad() and _recorded(a, b, out, options)
            if recorded and (out is not None or not records or registered.record is None):
                return None
            alone = out is None and not options
            if alone and last is not None:
                result = last(a, b, None, options, False, recorded)
                if result is not None:
                    return result
            slot = a.shape, a.stride(), b.shape, b.stride(), out is None, *options
            replay = recent.get(slot)
            if replay is not None and replay is not last:
                result = replay(a, b, out, options, False, recorded)
                if result is not None:
                    if alone:
                        last = replay
                    return result
            if transformed() or state.dispatched():
                return None
            tensors = _tensors(a, b, out, options)
            right = b.t() if transposed else b
            found = find(key_of(_tensors(a, right, out, options), out, options))
            if out is None:
                if state.rounded(a.device.type, tuple(x.dtype for x in tensors)):
                    return None
                if found is None:
                    return None if recorded else families.product(a, right, options)
            elif found is None:
                return None
            if found.careful and any(x.is_neg() or x.is_conj() for x in tensors):
                return None
            replay = found.replay(tensors, transposed)
            keep(recent, slot, replay, _MOST)
            if alone:
                last = replay
            return replay(a, b, out, options, True, recorded)

        return call

    def key_of(tensors: Sequence[Any], out: Any, options: Mapping[str, Any]) -> tuple[Any, ...]:
        key = [settings(), out is None]
        for x in tensors:
            key += facts(x)
        if options:
            get = options.get
            key += (*options, get("c") is out, *[options[x] is None for x in options if x in OPERANDS])
            key += (scalar_kind(get("alpha", alpha)), scalar_kind(get("beta", beta)))
            key += chain.from_iterable((options[x].__class__, options[x]) for x in options if x not in _READ)
        return tuple(key)

    def learn(
        arrays: Any, problem: GemmProblem, shape: tuple[int, ...], run: Callable[..., None],
        a: Any, b: Any, out: Any, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        scalars = options.get("alpha", alpha), options.get("beta", beta)
        if problem.empty or problem.k == 0 or problem.packed_by is not None:
            return
        if "stream" in options or not all(x.__class__ in _SCALARS for x in scalars):
            return
        tensors = _tensors(a, b, out, options)
        views = [arrays.view(x, "operand") for x in tensors]
        reached = [reach(x) for x in views]
        writes = out is not None or any(name in OPERANDS and OPERANDS[name].written for name in options)
        if writes and any(before for before, _ in reached):
            return  # the overlap test covers memory from the first element on
        spans = tuple(span for _, span in reached)
        operands = {x: options[x] for x in OPERANDS if options.get(x) is not None}
        at_addresses = arrays.at_addresses(run, problem, shape, a, b, out, operands)
        if at_addresses is None:
            return
        form = Form(options, out)
        make = partial(_replay, arrays, settings, problem, shape, at_addresses, form, spans, *scalars)
        lazy = problem.compute_dtype.kind == "c" or not all(map(_dense, views))
        keep(kinds, key_of(tensors, out, options), Kind(make, lazy), _MOST)

    planned, linear = remembering(records=False), remembering(transposed=True)
    return FastPath(remembering(), learn, planned, families.learn, linear)


def low_bits(x: Any) -> int:
    """The bits of a tensor's address that its alignment depends on: on the CPU, whether elements are aligned."""
    return x.element_size() - 1 if x.is_cpu else _LOW


class Kind:
    """A kind of calls."""

    def __init__(self, make: Callable[[Sequence[Any]], Replay], careful: bool) -> None:
        """``make`` returns the replay of calls with tensors like these. ``careful``: torch may have negated or
        conjugated such tensors lazily.
        """
        self.careful = careful
        self._make, self._replays = make, dict[tuple[bool, ...], Replay]()

    def replay(self, tensors: Sequence[Any], transposed: bool) -> Replay:
        """Return the replay of calls with tensors like these. Which of them require grad, guards compare, too.

        ``transposed``: they have the transpose of b in its place, whose memory is the same.
        """
        flags = transposed, *[x.requires_grad for x in tensors]
        replay = self._replays.get(flags)
        if replay is None:
            replay = self._replays[flags] = self._make(tensors)
        return replay


class Form:
    """Which options a call has; it keeps no tensor."""

    def __init__(self, options: Mapping[str, Any], out: Any) -> None:
        self.options, self.new = bool(options), out is None
        self.names = tuple(x for x in options if x in OPERANDS)
        self.given = tuple(x for x in self.names if options[x] is not None)
        self.in_place = "c" in self.given and options["c"] is out
        self.apart = tuple(x for x in self.given if not (self.in_place and x == "c"))
        """Operands in memory of their own."""
        self.alpha, self.beta = "alpha" in options, "beta" in options
        self.others = tuple((x, options[x].__class__, options[x]) for x in options if x not in _READ)


def _replay(
    arrays: Any, settings: Callable[[], object], problem: GemmProblem, shape: tuple[int, ...],
    run: Callable[..., None], form: Form, spans: tuple[int, ...], alpha: Any, beta: Any, tensors: Sequence[Any],
) -> Replay:  # fmt: skip
    """The replay of a call. What it compares and reads is determined here once, not in each call."""
    empty, stream, written = arrays.module.empty, arrays.raw_stream, arrays.increment_version
    dtype, place, ordinal, at = arrays.dtype_of(problem.out.dtype), arrays.place, arrays.device.index, settings()
    # A guard made under autocast would still hold after autocast rounds to another dtype.
    check = None if state.casting(arrays.device.kind) else guard(*tensors)
    mask = max(map(low_bits, tensors))
    low = tuple(x.data_ptr() & mask for x in tensors)
    aligned = not any(low)
    new, names, given, in_place, apart = form.new, form.names, form.given, form.in_place, form.apart
    passed = tuple(x for x in given if x != "c" or beta != 0)
    shares = [x for x in apart if OPERANDS[x].written]
    scaled, weighted = form.alpha, form.beta
    kind, weight_kind = scalar_kind(alpha), scalar_kind(beta)
    others = form.others
    a_span, b_span, out_span = (*spans[:2], 0) if new else spans[:3]
    rest = dict(zip(apart, spans[2 if new else 3 :]))

    def same(
        a: Any, b: Any, out: Any, more: Sequence[Any], scale: Any, weight: Any, options: Mapping[str, Any],
        places: Sequence[int] | None,
    ) -> bool:  # fmt: skip
        """Whether a call is of this kind. ``places`` has the addresses where their low bits matter."""
        if check is None or settings() != at:
            return False
        if not (check(a, b, *more) if new else check(a, b, out, *more)):
            return False
        # A number of another class, a tensor above all, is checked and converted on the slow path.
        if scaled and (scale.__class__ not in _SCALARS or (scale != alpha and scalar_kind(scale) != kind)):
            return False
        if weighted and (weight.__class__ not in _SCALARS or (weight != beta and scalar_kind(weight) != weight_kind)):
            return False
        for name, cls, value in others:
            other = options[name]
            if other.__class__ is not cls or other != value:
                return False
        return places is None or tuple(x & mask for x in places) == low

    def plain(a: Any, b: Any, out: Any, options: Mapping[str, Any], known: bool, recorded: bool) -> Any:
        if not known and (check is None or not check(a, b) or settings() != at):
            return None
        x, y = a.data_ptr(), b.data_ptr()
        if (x | y) & mask if aligned else (x & mask, y & mask) != low:
            return None
        if recorded:
            return plain
        result = empty(shape, dtype=dtype, device=place)
        run(x, y, result.data_ptr(), alpha, beta, stream(ordinal))
        return result

    def plain_out(a: Any, b: Any, out: Any, options: Mapping[str, Any], known: bool, recorded: bool) -> Any:
        if not known and (check is None or not check(a, b, out) or settings() != at):
            return None
        x, y, z = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if (x | y | z) & mask if aligned else (x & mask, y & mask, z & mask) != low:
            return None
        if (z < x + a_span and x < z + out_span) or (z < y + b_span and y < z + out_span):
            return None
        written(out)
        run(x, y, z, alpha, beta, stream(ordinal))
        return out

    def biased(a: Any, b: Any, out: Any, options: Mapping[str, Any], known: bool, recorded: bool) -> Any:
        bias = options["bias"]
        if not known:
            if check is None or not check(a, b, bias) or settings() != at:
                return None
            for name, cls, value in others:
                given = options[name]
                if given.__class__ is not cls or given != value:
                    return None
        x, y, v = a.data_ptr(), b.data_ptr(), bias.data_ptr()
        if (x | y | v) & mask if aligned else (x & mask, y & mask, v & mask) != low:
            return None
        if recorded:
            return biased
        result = empty(shape, dtype=dtype, device=place)
        run(x, y, result.data_ptr(), alpha, beta, stream(ordinal), bias=v)
        return result

    def full(a: Any, b: Any, out: Any, options: Mapping[str, Any], known: bool, recorded: bool) -> Any:
        for name in names:
            if (options[name] is not None) is not (name in given):
                return None
        if in_place and options["c"] is not out:
            return None
        more = [options[name] for name in apart]
        x, y = a.data_ptr(), b.data_ptr()
        at_operands = [operand.data_ptr() for operand in more]
        bits = x | y
        for z in at_operands:
            bits |= z
        scale = options["alpha"] if scaled else alpha
        weight = options["beta"] if weighted else beta
        z = 0 if new else out.data_ptr()
        if not known:
            places = None
            if (bits | z) & mask or not aligned:
                places = (x, y, *at_operands) if new else (x, y, z, *at_operands)
            if not same(a, b, out, more, scale, weight, options, places):
                return None
        if recorded:
            return None if shares else full
        if shares and _written_meets(shares, (("a", x, a_span), ("b", y, b_span)), apart, at_operands, rest):
            return None
        if new:
            out = empty(shape, dtype=dtype, device=place)
            z = out.data_ptr()
        else:
            end = z + out_span
            if (z < x + a_span and x < end) or (z < y + b_span and y < end):
                return None
            for name, w in zip(apart, at_operands):
                if z < w + rest[name] and w < end:
                    return None
            written(out)
        for name in shares:
            written(options[name])
        pointers = dict(zip(apart, at_operands))
        if in_place:
            pointers["c"] = z
        if passed != apart:
            pointers = {name: pointers[name] for name in passed}
        run(x, y, z, scale, weight, stream(ordinal), **pointers)
        return out

    if form.options:
        return biased if new and names == given == ("bias",) and not (scaled or weighted) else full
    return plain if new else plain_out


def _written_meets(
    written: Sequence[str], inputs: Sequence[tuple[str, int, int]], names: Sequence[str], addresses: Sequence[int],
    spans: Mapping[str, int],
) -> bool:  # fmt: skip
    """Whether an operand that is written shares memory with another one. ``inputs``: name, address and bytes."""
    every = [*inputs, *((name, address, spans[name]) for name, address in zip(names, addresses))]
    return any(
        first < other + length and other < first + span
        for name, first, span in every
        if name in written
        for another, other, length in every
        if another != name
    )


def _tensors(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> list[Any]:
    """The tensors of a call; ``c`` where it is not ``out``."""
    found = [a, b] if out is None else [a, b, out]
    for name, x in options.items():
        if x is not None and name in OPERANDS and not (name == "c" and x is out):
            found.append(x)
    return found


def _recorded(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> bool:
    """Whether an operand requires grad."""
    if a.requires_grad or b.requires_grad or (out is not None and out.requires_grad):
        return True
    return bool(options) and any(getattr(x, "requires_grad", False) for x in options.values())


def _dense(x: DeviceView) -> bool:
    return any(abs(step) == x.itemsize for step, size in zip(x.strides, x.shape) if size > 1)


def _place_of(torch: Any) -> Callable[[Any], object]:
    """A function for a tensor's device; for its index, which is faster, where torch has one kind of device only."""
    return torch.Tensor.get_device if "torch_musa" not in sys.modules else lambda x: x.device
