"""The table of the operands of a product beside a, b and out: what each is, and where it enters.

``out = scale_out * activation(alpha * (a * scale_a) @ (b * scale_b) + beta * c + bias)``. An operand is a row of
:data:`OPERANDS`; the options of a call, its description, look-up keys, plans, the test of shared memory, gradients, the
conformance kit and the table in the documentation follow from it. A kernel gets an operand by its name, and only where
the problem has it.

Scales are matrices of float32 factors: along each dimension of their operand one for all, one for each element, or one
for each block of :data:`BLOCK` elements.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gemmhub import dtypes
from gemmhub._base.geometry import DeviceView, alignment, broadcast, expand
from gemmhub.dtypes import DType
from gemmhub.errors import DTypeError, InputError, ShapeError
from gemmhub.layout import MatrixLayout

Array = Any

BLOCK = 128
"""Elements of a block that has one scale."""


@dataclass(frozen=True)
class Operand:
    """One matrix (or stack of matrices) of a problem."""

    dtype: DType
    """Dtype of the elements."""
    layout: MatrixLayout
    """Rows, columns, batch dimensions and strides."""
    alignment: int = 16
    """Largest power of two, up to 256, that divides the address in bytes. Of CPU arrays: the itemsize, or 1 where
    elements are not aligned or strides are no multiples of the itemsize."""

    @property
    def form(self) -> str:
        """Its name in :attr:`gemmhub.backend.Backend.takes`."""
        return "matrix"

    @property
    def note(self) -> str:
        """Its text in the key of a tuning record."""
        return self.dtype.name

    @property
    def per_row(self) -> bool:
        """Whether a batch cannot be one matrix of more rows because of it."""
        return False


@dataclass(frozen=True)
class Bias:
    """A vector added to every row (``axis`` "n", length n) or to every column (``axis`` "m", length m)."""

    dtype: DType
    """Dtype of the elements: the result's or the accumulator's."""
    axis: str
    """The dimension that it runs along: "n" or "m"."""
    stride: int = 1
    """Stride in elements."""
    batch_strides: tuple[int, ...] = ()
    """Stride from group to group in elements, of a grouped product with a bias for each; empty where all share it."""

    @property
    def form(self) -> str:
        """Its name in :attr:`gemmhub.backend.Backend.takes`: its axis, after "batch " where each group has its own."""
        return "batch " * bool(self.batch_strides) + self.axis

    @property
    def note(self) -> str:
        """Its text in the key of a tuning record."""
        return f"{self.form.replace(' ', '_')}:{self.dtype.name}"

    @property
    def per_row(self) -> bool:
        return self.axis == "m"


@dataclass(frozen=True)
class Scale:
    """float32 factors of an operand, or of the result."""

    axis: str | None
    """ "m": one for each row of a; "n": one for each column of b; "n blocks": one for each :data:`BLOCK` columns of b;
    None: one for all rows or columns."""
    stride: int = 1
    """Stride along ``axis`` in elements."""
    depth: bool = False
    """Whether there is one for each :data:`BLOCK` elements along k; else one for all of k."""
    depth_stride: int = 0
    """Stride along k in elements."""
    batch_strides: tuple[int, ...] = ()
    """Strides of the problem's batch dimensions in elements, of a grouped one that from group to group; empty where all
    matrices share the factors."""

    @property
    def form(self) -> str:
        """The granularity, which :attr:`gemmhub.backend.Backend.takes` names: "tensor", "row", "column", "1x128",
        "128x128", "128x1"; after "batch " where each matrix has its own."""
        along = {None: "", "m": "row", "n": "column", "n blocks": "128"}[self.axis]
        if self.depth:
            along = {"": "tensor x 128", "row": "1x128", "column": "128x1", "128": "128x128"}[along]
        elif along == "128":
            along = "column blocks"
        return "batch " * bool(self.batch_strides) + (along or "tensor")

    @property
    def per_row(self) -> bool:
        return self.axis == "m" or bool(self.batch_strides)

    @property
    def note(self) -> str:
        """Its text in the key of a tuning record."""
        return self.form.replace(" ", "_")


Described = Operand | Bias | Scale


@dataclass(frozen=True)
class Product:
    """The facts of a product that its operands must fit."""

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a_ndim: int
    b_ndim: int
    shape: tuple[int, ...]
    """Shape of the product as numpy.matmul returns it, with all n columns."""
    out_dtype: DType
    accumulator: DType

    def resized(self, shape: tuple[int, ...]) -> Product:
        """Return the facts of a product of another shape, which convert its operands to native arrays."""
        return self if shape == self.shape else replace(self, shape=shape)


class Row(NamedTuple):
    """One operand."""

    name: str
    """The argument that it is passed as."""
    noun: str
    """The noun for it in refusals."""
    role: str
    """Where it enters: "term" (added to the product), "factor" (multiplies an operand), "result" (multiplies the
    result), "written"."""
    dtypes: Callable[[Product], tuple[DType, ...]]
    """The dtypes that it may have."""
    native: Callable[[Array, Product], Array]
    """``(view, product)``: the array as kernels get it. ValueError where the shape does not fit."""
    describe: Callable[[Array, Array, Product], Described | None]
    """``(view, native, product)``: its description; None for a shape that does not fit."""
    shapes: Callable[[Product], str]
    """The shapes that it may have, for errors."""
    pattern: Callable[[tuple[int, ...], int, int, int, tuple[int, ...]], object] | None
    """``(shape, m, n, k, batch)``: the facts of the shape that are the same for all sizes of the product, for calls of
    NumPy's matrices; False for a shape that has to be decided, or refused, by itself. None where all have to be."""
    summary: str
    """Shape, dtype and effect, for the documentation's table."""

    @property
    def written(self) -> bool:
        """Whether a call writes it."""
        return self.role == "written"


