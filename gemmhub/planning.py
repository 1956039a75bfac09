"""A decided problem bound to a kernel: what a warm call runs.

:func:`bind` makes a function of arrays; it turns operands into what the kernel takes (views, never copies),
makes the result, and guards the two promises a kernel relies on: ``out`` overlaps no other operand, and
empty results need no work. :class:`Plan` is the public form, for operands of equal shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any, Protocol, cast

import numpy as np

from gemmhub import device_calls
from gemmhub.arrays import Call, flat
from gemmhub.backend import Kernel
from gemmhub.capability import Copy
from gemmhub.decision import Decision
from gemmhub.device_families import TorchFamily
from gemmhub.errors import AllocationError, GemmhubError, InputError, KernelError, OutputError
from gemmhub.families import NUMPY, layout_key
from gemmhub.options import Request, scalar, scalar_kind, stream_handle
from gemmhub.packed import PackedB
from gemmhub.problem import GemmProblem
from gemmhub.views import DeviceView, as_matrix, broadcast, expand, same_memory

Array = Any
Execute = Callable[..., Array]


def overlaps(call: Call) -> tuple[Copy, ...]:
    """The temporary a call needs because ``out`` shares memory with an operand (c in place is free)."""
    if call.out is None or call.problem.empty:
        return ()
    family, problem = call.family, call.problem
    operands = {"a": call.a, "b": call.b, "bias": call.bias}
    if call.c is not None and not same_memory(call.c, expand(call.out, call.a.ndim, _ndim(call.b))):
        operands["c"] = call.c
    for name, operand in operands.items():
        if isinstance(operand, (np.ndarray, DeviceView)) and family.overlap(call.out, operand):
            size = problem.m * problem.n * problem.batch_count * problem.out.dtype.itemsize
            return (Copy("out", size, f"it overlaps {name}, so the product is made beside it and copied"),)
    return ()


def _ndim(b: object) -> int:
    return b.ndim if isinstance(b, (np.ndarray, DeviceView)) else 2


def bind(call: Call, backend: str, kernel: Kernel) -> Execute:
    """``execute(a, b, out=None, c=None, bias=None, alpha=1, beta=0, stream=None) -> result``.

    For operands of the same kind, shapes and dtypes (and layouts, where the backend is sensitive to them)
    as ``call``'s. Raises KernelError or AllocationError.
    """
    if call.problem.device.kind != "cpu":
        return device_calls.bind(call, kernel.run, lambda error: translated(error, backend))
    family, problem, out_shape = call.family, call.problem, call.out_shape
    out_dtype, run = problem.out.dtype, kernel.run
    a_ndim, b_ndim = call.a.ndim, 2 if problem.packed_by else _ndim(call.b)
    scalar = out_shape == () and family is NUMPY

    def execute(
        a: Any, b: Any, out: Any = None, c: Any = None, bias: Any = None, alpha: Any = 1, beta: Any = 0,
        stream: Any = None,
    ) -> Array:  # fmt: skip
        left = family.view(a, "a")
        right = b.payload if isinstance(b, PackedB) else family.view(b, "b")
        result = family.empty(out_shape, out_dtype) if out is None else family.target(out, out_shape)
        if not problem.empty:
            target = expand(result, a_ndim, b_ndim)
            addend = (
                None if c is None or beta == 0 else expand(broadcast(family.view(c, "c"), out_shape), a_ndim, b_ndim)
            )
            vector = None if bias is None else flat(family.view(bias, "bias"))
            beside = out is not None and _meets(family.overlap, result, left, right, vector, addend, target)
            place = family.twin(target) if beside else target
            try:
                run(
                    as_matrix(left, "a"), right if problem.packed_by else as_matrix(right, "b"), place,
                    addend, vector, alpha, beta, stream,
                )  # fmt: skip
            except Exception as error:
                raise translated(error, backend) from error
            if beside:
                target[...] = place
        if out is not None:
            return out
        return result[()] if scalar else family.wrap(result, (a, b, c, bias))

    return execute


def shortcut(call: Call, kernel: Kernel, execute: Execute) -> Callable[[Array, Array, Array | None], Array]:
    """``(a, b, out) -> result`` for plain calls: the kernel's own complete matmul if it has one."""
    if kernel.direct is not None and call.problem.plain and call.exact:
        return kernel.direct
    return execute


def same_out(run: Callable[[Array, Array, Array], Array], shape: tuple[int, ...]) -> Callable[..., Array]:
    """``run`` for an ``out`` of this shape only: a ufunc broadcasts a product to a larger stack."""

    def checked(a: Array, b: Array, out: Array) -> Array:
        if out.shape != shape:
            raise OutputError("out", f"shape {out.shape}", f"shape {shape}")
        return run(a, b, out)

    return checked


