"""Grouped calls whose offsets are on the device: one problem, which one kernel runs.

The decision is that of a single product: by the sizes of the whole arrays, once for each signature of a call. No number
is read from the device, so that nothing waits for it, and a call can be captured in a graph. Offsets on the host are
those of products of views (:mod:`gemmhub._grouped.matmul`), also where arrays are on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gemmhub import api
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.operands import TorchArrays
from gemmhub._base.geometry import MAX_ALIGNMENT, DeviceView, alignment, same_memory
from gemmhub._base.guard import translated
from gemmhub._call.describe import numerics
from gemmhub._call.options import Request, stream_handle, with_scalars
from gemmhub._grouped import forms, offsets
from gemmhub._grouped.call import OPERANDS, Operands, check_operands
from gemmhub._grouped.forms import Form
from gemmhub.array_library import ArrayLibrary
from gemmhub.backend import Kernel
from gemmhub.capability import Device
from gemmhub.dtypes import info
from gemmhub.errors import NoBackendError, OutputError
from gemmhub.kit import locks
from gemmhub.layout import MatrixLayout
from gemmhub.operands import Bias, Described, Operand, Product, described, layout
from gemmhub.operands import Operands as Table
from gemmhub.problem import GemmProblem, Groups
from gemmhub.verdict import Decision

Array = Any
Run = Callable[[Array, Array, Array, "Array | None", Mapping[str, Any]], Array]
"""``(a, b, offsets, out, options) -> result``."""

DIVIDED = {0: "m", 1: "n", None: "k"}
"""The dimension of the problem by the axis of the result that offsets divide."""


@dataclass(frozen=True)
class DeviceCall:
    """A described call."""

    arrays: ArrayLibrary
    request: Request
    form: Form
    problem: GemmProblem
    groups: Groups
    """The groups of the problem."""
    shape: tuple[int, ...]
    """Shape of the result."""


def multiply(a: Array, b: Array, ends: Array, out: Array | None, options: Mapping[str, Any]) -> Array:
    """The product by offsets on the device. NoBackendError where no backend takes it."""
    values = with_scalars(options)  # type: ignore[arg-type]
    cache = api._cache  # before settings are read
    key, run = cache.look_up(a, b, out, {**values, "offsets": ends})
    if run is None:
        run, cacheable = _bound(describe(a, b, ends, out, values), cache)
        if key is not None and cacheable:
            with suppress(MemoryError):
                cache.put(key, run)
    return run(a, b, ends, out, values)


def _bound(call: DeviceCall, cache: Any) -> tuple[Run, bool]:
    """The function that runs a described call, and whether it may be kept."""
    with locks.deciding:
        api.import_deciding()
        if call.problem.empty or _without_terms(call):
            return bind(call, "", None), True
        try:
            decision, kernel = api.settled(call.arrays, call.problem, call.request, cache)
        except NoBackendError as error:
            raise _without_backend(call.problem.device, error.decision) from None
    return bind(call, decision.chosen or "", kernel), decision.cacheable and cache.observer is None


def _without_terms(call: DeviceCall) -> bool:
    """Whether each group is a sum without terms, as the gradients of weights without tokens, to which nothing is added,
    or a c that the array library writes: kernels need not take operands without memory for that.

    It writes a c that is not multiplied, or that no wider dtype is needed to multiply.
    """
    problem = call.problem
    if call.groups.divides != "k" or problem.k != 0 or problem.activation is not None:
        return False
    if problem.c is None or len(problem.operands) > 1:
        return not problem.operands
    out = problem.out.dtype
    exact = call.request.beta == 1 or (info(out).inexact and problem.compute_dtype == out)
    return problem.c.dtype == out and exact


def _without_backend(device: Device, decision: Decision) -> NoBackendError:
    """The error for a product that no backend takes."""
    return NoBackendError(
        f"no backend multiplies these groups by offsets on {device}, and gemmhub copies none to the host, which would "
        "wait for the device; pass offsets on the host (offsets.cpu() in torch, offsets.get() in CuPy), and the groups "
        f"are multiplied one after the other: {decision.why}",
        decision,
    )


def decide(call: DeviceCall) -> Decision:
    """The decision for a described call; nothing is prepared."""
    with locks.deciding:
        api.import_deciding()
        from gemmhub._choice import decide

        return decide.decide(call.problem, call.request.settings)


def bind(call: DeviceCall, backend: str, kernel: Kernel | None) -> Run:
    """The function that runs calls of one signature: views, a new result, and the kernel at their addresses.

    ``kernel`` is None where the result has no elements, or is that of :func:`_without_terms`.
    """
    arrays: Any = call.arrays
    shape, dtype, alpha, beta = call.shape, call.problem.out.dtype, call.request.alpha, call.request.beta
    written = arrays.increment_version if isinstance(arrays, TorchArrays) else None
    names = tuple(name for name in OPERANDS if name in call.problem.operands)

    def run(a: Array, b: Array, ends: Array, out: Array | None, options: Mapping[str, Any]) -> Array:
        stream = stream_handle(options.get("stream"))
        with arrays.on(stream):
            result = arrays.empty(shape, dtype) if out is None else out
            target = arrays.target(result, shape)
            named = {"a": a, "b": b, **{name: options[name] for name in names}, "offsets": ends}
            views = {name: arrays.view(x, name) for name, x in named.items()}
            if out is not None:
                _refuse_shared(arrays, target, views)
                if written is not None:
                    written(out)
            if kernel is not None:
                left, right, *others = (x.address for x in views.values())
                try:
                    kernel.run(
                        left, right, target.address, options.get("alpha", alpha), options.get("beta", beta),
                        arrays.current_stream() if stream is None else stream,
                        **dict(zip((*names, "offsets"), others)),
                    )  # fmt: skip
                except BaseException as error:
                    raise translated(error, backend) from error
            elif "c" in names:
                own = same_memory(views["c"], target)
                _multiply(result, None if own else options["c"], options.get("beta", beta))
            elif not call.problem.empty:
                clear(result)
            return arrays.wrap(result, (a, b)) if out is None else out

    return run


def clear(x: Array) -> None:
    """Write zeros into an array."""
    x.zero_() if tensors.is_tensor(x) else x.fill(0)


def _multiply(out: Array, c: Array | None, beta: Any) -> None:
    """Write beta times c, or times what is there where c is None."""
    if c is not None and tensors.is_tensor(out):
        out.copy_(c)
    elif c is not None:
        out[...] = c
    if beta != 1:
        out *= beta


def _refuse_shared(arrays: ArrayLibrary, out: DeviceView, views: Mapping[str, DeviceView]) -> None:
    """OutputError where the result shares memory with an operand, other than by being c, or with the offsets."""
    for name, x in views.items():
        if not (name == "c" and same_memory(x, out)) and arrays.overlap(out, x):
            raise OutputError("out", f"it shares memory with {name}", "memory of its own", "pass a new out=")


def describe(a: Array, b: Array, ends: Array, out: Array | None, options: Mapping[str, Any]) -> DeviceCall:
    """Check a grouped call by offsets on the device, and describe its problem; see :func:`gemmhub.grouped_matmul`."""
    found = check_operands(a, b, True, out, options)
    arrays, request, form = found.arrays, found.request, found.form
    count = offsets.count(ends, arrays, found.groups)
    groups, shape = Groups(count, DIVIDED[form.out]), found.shape(count)
    left, right = found.natives["a"], found.natives["b"]
    natural, compute, precision = numerics(request, left.dtype, right.dtype, found.out_dtype, arrays.device)
    target = None if out is None else arrays.target(out, shape)

    def matrix(name: str, x: DeviceView) -> Operand:
        return Operand(x.dtype, layout(x, groups.batch(name)), alignment(x))

    new = MatrixLayout.contiguous(shape[-2], shape[-1], groups.batch("out"))
    m, n, k = found.sizes
    product = Product(m, n, k, (count,), 3, 3, (count, m, n), found.out_dtype, natural)
    problem = GemmProblem(
        m=m, n=n, k=k, a=matrix("a", left), b=matrix("b", right),
        out=Operand(found.out_dtype, new, MAX_ALIGNMENT) if target is None else matrix("out", target),
        compute_dtype=compute, alpha_is_one=bool(request.alpha == 1), activation=request.activation,
        precision=precision, reproducible=request.settings.reproducible, device=arrays.device, groups=groups,
        operands=Table({name: _described(name, found, product) for name in _read(found)}),
    )  # fmt: skip
    return DeviceCall(arrays, request, form, problem, groups, shape)


def _read(found: Operands) -> list[str]:
    """The names of the operands beside a and b that a kernel gets: not of a c that is multiplied by 0."""
    return [x for x in OPERANDS if x in found.natives and (x != "c" or found.request.beta != 0)]


def _described(name: str, found: Operands, product: Product) -> Described:
    """The description of an operand beside a and b; an error where its shape or dtype does not fit."""
    form, x, (count,) = found.form, found.natives[name], product.batch
    if name == "c":
        m, n, _ = found.sizes
        forms.check_addend(form, tuple(x.shape), count, m, n)
        described(name, x, replace(product, shape=tuple(x.shape)))  # its dtype is checked
        return Operand(x.dtype, layout(x, product.batch if form.out is None else ()), alignment(x))
    if name != "bias":
        operand = tuple(found.natives[name[-1]].shape)
        forms.check_rows(form, name, x.shape, count, operand)
        forms.scale(form, name, x, x.shape, count, operand)
        return described(name, x, product)[1]
    forms.bias(form, x, x.shape, count, product.n)
    row = x if x.ndim == 1 else DeviceView(x.address, x.dtype, x.shape[1:], x.strides[1:], x.owner)
    facts = described(name, row, product)[1]
    step = x.strides[0] // x.itemsize if x.ndim == 2 and count > 1 else 0
    return Bias(x.dtype, "n", facts.stride if isinstance(facts, Bias) else 1, (step,) if step else ())
