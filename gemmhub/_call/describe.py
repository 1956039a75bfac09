"""From what the caller passed to the problem: operands, shapes, strides, dtypes, all checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays.find import arrays_of
from gemmhub._arrays.host.operands import NUMPY, SEQUENCES
from gemmhub._arrays.spec.operands import SpecArrays, without_data
from gemmhub._base.geometry import MAX_ALIGNMENT, DeviceView, alignment, as_matrix, broadcast_shapes, expand
from gemmhub._call.options import Request
from gemmhub.array_library import ArrayLibrary
from gemmhub.capability import Device
from gemmhub.epilogues import EPILOGUES
from gemmhub.errors import DeviceError, DTypeError, InputError, OutputError, ShapeError
from gemmhub.layout import MatrixLayout
from gemmhub.lowering import fold_batch
from gemmhub.operands import OPERANDS, WRITTEN, Described, Operand, Operands, Product, described, layout, sums_dtype
from gemmhub.packed import PackedB
from gemmhub.problem import GemmProblem

Array = Any


@dataclass(frozen=True)
class Call:
    """One described call: native operands, the problem, and facts for checks and conversions around the kernel."""

    arrays: ArrayLibrary
    problem: GemmProblem
    out_shape: tuple[int, ...]
    """As numpy.matmul would return it."""
    a: Array
    b: Array
    out: Array | None
    exact: bool
    """Whether operands but a packed one, and out, are numpy.ndarray itself: neither subclasses nor sequences that
    become arrays."""
    natural: bool
    """Whether the dtype of the result is that of the table, and not one that the caller chose."""
    product: Product
    """The shape and dtype facts that operands must fit."""
    operands: Mapping[str, Array]
    """The operands beside a, b and out by name, as kernels get them."""
    packed: bool
    """Whether b is a :class:`PackedB`, kept as it is or packed by the backend that the problem names."""


def describe(a: Any, b: Any, out: Any, request: Request, *, specs: bool = False) -> Call:
    """Check the operands, which may be ``specs`` where the caller reads no data, and describe the problem.

    Raises ShapeError, DTypeError, OutputError, DeviceError or InputError, naming the argument.
    """
    packed = b if isinstance(b, PackedB) else None
    packed_by = None if packed is None else packed.backend
    arrays = common_library(a, b, out, request)
    if isinstance(arrays, SpecArrays) and not specs:
        raise without_data()
    native_a = operand(arrays, a, "a")
    if packed is None:
        native_b = operand(arrays, b, "b")
        b_shape, b_dtype = native_b.shape, native_b.dtype
    else:
        native_b = packed.payload
        b_shape, b_dtype = packed.shape, packed.dtype
    batch, m, n, k, shape = product_shapes(native_a.shape, b_shape)
    if request.symmetric:
        check_square(native_a.shape, b_shape, packed_by)
    out_shape, out_columns = result_shape(shape, n, len(b_shape), request.activation)

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
        actual = f"{error.given} (NumPy: Cannot cast ufunc 'matmul' output)"
        raise OutputError("out", actual, error.allowed, "give it another dtype, or convert a and b") from None
    natural, compute, precision = numerics(request, native_a.dtype, b_dtype, out_dtype, arrays.device)

    if request.stream is not None and arrays.device.type == "cpu":
        raise InputError("stream", "given for CPU arrays", "None for CPU arrays")
    a_ndim, b_ndim = native_a.ndim, len(b_shape)
    a_layout = layout(as_matrix(native_a, "a"), batch)
    if packed_by is None:
        b_layout = layout(as_matrix(native_b, "b"), batch)
    else:
        b_layout = MatrixLayout(k, n, n, 1, batch, (0,) * len(batch))
    if native_out is None:
        out_layout = MatrixLayout.contiguous(m, out_columns, batch)
    else:
        out_layout = layout(expand(native_out, a_ndim, b_ndim), batch)
    new_aligned = out_dtype.itemsize if arrays.device.type == "cpu" else MAX_ALIGNMENT
    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        a=Operand(native_a.dtype, a_layout, alignment(native_a)),
        b=Operand(b_dtype, b_layout, alignment(native_b) if packed_by is None else b_dtype.itemsize),
        out=Operand(out_dtype, out_layout, new_aligned if native_out is None else alignment(native_out)),
        compute_dtype=compute,
        batch=batch,
        alpha_is_one=bool(request.alpha == 1),
        activation=request.activation,
        precision=precision,
        reproducible=request.settings.reproducible,
        device=arrays.device,
        packed_by=packed_by,
        symmetric=request.symmetric,
    )
    if packed is not None:
        packed.check(problem)
    product = Product(m, n, k, batch, a_ndim, b_ndim, shape, out_dtype, natural)
    operands, descriptions = _operands(arrays, request, product)
    if descriptions:
        problem = replace(problem, operands=Operands(descriptions))
    if batch and arrays.device.type != "cpu":
        problem = fold_batch(problem) or problem  # rows one after the other are decided as one matrix
    exact = all(type(x) is np.ndarray for x in (a, b, out) if x is not None and x is not packed)
    return Call(
        arrays, problem, out_shape, native_a, native_b, native_out, exact, wanted is None, product, operands,
        packed is not None,
    )  # fmt: skip


def numerics(
    request: Request, a: dtypes.DType, b: dtypes.DType, out: dtypes.DType, device: Device
) -> tuple[dtypes.DType, dtypes.DType, str]:
    """Check the scalars and the activation of a request; return the accumulator that is natural for these dtypes, that
    of the request, and the precision where it has an effect."""
    natural = dtypes.compute_dtype(a, b, out)
    request.check_scalars(a, b, out)
    compute = request.scaled(natural, out, device)
    single = dtypes.name_of(compute) in ("float32", "complex64")
    reducible = single and any(x.itemsize > 2 and dtypes.info(x).inexact for x in (a, b))
    return natural, compute, request.settings.precision if reducible else "ieee"


def check_square(a: tuple[int, ...], b: tuple[int, ...], packed_by: str | None = None) -> None:
    """Refuse operands whose product is no square matrix, and a packed b."""
    if packed_by is not None:
        raise InputError("symmetric", "True with a packed b", "an unpacked b", "multiply by b itself")
    if min(len(a), len(b)) < 2 or a[-2] != b[-1]:
        raise ShapeError("symmetric", f"True for shapes {a} and {b}", "a (..., n, k) and b (..., k, n)")


def result_shape(
    shape: tuple[int, ...], n: int, b_ndim: int, activation: str | None
) -> tuple[tuple[int, ...], int]:  # fmt: skip
    """The shape of the result, and its columns, of a product of this shape and ``n`` columns."""
    if activation is None or EPILOGUES[activation].arity == 1:
        return shape, n
    if b_ndim == 1 or n % 2:
        actual = "a vector b" if b_ndim == 1 else f"{n} columns of the product"
        raise ShapeError("activation", f"{activation} with {actual}", "an even number of columns: gate and value")
    columns = EPILOGUES[activation].columns(n)
    return (*shape[:-1], columns), columns


def _operands(
    arrays: ArrayLibrary, request: Request, product: Product
) -> tuple[dict[str, Array], dict[str, Described]]:  # fmt: skip
    """The operands of a request as kernels get them, and their descriptions."""
    natives: dict[str, Array] = {}
    descriptions: dict[str, Described] = {}
    for name, x in request.operands.items():
        native, description = described(name, view(arrays, x, name, product), product)
        if name != "c" or request.beta != 0:
            natives[name], descriptions[name] = native, description
    return natives, descriptions


def view(arrays: ArrayLibrary, x: object, name: str, product: Product) -> Array:
    """An operand natively; one that is written is checked as ``out`` is."""
    native = operand(arrays, x, name)
    if not OPERANDS[name].written:
        return native
    try:
        return arrays.target(x, product.shape if name == "pre_activation" else native.shape)
    except OutputError as error:
        raise OutputError(name, error.given, error.allowed, error.remedy) from None


def refuse_shared(
    overlap: Callable[[Array, Array], bool], operands: Mapping[str, Array], out: Array | None
) -> None:  # fmt: skip
    """OutputError where an operand that is written shares memory with another one, or with ``out``."""
    for name in WRITTEN:
        if name not in operands:
            continue
        for other, x in (*operands.items(), ("out", out)):
            if other != name and isinstance(x, (np.ndarray, DeviceView)) and overlap(operands[name], x):
                raise OutputError(name, f"it shares memory with {other}", "memory of its own", f"pass a new {name}=")


def beside(arrays: ArrayLibrary, request: Request) -> Request:
    """``request`` with arrays of its own for the operands that are written, so that the caller's are not."""
    own = {name: arrays.clone(x) if name in WRITTEN else x for name, x in request.operands.items()}
    return replace(request, operands=own)


