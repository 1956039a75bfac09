"""Decided calls on devices: what a call does between the caller's arrays and the kernel.

:func:`bind` is the complete way, for every option. :func:`warm_torch` and :func:`warm_cupy` are the short way of
plain calls seen before: one look-up by everything the decision rests on (types, dtypes, shapes, strides, the
low bits of the addresses, the device, the settings), then the kernel on the library's current stream. Nothing
here waits for the device, and with ``out`` nothing is allocated: such calls can be captured in CUDA graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from gemmhub._arrays.geometry import MOST_ALIGNED, DeviceView, broadcast, expand, meet, reach, same_memory
from gemmhub._arrays.on_device import CupyFamily, TorchFamily, torch_dtypes
from gemmhub._arrays.tensor_guard import guard
from gemmhub._base.guard import propagates
from gemmhub._call.describe import Call, flat
from gemmhub.backend import Kernel
from gemmhub.errors import GemmhubError
from gemmhub.packed import PackedB

Array = Any
Execute = Callable[..., Array]
Warm = Callable[[Array, Array, Array | None], Array | None]
"""Of (a, b, out): the result, or None where the long way must look at the call."""

_LOW = MOST_ALIGNED - 1
no_settings: Callable[[], object] = bool
"""For plans, which were made under settings that no longer matter: always the same (and no Python function)."""
_MOST = 4096
"""Entries that a plan, or all of matmul, keeps."""


def bind(call: Call, run: Callable[..., None], translated: Callable[[BaseException], GemmhubError]) -> Execute:
    """See :func:`gemmhub._call.bind.bind`, of which this is the part for devices."""
    family: Any = call.family
    problem, out_shape = call.problem, call.out_shape
    out_dtype, packed = problem.out.dtype, problem.packed_by
    a_ndim, b_ndim = call.a.ndim, 2 if packed else call.b.ndim
    written = family.increment_version if isinstance(family, TorchFamily) else None

    def execute(
        a: Any, b: Any, out: Any = None, c: Any = None, bias: Any = None, alpha: Any = 1, beta: Any = 0,
        stream: Any = None,
    ) -> Array:  # fmt: skip
        with family.on(stream):
            result = family.empty(out_shape, out_dtype) if out is None else out
            target = family.target(result, out_shape)
            if not problem.empty:
                left = family.view(a, "a")
                right: Any = b.payload if isinstance(b, PackedB) else family.view(b, "b")
                addend = None if c is None or beta == 0 else family.view(c, "c")
                vector = None if bias is None else flat(family.view(bias, "bias"))
                place, spare = target, None
                if out is not None and overlapping(target, left, right, vector, addend, a_ndim, b_ndim):
                    spare = family.twin(target)
                    place = family.view(spare, "out")
                if out is not None and written is not None:
                    written(out)
                try:
                    run(
                        left.address, right if packed else right.address, place.address,
                        None if addend is None else addend.address,
                        None if vector is None else vector.address,
                        alpha, beta, family.current_stream() if stream is None else stream,
                    )  # fmt: skip
                except BaseException as error:
                    raise translated(error) from error
                if spare is not None:
                    family.copy(target.owner, spare)
            return out if out is not None else family.wrap(result, (a, b, c, bias))

    return execute


def overlapping(
    out: DeviceView,
    a: DeviceView,
    b: object,
    bias: DeviceView | None,
    c: DeviceView | None,
    a_ndim: int,
    b_ndim: int,
) -> bool:
    """Whether ``out`` shares memory with an operand, other than by being ``c``."""
    operands: list[DeviceView] = [x for x in (a, b, bias) if isinstance(x, DeviceView)]
    if c is not None and not same_memory(expand(broadcast(c, out.shape), a_ndim, b_ndim), expand(out, a_ndim, b_ndim)):
        operands.append(c)
    return any(meet(out, x) for x in operands)


class Entry(NamedTuple):
    """What a plain call needs besides addresses."""

    run: Callable[..., None]
    shape: tuple[int, ...]
    dtype: Any
    """Of the result, in the library's own words."""
    device: Any
    a_bytes: int
    b_bytes: int
    out_bytes: int
    ordinal: int
    careful: bool
    """Whether torch may have negated an operand lazily: only such as have no dense dimension (``x.conj().imag``)."""
    check: Callable[..., bool] | None
    """Whether tensors are as those that this is for (their addresses' low bits, ``low``, aside)."""
    low: tuple[int, ...]
    settings: object


