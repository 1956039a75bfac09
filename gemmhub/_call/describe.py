"""From what the caller passed to the problem: operands, shapes, strides, dtypes, all checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays.find import arrays_of
from gemmhub._arrays.host.operands import NUMPY, SEQUENCES
from gemmhub._base.geometry import MOST_ALIGNED, DeviceView, alignment, as_matrix, broadcast, broadcast_shapes, expand
from gemmhub._call.options import Request
from gemmhub.array_library import ArrayLibrary
from gemmhub.dtypes import DType
from gemmhub.errors import DeviceError, DTypeError, InputError, OutputError, ShapeError
from gemmhub.layout import MatrixLayout
from gemmhub.lowering import fold_batch
from gemmhub.packed import PackedB
from gemmhub.problem import Bias, GemmProblem, Operand, Scale

Array = Any


@dataclass(frozen=True)
class Call:
    """One described call: native operands, the problem, and what has to be done around the kernel."""

    arrays: ArrayLibrary
    problem: GemmProblem
    out_shape: tuple[int, ...]
    """As numpy.matmul would return it."""
    a: Array
    b: Array
    c: Array | None
    bias: Array | None
    out: Array | None
    exact: bool
    """Whether operands and out are numpy.ndarray itself: neither subclasses nor what has to be made an array."""
    natural: bool
    """Whether the dtype of the result is that of the table, and not one that was asked for."""
    extra: Mapping[str, Array]
    """The operands of :data:`EXTRA` by name."""
    packed: bool
    """Whether b is a :class:`PackedB`, kept as it is or packed by the backend that the problem names."""


def describe(a: Any, b: Any, out: Any, request: Request) -> Call:
    """Check the operands and describe the problem.

    Raises ShapeError, DTypeError, OutputError, DeviceError or InputError, naming the argument.
    """
    packed = b if isinstance(b, PackedB) else None
    packed_by = None if packed is None else packed.backend
    arrays = _common_library(a, b, out, request)
    native_a = operand(arrays, a, "a")
    if packed is None:
        native_b = operand(arrays, b, "b")
        b_shape, b_dtype = native_b.shape, native_b.dtype
    else:
        native_b = packed.payload
        b_shape, b_dtype = packed.shape, packed.dtype
    batch, m, n, k, out_shape = product_shapes(native_a.shape, b_shape)

    native_out = None if out is None else arrays.target(out, out_shape)
    wanted = request.out_dtype if native_out is None else native_out.dtype
    if native_out is not None and request.out_dtype is not None and native_out.dtype != request.out_dtype:
        raise OutputError(
            "out", f"dtype {native_out.dtype} but out_dtype is {request.out_dtype}", "equal dtypes", "drop out_dtype="
        )
    try:
        if native_out is not None:
            dtypes.info(native_out.dtype)
        out_dtype = dtypes.output_dtype(native_a.dtype, b_dtype, wanted)
    except DTypeError as error:
        if native_out is None:
            raise
        given = f"{error.given} (NumPy: Cannot cast ufunc 'matmul' output)"
        raise OutputError("out", given, error.allowed, "give it another dtype, or convert a and b") from None
    natural = dtypes.compute_dtype(native_a.dtype, b_dtype, out_dtype)
    request.check_scalars(native_a.dtype, b_dtype, out_dtype)
    compute = request.scaled(natural, out_dtype, arrays.device)

    if request.stream is not None and arrays.device.kind == "cpu":
        raise InputError("stream", "given for CPU arrays", "None for CPU arrays")
    a_ndim, b_ndim = native_a.ndim, len(b_shape)
    a_layout = layout(as_matrix(native_a, "a"), batch)
    if packed_by is None:
        b_layout = layout(as_matrix(native_b, "b"), batch)
    else:
        b_layout = MatrixLayout(k, n, n, 1, batch, (0,) * len(batch))
    native_c, c_operand = _addend(arrays, request, out_shape, batch, a_ndim, b_ndim, out_dtype, natural)
    native_bias, bias = _bias(arrays, request, m, n, a_ndim, b_ndim, out_dtype, natural)
    if native_out is None:
        out_layout = MatrixLayout.contiguous(m, n, batch)
    else:
        out_layout = layout(expand(native_out, a_ndim, b_ndim), batch)
    new_aligned = out_dtype.itemsize if arrays.device.kind == "cpu" else MOST_ALIGNED
    single = dtypes.name_of(compute) in ("float32", "complex64")
    reducible = single and any(x.itemsize > 2 and dtypes.info(x).inexact for x in (native_a.dtype, b_dtype))
    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        a=Operand(native_a.dtype, a_layout, alignment(native_a)),
        b=Operand(b_dtype, b_layout, alignment(native_b) if packed_by is None else b_dtype.itemsize),
        out=Operand(out_dtype, out_layout, new_aligned if native_out is None else alignment(native_out)),
        compute_dtype=compute,
        batch=batch,
        c=c_operand,
        bias=bias,
        alpha_is_one=bool(request.alpha == 1),
        activation=request.activation,
        precision=request.settings.precision if reducible else "ieee",
        deterministic=request.settings.deterministic,
        device=arrays.device,
        packed_by=packed_by,
    )
    if packed is not None:
        packed.check(problem)
    extra = {name: EXTRA[name](arrays, x, problem) for name, x in request.extra.items()}
    if extra:
        problem = replace(problem, **{name: described for name, (_, described) in extra.items()})
    if batch and arrays.device.kind != "cpu":
        problem = fold_batch(problem) or problem  # rows one after the other are decided as one matrix
    exact = all(type(x) is np.ndarray for x in (a, b, out) if x is not None)
    return Call(
        arrays, problem, out_shape, native_a, native_b, native_c, native_bias, native_out, exact, wanted is None,
        {name: native for name, (native, _) in extra.items()}, packed is not None,
    )  # fmt: skip


def _common_library(a: Any, b: Any, out: Any, request: Request) -> ArrayLibrary:
    named = {"a": a, "b": b, "out": out, **request.arrays}
    libraries: dict[str, ArrayLibrary] = {}
    for argument, x in named.items():
        if isinstance(x, PackedB):
            if argument != "b":
                raise InputError(argument, "a packed operand", "only b may be packed")
            continue
        if x is not None:
            libraries[argument] = arrays_of(x, argument)
        elif argument in ("a", "b"):
            raise InputError(argument, "None", "an array")
    # Plain sequences follow the array they meet.
    arrays = {key: f for key, f in libraries.items() if not isinstance(named[key], SEQUENCES)}
    if len({(f.name, f.device) for f in arrays.values()}) > 1:
        given = ", ".join(f"{key} is {f.name} on {f.device}" for key, f in arrays.items())
        raise DeviceError(
            ", ".join(arrays), given, "operands of one kind of array on one device", "convert or move one of them"
        )
    return next(iter(arrays.values()), NUMPY)


def operand(arrays: ArrayLibrary, x: object, argument: str) -> Array:
    native = arrays.view(x, argument)
    if native.dtype.kind == "O":
        raise DTypeError(argument, "an array of objects", ", ".join(dtypes.SUPPORTED), "convert it to numbers")
    try:
        dtypes.info(native.dtype)
    except DTypeError:
        raise dtypes.unsupported(argument, native.dtype) from None
    return native


def product_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], int, int, int, tuple[int, ...]]:
    """numpy.matmul's rules: (batch, m, n, k, shape of the result)."""
    for argument, shape in (("a", a), ("b", b)):
        if not shape:
            raise ShapeError(argument, "a scalar (0 dimensions)", "1 dimension or more", "use * for scalars")
    m, k = (1, a[0]) if len(a) == 1 else a[-2:]
    inner, n = (b[0], 1) if len(b) == 1 else b[-2:]
    if k != inner:
        raise ShapeError(
            "a, b", f"shapes {a} and {b}: inner dimensions {k} and {inner} differ", "(..., m, k) and (..., k, n)"
        )
    try:
        batch = broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ShapeError(
            "a, b", f"batch dimensions {a[:-2]} and {b[:-2]} do not broadcast", "equal sizes, or 1"
        ) from None
    return batch, m, n, k, batch + (m,) * (len(a) > 1) + (n,) * (len(b) > 1)