def by_layout(known: Any, run: Callable[[Array, Array, Array | None], Array], a: Array, b: Array, out: Any) -> Any:
    """``run`` for operands that lie as these do, beside what the function ``known`` has for other layouts.

    For backends that look at strides and alignment. For a layout it does not have the function raises KeyError.
    """

    def layout(a: Array, b: Array, out: Any) -> tuple[Any, ...]:
        return a.strides, b.strides, a.flags.aligned, b.flags.aligned, out is None or out.flags.aligned

    if known is None:
        runs: dict[tuple[Any, ...], Any] = {}

        def known(a: Array, b: Array, out: Any) -> Array:
            return runs[layout(a, b, out)](a, b, out)

        known.runs = runs
    known.runs[layout(a, b, out)] = run
    return known


def run_once(call: Call, backend: str, kernel: Kernel, a: Array, b: Array, request: Request) -> Array:
    """The product in a new array, by this kernel, with exceptions in our words."""
    execute = bind(call, backend, kernel)
    return first_run(call, backend, kernel, execute, a, b, None, request)


def first_run(
    call: Call, backend: str, kernel: Kernel, execute: Execute, a: Array, b: Array, out: Array | None, request: Request
) -> Array:
    """Run by the shortcut where there is one, else in full; exceptions in our words."""
    run = shortcut(call, kernel, execute)
    if run is not execute:
        try:
            return run(a, b, out)
        except Exception:
            pass  # as in every later call: the full way finds out what is wrong, and says it in our words
    return execute(a, b, out, request.c, request.bias, request.alpha, request.beta, request.stream)


def _meets(
    overlap: Callable[[Array, Array], bool],
    out: Array,
    a: Array,
    b: object,
    bias: Array | None,
    c: Array | None,
    target: Array,
) -> bool:
    operands = [x for x in (a, b, bias) if isinstance(x, np.ndarray)]
    if c is not None and not same_memory(c, target):
        operands.append(c)
    return any(overlap(out, x) for x in operands)


def translated(error: Exception, backend: str) -> GemmhubError:
    """A kernel's exception as one of ours."""
    if isinstance(error, GemmhubError):
        return error
    if isinstance(error, MemoryError):
        return AllocationError(f"backend {backend!r} ran out of memory: {error}")
    return KernelError(backend, f"{type(error).__name__}: {error}")


class Plan(Protocol):
    """What :func:`gemmhub.plan` returns: a function of operands with the planned shapes and dtypes.

    (A function and not an object with ``__call__``, which costs 0.15 us more.) A plan of a plain product takes
    ``(a, b, out=None)``; one with an epilogue takes ``c`` and ``bias`` too, where they were planned, and
    ``alpha`` and ``beta``. These and ``stream`` default to the planned ones. Raises InputError for operands that
    are not as planned, before anything is written.
    """

    decision: Decision
    kernel: Kernel

    def __call__(self, a: Array, b: Array, out: Array | None = None, **epilogue: Any) -> Array: ...


def make_plan(
    call: Call, decision: Decision, kernel: Kernel, request: Request, describe: Callable[..., Call], b: object
) -> Plan:
    """The public plan of a decided call. ``describe`` checks later operands as the first ones were."""
    execute = bind(call, decision.chosen or "", kernel)
    problem, layout_free = call.problem, decision.layout_free

    def facts(x: Any) -> tuple[Any, ...] | None:
        if x is None:
            return None
        kind = (x.backend, x.a_dtype, x.device) if isinstance(x, PackedB) else layout_free or layout_key(x)
        return type(x), x.shape, x.dtype, kind

    c_planned = None if request.beta == 0 else request.c
    planned: Any = None
    if call.exact or problem.packed_by:  # else describe() looks at the operands of every call
        planned = tuple(map(facts, (call.a, b if isinstance(b, PackedB) else call.b, c_planned, request.bias)))
    scalars_planned = scalar_kind(request.alpha), scalar_kind(request.beta)
    out_planned = type(call.a), call.out_shape, problem.out.dtype, layout_free or (_out_strides(call), True)

    def checked(
        a: Any, b: Any, out: Any = None, *, c: Any = None, bias: Any = None, alpha: Any = None, beta: Any = None,
        stream: Any = None,
    ) -> Array:  # fmt: skip
        alpha = request.alpha if alpha is None else scalar(alpha, "alpha")
        beta = request.beta if beta is None else scalar(beta, "beta")
        stream = request.stream if stream is None else stream_handle(stream)
        try:
            as_planned = (
                tuple(map(facts, (a, b, c, bias))) == planned
                and (out is None or facts(out) == out_planned)
                and (scalar_kind(alpha), scalar_kind(beta)) == scalars_planned
                and stream is None
            )
        except AttributeError:  # a list, say: describe() views it
            as_planned = False
        if not as_planned:
            if c is not None and request.c is None:
                raise InputError("c", "given to a plan without c", "no c", "make a plan with c= and beta=")
            if c is None and beta != 0:
                raise InputError("beta" if request.beta == 0 else "c", f"beta is {beta} without c", "beta with c")
            now = replace(request, c=c, bias=bias, stream=stream, alpha=alpha, beta=beta, out_dtype=problem.out.dtype)
            _must_equal(describe(a, b, out, now).problem, problem, layout_free)
        return execute(a, b, out, c, bias, alpha, beta, stream)

    run = shortcut(call, kernel, execute)
    if run is not execute and decision.layout_free:
        plan = cast("Plan", _short_plan(run, checked, call))
    elif problem.device.kind != "cpu":
        plan = cast("Plan", _device_plan(call, kernel, checked) if request.stream is None else checked)
    else:
        plan = cast("Plan", checked)
    plan.decision = decision
    plan.kernel = kernel
    return plan