def warm_torch(known: dict[Any, Entry], settings: Callable[[], object], family: TorchFamily) -> Warm:
    """The short way of torch tensors. ``known`` is filled by :func:`remember`.

    The entry used last is tried first, by its check: loops multiply the same shapes again and again.
    """
    torch = family.library
    empty, grad, raw_stream, find = torch.empty, torch.is_grad_enabled, family.raw_stream, known.get
    written = family.increment_version
    place_of = _place_of(torch)
    last: Entry | None = None
    last_new: Entry | None = None

    def warm(a: Any, b: Any, out: Any) -> Any:
        nonlocal last, last_new
        x, y = a.data_ptr(), b.data_ptr()
        if out is None:
            found = last_new
            if (
                found is None or found.check is None or not found.check(a, b)
                or (x & _LOW, y & _LOW) != found.low or settings() != found.settings
            ):  # fmt: skip
                found = find((
                    a.__class__, b.__class__, a.dtype, b.dtype, a.shape, b.shape, a.stride(), b.stride(),
                    place_of(a), place_of(b), x & _LOW, y & _LOW, settings(),
                ))  # fmt: skip
                if found is None or ((a.requires_grad or b.requires_grad) and grad()):
                    return None
                if found.careful and (a.is_neg() or b.is_neg()):
                    return None
                last_new = found
            out = empty(found.shape, dtype=found.dtype, device=found.device)
            found.run(x, y, out.data_ptr(), None, None, 1, 0, raw_stream(found.ordinal))
            return out
        z = out.data_ptr()
        found = last
        if (
            found is None or found.check is None or not found.check(a, b, out)
            or (x & _LOW, y & _LOW, z & _LOW) != found.low or settings() != found.settings
        ):  # fmt: skip
            found = find((
                a.__class__, b.__class__, a.dtype, b.dtype, a.shape, b.shape, a.stride(), b.stride(),
                place_of(a), place_of(b), x & _LOW, y & _LOW, settings(),
                out.__class__, out.dtype, out.shape, out.stride(), place_of(out), z & _LOW,
            ))  # fmt: skip
            if found is None or ((a.requires_grad or b.requires_grad or out.requires_grad) and grad()):
                return None
            if found.careful and (a.is_neg() or b.is_neg() or out.is_neg()):
                return None
            last = found
        run, _, _, _, a_bytes, b_bytes, out_bytes, index, _, _, _, _ = found
        if (z < x + a_bytes and x < z + out_bytes) or (z < y + b_bytes and y < z + out_bytes):
            return None
        written(out)
        run(x, y, z, None, None, 1, 0, raw_stream(index))
        return out

    return warm


def warm_cupy(known: dict[Any, Entry], settings: Callable[[], object], family: CupyFamily) -> Warm:
    """The short way of cupy arrays. ``known`` is filled by :func:`remember`.

    The call before is looked at first: to compare two keys takes a tenth of what it takes to hash dtypes.
    """
    cupy = family.library
    ndarray, current, find = cupy.ndarray, cupy.cuda.get_current_stream, known.get
    nothing: tuple[Any, Entry | None] = (None, None)
    last, last_new = nothing, nothing

    def warm(a: Any, b: Any, out: Any) -> Any:
        nonlocal last, last_new
        left, right = a.data, b.data
        x, y = left.ptr, right.ptr
        if out is None:
            key: tuple[Any, ...] = (
                a.__class__, b.__class__, a.dtype, b.dtype, a.shape, b.shape, a.strides, b.strides,
                left.device_id, right.device_id, x & _LOW, y & _LOW, settings(),
            )  # fmt: skip
            before, found = last_new
            if key != before:
                found = find(key)
                last_new = key, found
            if found is None or cupy.cuda.runtime.getDevice() != found.device:
                return None
            out = ndarray(found.shape, found.dtype)
            found.run(x, y, out.data.ptr, None, None, 1, 0, current(found.ordinal).ptr)
            return out
        into = out.data
        z = into.ptr
        key = (
            a.__class__, b.__class__, a.dtype, b.dtype, a.shape, b.shape, a.strides, b.strides,
            left.device_id, right.device_id, x & _LOW, y & _LOW, settings(),
            out.__class__, out.dtype, out.shape, out.strides, into.device_id, z & _LOW,
        )  # fmt: skip
        before, found = last
        if key != before:
            found = find(key)
            last = key, found
        if found is None:
            return None
        run, _, _, _, a_bytes, b_bytes, out_bytes, index, *_ = found
        if (z < x + a_bytes and x < z + out_bytes) or (z < y + b_bytes and y < z + out_bytes):
            return None
        run(x, y, z, None, None, 1, 0, current(index).ptr)
        return out

    return warm


