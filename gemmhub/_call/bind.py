"""A decided problem bound to a kernel: what a warm call runs.

:func:`bind` makes a function of arrays; it turns operands into what the kernel takes (views, never copies),
makes the result, and guards the two promises a kernel relies on: ``out`` overlaps no other operand, and
empty results need no work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays.host.operands import NUMPY
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.host import TorchHostArrays
from gemmhub._base.geometry import DeviceView, as_matrix, expand, same_memory
from gemmhub._base.guard import propagates, translated
from gemmhub._base.wording import instance
from gemmhub._call import bind_device
from gemmhub._call.describe import Call, refuse_shared, view
from gemmhub._call.options import Request, stream_handle
from gemmhub.backend import Kernel
from gemmhub.capability import Copy
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import KernelError, OutputError
from gemmhub.operands import OPERANDS, WRITTEN
from gemmhub.packed import PackedB
from gemmhub.problem import GemmProblem

Array = Any
Execute = Callable[..., Array]
Run = Callable[[Array, Array, Any, Mapping[str, Any]], Array]
"""``(a, b, out, options) -> result``."""
_NONE: Mapping[str, Any] = MappingProxyType({})


def overlaps(call: Call) -> tuple[Copy, ...]:
    """The temporary a call needs because ``out`` shares memory with an operand (c in place is free)."""
    if call.out is None or call.problem.empty:
        return ()
    arrays, problem = call.arrays, call.problem
    operands = {"a": call.a, "b": call.b, **call.operands}
    if "c" in operands and same_memory(operands["c"], expand(call.out, call.a.ndim, _ndim(call.b))):
        del operands["c"]
    for name, operand in operands.items():
        if isinstance(operand, (np.ndarray, DeviceView)) and arrays.overlap(call.out, operand):
            size = problem.m * problem.n * problem.batch_count * problem.out.dtype.itemsize
            return (Copy("out", size, f"it overlaps {name}, so the product is made beside it and copied"),)
    return ()


def _ndim(b: object) -> int:
    return b.ndim if isinstance(b, (np.ndarray, DeviceView)) else 2


def bind(call: Call, backend: str, kernel: Kernel, any_size: bool = False) -> Execute:
    """``execute(a, b, out=None, operands={}, alpha=1, beta=0, stream=None) -> result``.

    For operands of the same classes, shapes and dtypes (and layouts, where the backend is sensitive to them)
    as ``call``'s; with ``any_size``, of NumPy's arrays of any sizes. Raises KernelError or
    AllocationError.
    """
    if call.problem.device.type != "cpu":
        return bind_device.bind(call, kernel.run, lambda error: translated(error, backend))
    arrays, problem, fixed_shape, fixed_empty = call.arrays, call.problem, call.out_shape, call.problem.empty
    facts = call.product  # and not the call, which holds its arrays
    out_dtype, run = problem.out.dtype, kernel.run if call.exact else on_views(kernel, problem)
    a_ndim, b_ndim = call.a.ndim, 2 if problem.packed_by else _ndim(call.b)
    scalar = fixed_shape == () and arrays is NUMPY
    a_dtype, b_dtype = problem.a.dtype, problem.b.dtype
    # numpy.int64 and numpy.longlong are equal dtypes, so that calls with either come here; each has its own scalars.
    follows = call.natural and arrays is NUMPY and out_dtype.kind in "iu" and not problem.packed_by
    written = arrays.increment_version if isinstance(arrays, TorchHostArrays) else None
    gate = None if problem.activation is None else EPILOGUES[problem.activation]

    def execute(
        a: Any, b: Any, out: Any = None, operands: Mapping[str, Any] = _NONE, alpha: Any = 1, beta: Any = 0,
        stream: Any = None,
    ) -> Array:  # fmt: skip
        left = arrays.view(a, "a")
        right: Any = b.payload if isinstance(b, PackedB) else arrays.view(b, "b")
        out_shape, empty, product = fixed_shape, fixed_empty, facts
        if any_size:
            shape = left.shape[:-1] + right.shape[-1:] * (b_ndim > 1)
            out_shape = shape if gate is None or b_ndim == 1 else (*shape[:-1], gate.columns(shape[-1]))
            empty = 0 in out_shape
            product = product.resized(shape) if operands else product
        if out is not None:
            result = arrays.target(out, out_shape)
        elif follows and not (left.dtype is a_dtype and right.dtype is b_dtype):
            result = arrays.empty(out_shape, dtypes.result_dtype(left.dtype, right.dtype))
        else:
            result = arrays.empty(out_shape, out_dtype)
        if not empty:
            target = expand(result, a_ndim, b_ndim)
            named = {
                name: OPERANDS[name].native(view(arrays, x, name, product), product)
                for name, x in operands.items()
                if name != "c" or beta != 0
            }
            beside = out is not None and _meets(arrays.overlap, result, (left, right), named, target)
            refuse_shared(arrays.overlap, {"a": left, "b": right, **named}, None if out is None else result)
            destination = arrays.empty_strided_like(target) if beside else target
            if written is not None:
                for x in (out, *map(operands.get, WRITTEN)):
                    if x is not None:
                        written(x)
            try:
                # Infinity and NaN are results: the caller's state must not turn one into an exception.
                with np.errstate(all="ignore"):
                    run(
                        as_matrix(left, "a"), right if problem.packed_by else as_matrix(right, "b"), destination,
                        alpha, beta, stream, **named,
                    )  # fmt: skip
            except BaseException as error:
                raise translated(error, backend) from error
            if beside:
                target[...] = destination
        elif "amax" in operands:
            view(arrays, operands["amax"], "amax", product)[...] = 0  # of no elements
        if out is not None:
            return out
        return result[()] if scalar else arrays.wrap(result, (a, b, *operands.values()))

    return execute


def on_views(kernel: Kernel, problem: GemmProblem) -> Callable[..., None]:
    """The function that runs a problem of views of another library's arrays on the CPU: ``kernel.run``, or with an
    epilogue the kernel's own product, where that is faster. It has the arguments of ``kernel.run``.
    """
    if kernel.direct_epilogue is None or problem.plain or any(name in WRITTEN for name in problem.operands):
        return kernel.run
    direct = kernel.direct_epilogue(problem.m * problem.n * problem.batch_count)
    if direct is None:
        return kernel.run
    along_rows = problem.bias is not None and problem.bias.axis == "m"

    def on_arrays(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, **operands: Array) -> None:
        options = {"alpha": alpha, "beta": beta, **operands}
        if along_rows:
            options["bias"] = operands["bias"][:, np.newaxis]
        direct(a, b, out, options)

    return on_arrays


def shortcut(call: Call, kernel: Kernel) -> Callable[..., Array] | None:
    """The kernel's own complete matmul, ``(a, b, out)``, of a plain problem, or its own product with an epilogue,
    ``(a, b, out, options)``; None where it has none for this call.
    """
    return _shortcuts(call, kernel)(prod(call.product.shape))


def _shortcuts(call: Call, kernel: Kernel) -> Callable[[int], Callable[..., Array] | None]:
    """:func:`shortcut` as a function of the number of elements of the product."""
    problem, direct, with_epilogue = call.problem, kernel.direct, kernel.direct_epilogue
    opened = _of_packed if call.packed else _unchanged
    if call.exact and problem.plain:
        return lambda size: opened(direct)
    matrices = call.a.ndim > 1 and _ndim(call.b) > 1 and not any(name in WRITTEN for name in problem.operands)
    if not (call.exact and matrices and with_epilogue is not None):
        return lambda size: None
    return lambda size: opened(with_epilogue(size))


def _unchanged(product: Callable[..., Array] | None) -> Callable[..., Array] | None:
    return product


def _of_packed(product: Callable[..., Array] | None) -> Callable[..., Array] | None:
    """``product``, which takes what a :class:`PackedB` holds, as a function of the :class:`PackedB`."""
    return product and (lambda a, b, *rest: product(a, b.payload, *rest))


def warm(call: Call, execute: Execute, operands: tuple[Array, ...]) -> Execute:
    """``execute`` for later calls, after a look at the state that changes what a product of torch tensors means."""
    if isinstance(call.arrays, TorchHostArrays):
        return tensors.unmodified(execute, tuple(x.dtype for x in operands if tensors.is_tensor(x)))
    return execute


def by_options(
    direct: Callable[..., Array] | None, plain: bool, execute: Execute, options: Mapping[str, Any], alpha: Any = 1,
    beta: Any = 0,
) -> Run:  # fmt: skip
    """The function that runs calls with options of these names, and no others, of which the same are None.

    ``direct``: the :func:`shortcut` of the call, whose problem is ``plain`` or not. ``alpha`` and ``beta`` are the
    values where a call omits them.
    """
    if direct is not None:  # on the CPU, where a stream is refused
        if plain:
            return lambda a, b, out, options: direct(a, b, out)
        if alpha == 1 and beta == 0:
            return direct
        scalars = {"alpha": alpha, "beta": beta}
        return lambda a, b, out, options: direct(a, b, out, {**scalars, **options})
    names = tuple(name for name in OPERANDS if options.get(name) is not None)

    def run(a: Array, b: Array, out: Array | None, options: Mapping[str, Any]) -> Array:
        operands = {name: options[name] for name in names}
        stream = stream_handle(options.get("stream"))
        return execute(a, b, out, operands, options.get("alpha", alpha), options.get("beta", beta), stream)

    return run


def by_size(call: Call, backend: str, kernel: Kernel, options: Mapping[str, Any]) -> Callable[[int], Run]:
    """Return :func:`by_options` of a kernel that takes any sizes, as a function of the number of elements of the
    product.
    """
    execute, plain = bind(call, backend, kernel, any_size=True), call.problem.plain
    shortcuts, in_full = _shortcuts(call, kernel), by_options(None, plain, execute, options)

    def of_size(size: int) -> Run:
        direct = shortcuts(size)
        return in_full if direct is None else by_options(direct, plain, execute, {})

    return of_size


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
    direct = shortcut(call, kernel)
    if direct is not None:
        try:
            result = direct(a, b, out) if call.problem.plain else direct(a, b, out, request.named)
        except Exception:
            pass  # as in every later call, execute() finds the reason and reports it
        except BaseException as error:
            if propagates(error):
                raise
        else:
            return product(result, call, out, backend)
    return execute(a, b, out, *request.rest)


def product(result: Any, call: Call, out: Array | None, backend: str) -> Array:
    """``result`` of a kernel's ``direct``; KernelError where it is not the product that ``call`` describes."""
    shape, dtype = call.out_shape, call.problem.out.dtype
    if out is not None and result is not out:
        raise KernelError(backend, f"its direct returned {instance(type(result))}, not out")
    if not isinstance(result, (np.ndarray, np.generic)):
        raise KernelError(backend, f"its direct returned {instance(type(result))}, not an array of shape {shape}")
    if result.shape != shape or result.dtype != dtype:
        actual = f"an array of shape {result.shape} and dtype {result.dtype}"
        raise KernelError(backend, f"its direct returned {actual}, not of shape {shape} and dtype {dtype}")
    return result


def _meets(
    overlap: Callable[[Array, Array], bool], out: Array, read: Iterable[object], named: Mapping[str, Array],
    target: Array,
) -> bool:  # fmt: skip
    """Whether ``out`` shares memory with an operand, other than by being ``c``."""
    others = [x for name, x in named.items() if not (name == "c" and same_memory(x, target))]
    return any(isinstance(x, np.ndarray) and overlap(out, x) for x in (*read, *others))