def _device_plan(call: Call, kernel: Kernel, checked: Execute) -> Execute:
    """A plan that knows operands it has checked before again by the facts that the kernel relies on."""
    known: dict[Any, device_calls.Entry] = {}
    warm: device_calls.Warm | None = None

    def planned(a: Any, b: Any, out: Any = None, **epilogue: Any) -> Array:
        nonlocal warm
        if warm is not None and not epilogue:
            try:
                result = warm(a, b, out)
            except Exception:
                result = None  # said below, in our words
            if result is not None:
                return result
        result = checked(a, b, out, **epilogue)
        if not epilogue:
            warm = device_calls.remember(known, call, kernel, device_calls.no_settings, a, b, out) or warm
        return result

    short = call.problem.packed_by is None and isinstance(call.family, TorchFamily)
    return device_calls.planned_torch(call, kernel, planned) if short else planned


def _short_plan(run: Callable[[Array, Array, Array | None], Array], checked: Execute, call: Call) -> Execute:
    """A plan that checks no more than it must before handing over to a self-checking matmul."""
    a_shape, a_dtype, b_shape, b_dtype = call.a.shape, call.a.dtype, call.b.shape, call.b.dtype
    out_dtype, array = call.problem.out.dtype, np.ndarray
    out_strides = _out_strides(call)  # of others it must be seen whether elements share memory
    # Strides tell the itemsize. Of types as wide as float32 and complex128 NumPy refuses to round into any other;
    # float64 it would round into complex64. (One attribute is a tenth of what a planned call may cost.)
    told_by_strides = out_dtype.itemsize != 8
    shape, single = call.out_shape, len(call.out_shape) <= 2  # a stack NumPy would broadcast to a larger one

    def planned(a: Any, b: Any, out: Any = None) -> Array:
        # With these, the matmul itself finds any other fault of out: matrices of the wrong size, and a read-only
        # one; and also a wrong b (one that fits is multiplied right, in the wider dtype, and rounded into out).
        try:
            if a.__class__ is array is b.__class__ and a.shape == a_shape and a.dtype is a_dtype:
                if out is None:
                    if b.shape == b_shape and b.dtype is b_dtype:
                        return run(a, b, None)
                elif (
                    out.strides == out_strides
                    and (told_by_strides or out.dtype is out_dtype)
                    and (single or out.shape == shape)
                ):
                    return run(a, b, out)
        except Exception:
            pass  # said below, in our words
        return checked(a, b, out)

    return planned


def _out_strides(call: Call) -> tuple[int, ...]:
    """The strides of the example of out; those of a new array where none was given."""
    if call.out is not None:
        return cast("tuple[int, ...]", call.out.strides)
    shape, size = call.out_shape, call.problem.out.dtype.itemsize
    return tuple(prod(shape[i + 1 :]) * size for i in range(len(shape)))


def _must_equal(given: GemmProblem, planned: GemmProblem, layout_free: bool) -> None:
    """InputError naming what differs from the plan."""
    names = ("m", "n", "k", "batch", "bias", "packed_by", "alpha_is_one")
    differing = [name for name in names if getattr(given, name) != getattr(planned, name)]
    for name in ("a", "b", "out", "c"):
        before, after = getattr(planned, name), getattr(given, name)
        if layout_free:
            before, after = before and before.dtype, after and after.dtype
        elif before is not None and after is not None:
            least = min(before.alignment, after.alignment)  # better than planned will do
            before, after = (
                replace(before, layout=before.layout.essential),
                replace(after, layout=after.layout.essential, alignment=least),
            )
        differing += [name] if before != after else []
    if differing:
        raise InputError(", ".join(differing), f"{given}", f"what was planned: {planned}", "make another plan")