def new_pre_activation(a: Any, b: Any, out: Any, request: Request) -> tuple[ArrayLibrary, Array]:
    """The operands' library, and a new native array for the pre-activation of their product: with all columns of the
    product; :func:`~gemmhub.operands.sums_dtype` has its dtype.
    """
    arrays = common_library(a, b, out, request)
    left, right = operand(arrays, a, "a"), b if isinstance(b, PackedB) else operand(arrays, b, "b")
    shape = product_shapes(left.shape, right.shape)[-1]
    wanted = request.out_dtype if out is None else operand(arrays, out, "out").dtype
    try:
        out_dtype = dtypes.output_dtype(left.dtype, right.dtype, wanted)
    except DTypeError:
        describe(a, b, out, request)  # raises what the same call raises without this argument
        raise
    with arrays.on(request.stream):
        return arrays, arrays.empty(shape, sums_dtype(left.dtype, right.dtype, out_dtype))


def immutable(native: Array) -> bool:
    """Whether no call writes an array on the CPU: those of JAX are immutable."""
    return isinstance(native, np.ndarray) and not native.flags.writeable


def common_library(a: Any, b: Any, out: Any, request: Request) -> ArrayLibrary:
    named = {"a": a, "b": b, "out": out, **request.operands}
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
        actual = ", ".join(f"{key} is {f.name} on {f.device}" for key, f in arrays.items())
        raise DeviceError(
            ", ".join(arrays), actual, "operands of one kind of array on one device", "convert or move one of them"
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