def planned_torch(call: Call, kernel: Kernel, other: Execute) -> Execute:
    """The way of a plan with ``out``: tensors that are as the examples in ``call`` go straight to the kernel,
    everything else to ``other``; ``other`` itself where there is no short way.
    """
    family: Any = call.family
    if call.out is None:
        return other
    found = _described(call, kernel, no_settings, *(x.owner for x in (call.a, call.b, call.out)))
    check = found and found[1].check
    if found is None or check is None:
        return other
    run, _, _, _, a_bytes, b_bytes, out_bytes, index, _, _, (a_low, b_low, out_low), _ = found[1]
    raw_stream, written = family.raw_stream, family.increment_version

    def planned(a: Any, b: Any, out: Any = None, **epilogue: Any) -> Any:
        try:
            if check(a, b, out) and not epilogue:
                x, y, z = a.data_ptr(), b.data_ptr(), out.data_ptr()
                if (
                    x & _LOW == a_low and y & _LOW == b_low and z & _LOW == out_low
                    and (z >= x + a_bytes or x >= z + out_bytes) and (z >= y + b_bytes or y >= z + out_bytes)
                ):  # fmt: skip
                    written(out)
                    run(x, y, z, None, None, 1, 0, raw_stream(index))
                    return out
        except Exception:
            pass  # said in our words by the other way
        except BaseException as error:
            if propagates(error):
                raise
        return other(a, b, out, **epilogue)

    return planned


def remember(
    known: dict[Any, Entry], call: Call, kernel: Kernel, settings: Callable[[], object], a: Any, b: Any, out: Any
) -> Warm | None:
    """File a decided call in ``known``; returns the short way that looks there, or None if there is none."""
    found = _described(call, kernel, settings, a, b, out)
    if found is None:
        return None
    (one, other, *rest), entry = found
    if len(known) >= _MOST:
        known.clear()
    known[(*(value for pair in zip(one, other) for value in pair), settings(), *chain(*rest))] = entry
    family: Any = call.family
    return (warm_torch if isinstance(family, TorchFamily) else warm_cupy)(known, settings, family)


def _described(
    call: Call, kernel: Kernel, settings: Callable[[], object], a: Any, b: Any, out: Any
) -> tuple[list[tuple[Any, ...]], Entry] | None:
    """The facts of each operand, and what a short way needs besides; None where there is no short way.

    That is so for anything but plain products of cupy arrays or torch tensors, for empty ones, and for complex
    ones (torch conjugates lazily, which only the long way sees).
    """
    family, problem = call.family, call.problem
    plain = problem.plain and not problem.empty and problem.packed_by is None and problem.compute_dtype.kind != "c"
    if not plain or not isinstance(family, (CupyFamily, TorchFamily)):
        return None
    dtype: Any = problem.out.dtype
    place: Any = family.device.index
    if isinstance(family, TorchFamily):
        dtype, place = torch_dtypes()[1][dtype], family.place
    operands = [x for x in (a, b, out) if x is not None]
    views = [family.view(x, "operand") for x in operands]
    reached = [reach(x) for x in views]
    if out is not None and any(before for before, _ in reached):
        return None  # the short way takes it that memory begins at the first element
    a_bytes, b_bytes, out_bytes = (*(span for _, span in reached), 0)[:3]
    careful = not all(map(_dense, views))
    check = guard(*operands) if isinstance(family, TorchFamily) else None
    low = tuple(x.address & _LOW for x in views)
    return [_facts(family, x) for x in operands], Entry(
        kernel.run, call.out_shape, dtype, place, a_bytes, b_bytes, out_bytes, family.device.index, careful, check, low,
        settings(),
    )  # fmt: skip


def _facts(family: CupyFamily | TorchFamily, x: Any) -> tuple[Any, ...]:
    """What the short way asks of an array, in the library's own words."""
    if isinstance(family, TorchFamily):
        return type(x), x.dtype, x.shape, x.stride(), _place_of(family.library)(x), x.data_ptr() & _LOW
    return type(x), x.dtype, x.shape, x.strides, x.data.device_id, x.data.ptr & _LOW


def _dense(x: DeviceView) -> bool:
    return any(abs(step) == x.itemsize for step, size in zip(x.strides, x.shape) if size > 1)


def _place_of(torch: Any) -> Callable[[Any], object]:
    """A tensor's device; its number, which is quicker to have, where torch knows one kind of device only."""
    return torch.Tensor.get_device if "torch_musa" not in sys.modules else lambda x: x.device