def addend_dtypes(out: DType, accumulator: DType) -> tuple[DType, ...]:
    """The dtypes of addends: the result's, the accumulator's, the epilogue's; float16 and bfloat16 where the result is
    of float8, because the biases of models in float8 are of 16 bits.
    """
    halves = _halves() if dtypes.saturates(out) else ()
    return tuple(dict.fromkeys((out, *halves, dtypes.epilogue_dtype(accumulator, out), accumulator)))


def _result_dtypes(product: Product) -> tuple[DType, ...]:
    return addend_dtypes(product.out_dtype, product.accumulator)


def _halves() -> tuple[DType, DType]:
    return np.dtype(np.float16), dtypes.as_dtype("bfloat16")


def _sum_dtypes(product: Product) -> tuple[DType, ...]:
    """The dtypes that the sums of an epilogue may be written in: the result's and the epilogue's; float16 and bfloat16
    for float8, whose range no scale brings them into."""
    epilogue = dtypes.epilogue_dtype(product.accumulator, product.out_dtype)
    if dtypes.saturates(product.out_dtype):
        return (epilogue, *_halves())
    return tuple(dict.fromkeys((product.out_dtype, epilogue)))


def sums_dtype(a: DType, b: DType, out: DType) -> DType:
    """The dtype of the pre-activation that a call makes: the result's, and of a result of float8 the epilogue's."""
    return dtypes.epilogue_dtype(dtypes.compute_dtype(a, b, out), out) if dtypes.saturates(out) else out


def _float32(product: Product) -> tuple[DType, ...]:
    return (np.dtype(np.float32),)


def _like_result(x: Array, product: Product) -> Array:
    return expand(broadcast(x, product.shape), product.a_ndim, product.b_ndim)


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


def _matrix(x: Array, native: Array, product: Product) -> Operand:
    return Operand(native.dtype, layout(native, product.batch), alignment(native))


def flat(x: Array, argument: str) -> Array:
    """``x`` as a vector: a view. Where elements are not aligned or strides are no multiples of the itemsize, a copy on
    the CPU; on devices, where gemmhub moves no data, InputError.
    """
    if isinstance(x, DeviceView):
        x = x if x.ndim else x.inserted(0)
        long = max(range(x.ndim), key=lambda axis: x.shape[axis])
        step = x.strides[long] if x.size > 1 else x.itemsize
        vector = DeviceView(x.address, x.dtype, (x.size,), (step,), x.owner)
        if alignment(vector) < vector.itemsize:
            raise _misaligned(argument, vector)
        return vector
    vector = x.reshape(-1)
    return vector if alignment(vector) == vector.itemsize else vector.copy()


def _misaligned(argument: str, x: Array) -> InputError:
    return InputError(argument, f"address or stride is no multiple of {x.itemsize}", "aligned elements")


def _bias_axes(product: Product) -> dict[tuple[int, ...], str]:
    if product.b_ndim == 1 and product.a_ndim > 1:
        return {(product.m,): "m"}
    return {(product.m, 1): "m", (product.n,): "n", (1, product.n): "n"}  # of one element: "n"


def _bias(x: Array, native: Array, product: Product) -> Bias | None:
    axis = _bias_axes(product).get(x.shape)
    if axis is None:
        return None
    stride = native.strides[0] // native.itemsize if native.size > 1 else 1  # of one element it means nothing
    return Bias(native.dtype, axis, stride)


def _bias_pattern(shape: tuple[int, ...], m: int, n: int, k: int, batch: tuple[int, ...]) -> object:
    if shape in ((n,), (1, n)):
        return "n", len(shape)
    return ("m",) if shape == (m, 1) else False


