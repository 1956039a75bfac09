"""The fast path of torch tensors: a repeated call, with or without options, on the CPU or a device.

A call is looked up once, by all that its decision depends on: classes, dtypes, shapes, strides and devices of the
tensors, the options, and the settings. A call whose operands require grad is looked up alike and handed to autograd.
Nothing here waits for the device, and with ``out`` nothing is allocated: such calls can be captured in CUDA graphs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gemmhub._arrays.torch import tensors as state
from gemmhub._arrays.torch.rows import Families
from gemmhub._base import registered
from gemmhub._base.evicting import keep
from gemmhub._base.geometry import MAX_ALIGNMENT, reach
from gemmhub.array_library import FastPath, Replay
from gemmhub.dtypes import scalar_class
from gemmhub.operands import OPERANDS
from gemmhub.problem import GemmProblem

_LOW = MAX_ALIGNMENT - 1
_MAX_ENTRIES = 4096
"""Maximum number of calls that one fast path keeps."""
_NUMBERS = ("alpha", "beta")
_SCALARS = (int, float)
_SMALL, _LARGE = 2.0**-126, 2.0**127


def fast_path(arrays: Any, settings: Callable[[], object], alpha: Any, beta: Any) -> FastPath:
    """A new fast path for the library of ``arrays``; see :meth:`gemmhub.array_library.ArrayLibrary.fast_path`."""
    torch = arrays.module
    replays: OrderedDict[Any, Replay] = OrderedDict()
    grad, find = torch.is_grad_enabled, replays.get
    forward, modes, casting = state.forward_ad(), state.dispatch_modes(), state.any_autocast()
    transformed, traced = state.transform_test(), state.recording_test()
    families, tensor, parameter = Families(settings, alpha, beta), torch.Tensor, torch.nn.Parameter

    def look_up(
        records: bool = True, transposed: bool = False
    ) -> Callable[[Any, Any, Any, Mapping[str, Any]], Any]:  # fmt: skip
        """A function that runs repeated calls. One for plans, without ``records``, leaves those that autograd
        records: a plan has one kernel, and refuses operands unlike those that were planned. One with ``transposed`` is
        called with the transpose of b.
        """

        def call(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
            if forward._current_level >= 0 or modes._is_in_torch_dispatch_mode or traced() or transformed():
                return None  # no fact of a tensor shows these
            recorded = grad() and (
                a.requires_grad or b.requires_grad or (out is not None and out.requires_grad)
                or (bool(options) and any(getattr(x, "requires_grad", False) for x in options.values()))
            )  # fmt: skip
            if recorded and (out is not None or not records or registered.record is None):
                return None
            right, shape, strides = b.__class__, b.shape, b.stride()
            if transposed:
                right, shape, strides = tensor if right is parameter else right, shape[::-1], strides[::-1]
            key: tuple[Any, ...] = (
                settings(), a.__class__, a.dtype, a.shape, a.stride(), a.device, a.is_neg(),
                right, b.dtype, shape, strides, b.device, b.is_neg(),
            )  # fmt: skip
            if out is not None:
                key += facts(out)
            if options:
                more = of_options(options, out)
                if more is None:
                    return None
                key += more
            if out is None and casting() and state.rounded(a.device.type, _dtypes(a, b, options)):
                return None
            replay = find(key)
            if replay is not None:
                if replay.careful and _lazy(a, b, out, options):
                    return None
                if recorded:
                    a.data_ptr(), b.data_ptr()  # raises for the tensors that torch.autograd.grad maps over
                    return replay if replay.recordable else None
                result = replay.run(a, b, out, options)
                if result is not None:
                    return result
            elif recorded:
                return None
            replay = find((*key, *low_bits(a, b, out, options)[1]))
            if replay is not None:
                return None if replay.careful and _lazy(a, b, out, options) else replay.run(a, b, out, options)
            return families.product(a, b.t() if transposed else b, options) if out is None else None

        return call

    def of_options(options: Mapping[str, Any], out: Any) -> tuple[Any, ...] | None:
        """The part of a key that options have; None for a scalar that is no number of Python."""
        key: tuple[Any, ...] = ()
        for name, x in options.items():
            cls = x.__class__
            if cls is float and name in _NUMBERS and _SMALL <= x <= _LARGE and x != 1:  # the commonest, without a call
                key += (name, x < 2**31 and x.is_integer())
            elif name in _NUMBERS:
                if cls not in _SCALARS:
                    return None
                key += (name, scalar_class(x))
            elif name not in OPERANDS:
                key += (name, cls, x)
            elif x is None or (x is out and name == "c"):
                key += (name, x is None)
            else:
                key += (name, cls, x.dtype, x.shape, x.stride(), x.device, x.is_neg())
        return key

    def learn(
        arrays: Any, problem: GemmProblem, shape: tuple[int, ...], run: Callable[..., None],
        a: Any, b: Any, out: Any, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        scalars = options.get("alpha", alpha), options.get("beta", beta)
        if problem.empty or problem.k == 0 or problem.packed_by is not None:
            return
        if "stream" in options or not all(x.__class__ in _SCALARS for x in scalars):
            return
        views = [arrays.view(x, "operand") for x in _tensors(a, b, out, options)]
        reached = [reach(x) for x in views]
        writes = out is not None or any(OPERANDS[x].written for x in options if x in OPERANDS)
        if writes and any(before for before, _ in reached):
            return  # the overlap test covers memory from the first element on
        operands = {x: options[x] for x in OPERANDS if options.get(x) is not None}
        at_addresses = arrays.at_addresses(run, problem, shape, a, b, out, operands)
        if at_addresses is None:
            return
        more = of_options(options, out) if options else ()
        if more is None:
            return
        form = Form(options, out)
        mask, low = low_bits(a, b, out, options)
        spans = tuple(span for _, span in reached)
        function = _replay(arrays, problem, shape, at_addresses, form, spans, scalars, mask, low)
        lazy = problem.compute_dtype.kind == "c"
        key = (settings(), *facts(a), *facts(b), *(() if out is None else facts(out)), *more)
        names = tuple(x for x in operands if not OPERANDS[x].written)
        replay = Replay(function, names, recordable=out is None and len(names) == len(operands), careful=lazy)
        keep(replays, (*key, *low) if any(low) else key, replay, _MAX_ENTRIES)

    planned, linear = look_up(records=False), look_up(transposed=True)
    return FastPath(look_up(), learn, planned, families.learn, linear)


def facts(x: Any) -> tuple[Any, ...]:
    """Return what counts of a tensor for the look-up of a call, but for the low bits of its address.

    torch may have negated a tensor lazily, so that its memory does not hold its elements.
    """
    return x.__class__, x.dtype, x.shape, x.stride(), x.device, x.is_neg()


def low_bits(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> tuple[int, tuple[int, ...]]:
    """Return a mask of the bits of addresses that alignment depends on, and those bits of all tensors of a call. On the
    CPU it is whether elements are aligned.
    """
    tensors = _tensors(a, b, out, options)
    mask = max(x.element_size() for x in tensors) - 1 if a.is_cpu else _LOW
    return mask, tuple(x.data_ptr() & mask for x in tensors)


class Form:
    """Which options a call has; it keeps no tensor."""

    def __init__(self, options: Mapping[str, Any], out: Any) -> None:
        self.new = out is None
        self.operands = tuple(x for x in options if x in OPERANDS and options[x] is not None)
        self.in_place = "c" in self.operands and options["c"] is out
        self.apart = tuple(x for x in self.operands if not (self.in_place and x == "c"))
        """Operands in memory of their own."""
        self.alpha, self.beta = "alpha" in options, "beta" in options


def _replay(
    arrays: Any, problem: GemmProblem, shape: tuple[int, ...], run: Callable[..., None], form: Form,
    spans: tuple[int, ...], scalars: tuple[Any, Any], mask: int, low: tuple[int, ...],
) -> Callable[[Any, Any, Any, Mapping[str, Any]], Any]:  # fmt: skip
    """The function that runs a call again, and returns None, with nothing done, where addresses are aligned otherwise,
    memory is shared, or a tensor has none (torch has such zeros). What it reads is determined here, not in each call.
    """
    empty, stream, written = arrays.module.empty, arrays.raw_stream, arrays.increment_version
    dtype, device, ordinal = arrays.dtype_of(problem.out.dtype), arrays.torch_device, arrays.device.index
    alpha, beta = scalars
    aligned = not any(low)
    new, in_place, apart = form.new, form.in_place, form.apart
    passed = tuple(x for x in form.operands if x != "c" or beta != 0)
    shares = [x for x in apart if OPERANDS[x].written]
    scaled, weighted = form.alpha, form.beta
    a_span, b_span, out_span = (*spans[:2], 0) if new else spans[:3]
    rest = dict(zip(apart, spans[2 if new else 3 :]))

    def plain(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
        x, y = a.data_ptr(), b.data_ptr()
        if ((x | y) & mask if aligned else (x & mask, y & mask) != low) or not (x and y):
            return None
        result = empty(shape, dtype=dtype, device=device)
        run(x, y, result.data_ptr(), alpha, beta, stream(ordinal))
        return result

    def plain_out(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
        x, y, z = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if ((x | y | z) & mask if aligned else (x & mask, y & mask, z & mask) != low) or not (x and y):
            return None
        if (z < x + a_span and x < z + out_span) or (z < y + b_span and y < z + out_span):
            return None
        written(out)
        run(x, y, z, alpha, beta, stream(ordinal))
        return out

    def biased(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
        x, y, v = a.data_ptr(), b.data_ptr(), options["bias"].data_ptr()
        if ((x | y | v) & mask if aligned else (x & mask, y & mask, v & mask) != low) or not (x and y and v):
            return None
        result = empty(shape, dtype=dtype, device=device)
        run(x, y, result.data_ptr(), alpha, beta, stream(ordinal), bias=v)
        return result

    def full(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> Any:
        x, y = a.data_ptr(), b.data_ptr()
        z = 0 if new else out.data_ptr()
        others = [options[name].data_ptr() for name in apart]
        addresses = (x, y, *others) if new else (x, y, z, *others)
        if tuple([address & mask for address in addresses]) != low or 0 in addresses:
            return None
        if shares and _written_meets(shares, (("a", x, a_span), ("b", y, b_span)), apart, others, rest):
            return None
        if new:
            out = empty(shape, dtype=dtype, device=device)
            z = out.data_ptr()
        else:
            end = z + out_span
            if (z < x + a_span and x < end) or (z < y + b_span and y < end):
                return None
            for name, w in zip(apart, others):
                if z < w + rest[name] and w < end:
                    return None
            written(out)
        for name in shares:
            written(options[name])
        pointers = dict(zip(apart, others))
        if in_place:
            pointers["c"] = z
        if passed != apart:
            pointers = {name: pointers[name] for name in passed}
        scale = options["alpha"] if scaled else alpha
        weight = options["beta"] if weighted else beta
        run(x, y, z, scale, weight, stream(ordinal), **pointers)
        return out

    if apart == ("bias",) and new and not (scaled or weighted):
        return biased
    if apart or scaled or weighted or in_place:
        return full
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
    tensors = [a, b] if out is None else [a, b, out]
    for name, x in options.items():
        if x is not None and name in OPERANDS and not (name == "c" and x is out):
            tensors.append(x)
    return tensors


def _dtypes(a: Any, b: Any, options: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(x.dtype for x in _tensors(a, b, None, options))


def _lazy(a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> bool:
    """Whether torch has conjugated a tensor lazily: its memory does not hold its elements."""
    return any(x.is_conj() for x in _tensors(a, b, out, options))
