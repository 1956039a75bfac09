"""A decided problem bound to a kernel: what a warm call runs.

:func:`bind` makes a function of arrays; it turns operands into what the kernel takes (views, never copies),
makes the result, and guards the two promises a kernel relies on: ``out`` overlaps no other operand, and
empty results need no work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays.host.operands import NUMPY
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.host import TorchHostArrays
from gemmhub._base.geometry import DeviceView, as_matrix, broadcast, expand, same_memory
from gemmhub._base.guard import propagates, translated
from gemmhub._call import bind_device
from gemmhub._call.describe import Call, flat
from gemmhub._call.options import EXTRA, Request, stream_handle
from gemmhub.backend import Kernel
from gemmhub.capability import Copy
from gemmhub.errors import KernelError, OutputError
from gemmhub.packed import PackedB

Array = Any
Execute = Callable[..., Array]


def overlaps(call: Call) -> tuple[Copy, ...]:
    """The temporary a call needs because ``out`` shares memory with an operand (c in place is free)."""
    if call.out is None or call.problem.empty:
        return ()
    arrays, problem = call.arrays, call.problem
    operands = {"a": call.a, "b": call.b, "bias": call.bias, **call.extra}
    if call.c is not None and not same_memory(call.c, expand(call.out, call.a.ndim, _ndim(call.b))):
        operands["c"] = call.c
    for name, operand in operands.items():
        if isinstance(operand, (np.ndarray, DeviceView)) and arrays.overlap(call.out, operand):
            size = problem.m * problem.n * problem.batch_count * problem.out.dtype.itemsize
            return (Copy("out", size, f"it overlaps {name}, so the product is made beside it and copied"),)
    return ()


def _ndim(b: object) -> int:
    return b.ndim if isinstance(b, (np.ndarray, DeviceView)) else 2


def bind(call: Call, backend: str, kernel: Kernel, any_size: bool = False) -> Execute:
    """``execute(a, b, out=None, c=None, bias=None, alpha=1, beta=0, stream=None, extra=()) -> result``.

    For operands of the same kind, shapes and dtypes (and layouts, where the backend is sensitive to them)
    as ``call``'s; with ``any_size``, of NumPy's arrays that make a product of any sizes. Raises KernelError or
    AllocationError.
    """
    if call.problem.device.kind != "cpu":
        return bind_device.bind(call, kernel.run, lambda error: translated(error, backend))
    arrays, problem, fixed_shape, fixed_empty = call.arrays, call.problem, call.out_shape, call.problem.empty
    out_dtype, run = problem.out.dtype, kernel.run
    a_ndim, b_ndim = call.a.ndim, 2 if problem.packed_by else _ndim(call.b)
    scalar = fixed_shape == () and arrays is NUMPY
    a_dtype, b_dtype = problem.a.dtype, problem.b.dtype
    # numpy.int64 and numpy.longlong are equal dtypes, so that calls with either come here; each has its own scalars.
    follows = call.natural and arrays is NUMPY and out_dtype.kind in "iu" and not problem.packed_by
    written = arrays.increment_version if isinstance(arrays, TorchHostArrays) else None

    def execute(
        a: Any, b: Any, out: Any = None, c: Any = None, bias: Any = None, alpha: Any = 1, beta: Any = 0,
        stream: Any = None, extra: Any = (),
    ) -> Array:  # fmt: skip
        left = arrays.view(a, "a")
        right: Any = b.payload if isinstance(b, PackedB) else arrays.view(b, "b")
        out_shape, empty = fixed_shape, fixed_empty
        if any_size:
            out_shape = left.shape[:-1] + right.shape[-1:] * (b_ndim > 1)
            empty = 0 in out_shape
        if out is not None:
            result = arrays.target(out, out_shape)
        elif follows and not (left.dtype is a_dtype and right.dtype is b_dtype):
            result = arrays.empty(out_shape, dtypes.result_dtype(left.dtype, right.dtype))
        else:
            result = arrays.empty(out_shape, out_dtype)
        if not empty:
            target = expand(result, a_ndim, b_ndim)
            addend = (
                None if c is None or beta == 0 else expand(broadcast(arrays.view(c, "c"), out_shape), a_ndim, b_ndim)
            )
            vector = None if bias is None else flat(arrays.view(bias, "bias"))
            compute: Callable[..., None] = run
            more: Iterable[object] = ()
            if extra:
                named = {name: flat(arrays.view(x, name), name) for name, x in extra.items()}
                compute, more = partial(run, **named), named.values()
            beside = out is not None and _meets(arrays.overlap, result, (left, right, vector, *more), addend, target)
            place = arrays.twin(target) if beside else target
            if out is not None and written is not None:
                written(out)
            try:
                # Infinity and NaN are results: the caller's state must not make an exception of one.
                with np.errstate(all="ignore"):
                    compute(
                        as_matrix(left, "a"), right if problem.packed_by else as_matrix(right, "b"), place,
                        addend, vector, alpha, beta, stream,
                    )  # fmt: skip
            except BaseException as error:
                raise translated(error, backend) from error
            if beside:
                target[...] = place
        if out is not None:
            return out
        return result[()] if scalar else arrays.wrap(result, (a, b, c, bias))

    return execute


def shortcut(call: Call, kernel: Kernel, execute: Execute) -> Execute:
    """The kernel's own complete matmul, or its own product with an epilogue, where it has one; else ``execute``.

    Takes ``(a, b, out)`` where it is ``kernel.direct``, and ``(a, b, out, c, bias, alpha, beta, stream)`` where it is
    ``kernel.direct_epilogue``.
    """
    if call.exact and not call.problem.demands:
        if call.problem.plain:
            return kernel.direct or execute
        if kernel.direct_epilogue is not None and call.a.ndim > 1 and _ndim(call.b) > 1:
            return _direct_or(kernel.direct_epilogue, execute)
    return execute


def _direct_or(direct: Execute, execute: Execute) -> Execute:
    """``direct``, or ``execute`` for sizes at which it is faster."""

    def run(a: Array, b: Array, out: Array | None, *rest: Any) -> Array:
        result = direct(a, b, out, *rest)
        return execute(a, b, out, *rest) if result is NotImplemented else result

    return run


def warm(call: Call, kernel: Kernel, execute: Execute, operands: tuple[Array, ...]) -> Execute:
    """What calls of a kind that was seen before run: :func:`shortcut`, after a look at the state that changes what a
    product of torch tensors means.
    """
    run = shortcut(call, kernel, execute)
    if isinstance(call.arrays, TorchHostArrays):
        return tensors.unmodified(run, tuple(x.dtype for x in operands if tensors.is_tensor(x)))
    return run


def by_options(
    run: Execute, alone: bool, options: Iterable[str], alpha: Any = 1, beta: Any = 0
) -> Callable[[Array, Array, Array | None, Mapping[str, Any]], Array]:
    """``(a, b, out, options) -> result``: ``run`` for calls that give the options of these names, and no others.

    ``alone``: it takes a, b and out alone. ``alpha`` and ``beta`` are the values where they are not given.
    """
    given = frozenset(options)
    if alone:
        return lambda a, b, out, options: run(a, b, out)
    extra = tuple(name for name in EXTRA if name in given)
    if extra or "stream" in given:

        def everything(a: Array, b: Array, out: Array | None, options: Mapping[str, Any]) -> Array:
            get = options.get
            more = {name: options[name] for name in extra if options[name] is not None}
            return run(
                a, b, out, get("c"), get("bias"), get("alpha", alpha), get("beta", beta), stream_handle(get("stream")),
                *((more,) if more else ()),
            )  # fmt: skip

        return everything
    # The commonest sets of options are read without looking for others, which takes a tenth of a call's overhead.
    read = given.intersection(("c", "bias", "alpha", "beta"))
    if not read:
        return lambda a, b, out, options: run(a, b, out, None, None, alpha, beta, None)
    if read == {"bias"}:
        return lambda a, b, out, options: run(a, b, out, None, options["bias"], alpha, beta, None)
    if read == {"alpha"}:
        return lambda a, b, out, options: run(a, b, out, None, None, options["alpha"], beta, None)
    if read == {"c", "beta"}:
        return lambda a, b, out, options: run(a, b, out, options["c"], None, alpha, options["beta"], None)

    def epilogue(a: Array, b: Array, out: Array | None, options: Mapping[str, Any]) -> Array:
        get = options.get
        return run(a, b, out, get("c"), get("bias"), get("alpha", alpha), get("beta", beta), None)

    return epilogue


def same_out(run: Callable[[Array, Array, Array], Array], shape: tuple[int, ...]) -> Callable[..., Array]:
    """``run`` for an ``out`` of this shape only: a ufunc broadcasts a product to a larger stack."""

    def checked(a: Array, b: Array, out: Array) -> Array:
        if out.shape != shape:
            raise OutputError("out", f"shape {out.shape} (NumPy: non-broadcastable output operand)", f"shape {shape}")
        return run(a, b, out)

    return checked


def run_once(call: Call, backend: str, kernel: Kernel, a: Array, b: Array, request: Request) -> Array:
    """The product in a new array, by this kernel; exceptions become those of :mod:`gemmhub.errors`."""
    execute = bind(call, backend, kernel)
    return first_run(call, backend, kernel, execute, a, b, None, request)


def first_run(
    call: Call, backend: str, kernel: Kernel, execute: Execute, a: Array, b: Array, out: Array | None, request: Request
) -> Array:
    """Run by the shortcut where there is one, else in full; exceptions become those of :mod:`gemmhub.errors`."""
    run = shortcut(call, kernel, execute)
    if run is not execute:
        try:
            result = run(a, b, out) if call.problem.plain else run(a, b, out, *request.rest[:-1])
        except Exception:
            pass  # as in every later call, execute() finds the reason and reports it
        except BaseException as error:
            if propagates(error):
                raise
        else:
            return product(result, call, out, backend)
    return execute(a, b, out, *request.rest)


def product(result: Any, call: Call, out: Array | None, backend: str) -> Array:
    """``result`` of a kernel's ``direct``; KernelError where it is not the product that ``call`` asks for."""
    shape, dtype = call.out_shape, call.problem.out.dtype
    if out is not None and result is not out:
        raise KernelError(backend, f"its direct returned a {type(result).__name__}, not out")
    if not isinstance(result, (np.ndarray, np.generic)):
        raise KernelError(backend, f"its direct returned a {type(result).__name__}, not an array of shape {shape}")
    if result.shape != shape or result.dtype != dtype:
        given = f"an array of shape {result.shape} and dtype {result.dtype}"
        raise KernelError(backend, f"its direct returned {given}, not of shape {shape} and dtype {dtype}")
    return result


def _meets(
    overlap: Callable[[Array, Array], bool], out: Array, read: Iterable[object], c: Array | None, target: Array
) -> bool:
    operands = [x for x in read if isinstance(x, np.ndarray)]
    if c is not None and not same_memory(c, target):
        operands.append(c)
    return any(overlap(out, x) for x in operands)