def blocks(size: int) -> int:
    """The number of blocks of :data:`BLOCK` elements that a dimension has."""
    return -(-size // BLOCK)


def _scale_native(argument: str) -> Callable[[Array, Product], Array]:
    """The function that makes a scale a stack of matrices, whose dimensions are those of the operand."""

    def native(x: Array, product: Product) -> Array:
        axis = 0 if argument == "scale_b" else x.ndim  # one dimension: rows of a, columns of b
        while x.ndim < 2:
            x = x.inserted(axis) if isinstance(x, DeviceView) else np.expand_dims(x, axis)
            axis = 0
        if not isinstance(x, DeviceView) and x.ndim > 2 and x.size == x.shape[-2] * x.shape[-1]:
            x = x.reshape(x.shape[-2:])  # all matrices share it, also where the batch is one matrix of more rows
        if alignment(x) < x.itemsize:
            if isinstance(x, DeviceView):
                raise _misaligned(argument, x)
            x = x.copy()
        return x

    return native


def _axes(argument: str, product: Product) -> tuple[dict[int, str | None], tuple[int, ...]]:
    """The sizes that a scale may have along its operand's own dimension, and along k."""
    depth = (1, blocks(product.k)) if product.k else (1,)
    if argument == "scale_a":
        return {product.m: "m", 1: None}, depth
    return {blocks(product.n): "n blocks", product.n: "n", 1: None}, depth


def _scale_describe(argument: str) -> Callable[[Array, Array, Product], Scale | None]:
    def describe(x: Array, native: Array, product: Product) -> Scale | None:
        sizes, depths = _axes(argument, product)
        *outer, own, inner = native.shape if argument == "scale_a" else (*native.shape[:-2], *native.shape[:-3:-1])
        *steps, own_step, inner_step = (x // native.itemsize for x in native.strides)
        if argument == "scale_b":
            own_step, inner_step = inner_step, own_step
        missing = len(product.batch) - len(outer)
        fits = own in sizes and inner in depths and x.ndim - 2 <= len(product.batch)
        if not fits or any(x not in (1, y) for x, y in zip(outer, product.batch[missing:])):
            return None
        axis, deep = sizes[own] if own > 1 else None, inner > 1
        batch = (0,) * missing + tuple(0 if size == 1 else step for size, step in zip(outer, steps))
        return Scale(axis, own_step if axis else 1, deep, inner_step if deep else 0, batch if any(batch) else ())

    return describe


def _scale_shapes(argument: str) -> Callable[[Product], str]:
    def shapes(product: Product) -> str:
        sizes, depths = _axes(argument, product)
        own = " or ".join(map(str, sorted({*sizes})))
        deep = " or ".join(map(str, sorted({*depths})))
        size = product.m if argument == "scale_a" else product.n
        pair = f"{own}, {deep}" if argument == "scale_a" else f"{deep}, {own}"
        return f"one element, ({size},), or ({pair}), and the batch dimensions before"

    return shapes


def _scale_pattern(argument: str) -> Callable[[tuple[int, ...], int, int, int, tuple[int, ...]], object]:
    def pattern(shape: tuple[int, ...], m: int, n: int, k: int, batch: tuple[int, ...]) -> object:
        size = m if argument == "scale_a" else n
        if shape in ((), (1,), (1, 1)):
            return "one", size == 1
        return "each" if shape in ((size,), (size, 1) if argument == "scale_a" else (1, size)) else False

    return pattern


def _remedy_of_scale(argument: str, shape: tuple[int, ...], product: Product) -> str:
    """The remedy for a matrix of factors that fits transposed, or the other operand; empty for others."""
    other = "scale_b" if argument == "scale_a" else "scale_a"
    if _fits(argument, shape[::-1], product):
        return f"pass {argument}.T"
    return f"it fits {other}: are the two exchanged?" if _fits(other, shape, product) else ""


def _fits(argument: str, shape: tuple[int, ...], product: Product) -> bool:
    sizes, depths = _axes(argument, product)
    own, inner = shape if argument == "scale_a" else shape[::-1]
    return own in sizes and inner in depths


def _one(x: Array, product: Product) -> Array:
    return flat(x, "scale_out")


def _one_written(x: Array, product: Product) -> Array:
    return flat(x, "amax") if isinstance(x, DeviceView) else x.reshape(-1)  # a view, aligned or not


def _one_describe(x: Array, native: Array, product: Product) -> Scale | None:
    return Scale(None) if native.size == 1 else None


def _scale(name: str, columns: str) -> Row:
    operand = name[-1]
    return Row(
        name, "quantization scales", "factor", _float32, _scale_native(name), _scale_describe(name),
        _scale_shapes(name), _scale_pattern(name),
        f"float32 factors of {operand}: one, one for each {columns}, or one for each block of {BLOCK} along k"
        + (" or n" if operand == "b" else "") + "; stacks have their own or share them",
    )  # fmt: skip


OPERANDS: dict[str, Row] = {
    row.name: row
    for row in (
        Row(
            "c", "an addend c", "term", _result_dtypes, _like_result, _matrix,
            lambda product: f"shapes that broadcast to {product.shape}",
            lambda shape, m, n, k, batch: shape == (*batch, m, n),
            "broadcasts to the product; dtype of the result or of the accumulator, float32 where 8-bit integers have a "
            "result of 16 bits, float16 or bfloat16 where the result is of float8; beta times it is added",
        ),
        Row(
            "bias", "a bias", "term", _result_dtypes, lambda x, product: flat(x, "bias"), _bias,
            lambda product: " or ".join(map(str, _bias_axes(product))), _bias_pattern,
            "(n,) or (1, n), added to every row, or (m, 1), added to every column; dtypes as of c",
        ),
        _scale("scale_a", "row"),
        _scale("scale_b", "column"),
        Row(
            "scale_out", "a scale of the result", "result", _float32, _one, _one_describe,
            lambda product: "one element", None, "one float32 factor, which multiplies the result after the activation",
        ),
        Row(
            "pre_activation", "a pre-activation to write", "written", _sum_dtypes, _like_result, _matrix,
            lambda product: f"shape {product.shape}", None,
            "what the activation is applied to; shape of the product; dtype of the result or of the "
            "accumulator, float32, float16 or bfloat16 where the result is of float8. True makes it, and returns "
            "(result, pre-activation)",
        ),
        Row(
            "amax", "a largest magnitude to write", "written", _float32, _one_written, _one_describe,
            lambda product: "one element", None,
            "one float32 element, the largest magnitude of the activation's result, before scale_out",
        ),
    )
}  # fmt: skip
"""The rows by name, in the order in which ``help()`` lists them."""

WRITTEN = tuple(name for name, row in OPERANDS.items() if row.written)
"""Names of the operands that a call writes."""


class Operands(Mapping[str, Described]):
    """The descriptions of a problem's operands by name, in the order of :data:`OPERANDS`. Immutable and hashable."""

    __slots__ = ("_hash", "_items")

    def __init__(self, descriptions: Mapping[str, Described | None] | None = None) -> None:
        descriptions = descriptions or {}
        unknown = descriptions.keys() - OPERANDS.keys()
        if unknown:
            raise TypeError(f"no operands of a product: {', '.join(sorted(unknown))}")
        self._items: dict[str, Any] = {
            name: descriptions[name] for name in OPERANDS if descriptions.get(name) is not None
        }
        self._hash = hash(tuple(self._items.items()))

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The description of an operand; ``default`` where the problem has none."""
        return self._items.get(name, default)

    # Those of Mapping enter Python for each item.
    def items(self) -> ItemsView[str, Described]:
        """The names and descriptions."""
        return self._items.items()

    def values(self) -> ValuesView[Described]:
        """The descriptions."""
        return self._items.values()

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._items.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operands) and self._items == other._items

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Operands], tuple[dict[str, Any]]]:
        return Operands, (self._items,)  # the hash of a string is of one process

    def __repr__(self) -> str:
        return f"Operands({self._items})"


NO_OPERANDS = Operands()
"""The operands of a product that has a, b and out alone."""


def described(name: str, x: Array, product: Product) -> tuple[Array, Described]:
    """Check an operand, and return it as kernels get it, with its description.

    Raises DTypeError, ShapeError or InputError, naming the argument.
    """
    row = OPERANDS[name]
    real = row.role in ("factor", "result") or name == "amax"
    if real and dtypes.info(product.out_dtype).kind not in ("float", "float8"):
        raise DTypeError(name, f"given for a result of {product.out_dtype}", "real floating results", "give out_dtype=")
    allowed = row.dtypes(product)
    if x.dtype not in allowed:
        remedy = "convert it" + (", or pass one number as alpha=" if row.role == "factor" else "")
        raise DTypeError(name, f"dtype {x.dtype}", " or ".join(map(str, allowed)), remedy)
    try:
        native = row.native(x, product)
        description = row.describe(x, native, product)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        description = None
    if description is None:
        remedy = _remedy_of_scale(name, x.shape, product) if row.role == "factor" and x.ndim == 2 else ""
        raise ShapeError(name, f"shape {x.shape}", row.shapes(product), remedy)
    return native, description