def layout(x: Array, batch: tuple[int, ...]) -> MatrixLayout:
    """The layout, strides in elements. Where a stride is no multiple of the itemsize the matrices have no dense order,
    and batch strides are only known not to be 0; the operand's alignment is 1 then.
    """
    size = x.itemsize
    if any(s % size for s in x.strides):
        *outer, rows, cols = (*((s // size or 1) if s else 0 for s in x.strides[:-2]), 0, 0)
    else:
        *outer, rows, cols = (s // size for s in x.strides)
    missing = len(batch) - len(outer)
    strides = (0,) * missing + tuple(stride if x.shape[i] != 1 else 0 for i, stride in enumerate(outer))
    return MatrixLayout(x.shape[-2], x.shape[-1], rows, cols, batch, strides)


def _addend(
    arrays: ArrayLibrary,
    request: Request,
    out_shape: tuple[int, ...],
    batch: tuple[int, ...],
    a_ndim: int,
    b_ndim: int,
    out_dtype: DType,
    compute: DType,
) -> tuple[Array | None, Operand | None]:
    if request.c is None:
        return None, None
    native = operand(arrays, request.c, "c")
    if native.dtype not in (out_dtype, compute):
        raise DTypeError("c", f"dtype {native.dtype}", _either(out_dtype, compute), "convert it")
    try:
        expanded = expand(broadcast(native, out_shape), a_ndim, b_ndim)
    except ValueError:
        raise ShapeError("c", f"shape {native.shape}", f"shapes that broadcast to {out_shape}") from None
    if request.beta == 0:
        return None, None
    return expanded, Operand(native.dtype, layout(expanded, batch), alignment(native))


def _bias(
    arrays: ArrayLibrary, request: Request, m: int, n: int, a_ndim: int, b_ndim: int, out_dtype: DType, compute: DType
) -> tuple[Array | None, Bias | None]:
    if request.bias is None:
        return None, None
    native = operand(arrays, request.bias, "bias")
    if native.dtype not in (out_dtype, compute):
        raise DTypeError("bias", f"dtype {native.dtype}", _either(out_dtype, compute), "convert it")
    along_m = b_ndim == 1 and a_ndim > 1
    shapes = {(m,): "m"} if along_m else {(n,): "n", (1, n): "n", (m, 1): "m"}
    axis = shapes.get(native.shape)
    if axis is None:
        raise ShapeError("bias", f"shape {native.shape}", " or ".join(map(str, shapes)))
    vector = flat(native, "bias")
    stride = vector.strides[0] // vector.itemsize if vector.size > 1 else 1  # of one element it means nothing
    return vector, Bias(native.dtype, axis, stride)


def _scale(
    arrays: ArrayLibrary, x: object, problem: GemmProblem, argument: str, axis: str
) -> tuple[Array, Scale]:  # fmt: skip
    out, size = problem.out.dtype, problem.m if axis == "m" else problem.n
    if dtypes.info(out).kind != "float":
        raise DTypeError(argument, f"given for a result of {out}", "real floating results", "give out_dtype=")
    native = operand(arrays, x, argument)
    if native.dtype != np.float32:
        remedy = "convert it, or pass one number as alpha="
        raise DTypeError(argument, f"dtype {native.dtype}", "float32", remedy)
    whole = (size, 1) if axis == "m" else (1, size)
    if native.size != 1 and native.shape not in ((size,), whole):
        raise ShapeError(argument, f"shape {native.shape}", f"one element, ({size},) or {whole}")
    vector = flat(native, argument)
    if native.size == 1:
        return vector, Scale(None)
    return vector, Scale(axis, vector.strides[0] // vector.itemsize)


EXTRA: dict[str, Callable[[ArrayLibrary, object, GemmProblem], tuple[Array, Any]]] = {
    "scale_a": partial(_scale, argument="scale_a", axis="m"),
    "scale_b": partial(_scale, argument="scale_b", axis="n"),
}
"""How each operand of :data:`gemmhub._call.options.EXTRA` is described, given the problem without it: the native vector
and the field of the problem.
"""


def _either(out_dtype: DType, compute: DType) -> str:
    """The dtypes that c and bias may have, for an error."""
    return " or ".join(dict.fromkeys((str(out_dtype), str(compute))))


def flat(bias: Array, argument: str = "bias") -> Array:
    """A bias or scales as a vector: a view. Where elements are not aligned or strides are no multiples of the itemsize,
    a copy on the CPU; on devices, where gemmhub moves no data, InputError.
    """
    if isinstance(bias, DeviceView):
        bias = bias if bias.ndim else bias.inserted(0)
        long = max(range(bias.ndim), key=lambda axis: bias.shape[axis])
        step = bias.strides[long] if bias.size > 1 else bias.itemsize
        vector = DeviceView(bias.address, bias.dtype, (bias.size,), (step,), bias.owner)
        if alignment(vector) < vector.itemsize:
            raise InputError(argument, f"address or stride is no multiple of {vector.itemsize}", "aligned elements")
        return vector
    vector = bias.reshape(-1)
    return vector if alignment(vector) == vector.itemsize else vector.copy()
