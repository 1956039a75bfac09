"""Analysis of a call with Dask arrays: shapes, dtypes and dimensions of blocked operands, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize

from gemmhub import dtypes
from gemmhub._arrays.find import arrays_of
from gemmhub._base.promises import pins_rows
from gemmhub._base.wording import instance
from gemmhub._call.describe import product_shapes
from gemmhub._call.options import DEFAULTS, Request, refuse_operands
from gemmhub._call.options import request as parse_request
from gemmhub._doors.dask.packed import PackedBlocks
from gemmhub.capability import CPU
from gemmhub.dtypes import DType
from gemmhub.epilogues import ELEMENTWISE, EPILOGUES
from gemmhub.errors import DTypeError, InputError, OutputError, ShapeError
from gemmhub.operands import addend_dtypes
from gemmhub.packed import PackedB

Array = Any
Chunks = tuple[int, ...]
Dimension = str
"""A dimension of the product: "m", "n", "k", or "0", "1", ... of the batch, outermost first."""

ADDENDS = ("c", "bias")
"""Operands beside a and b that are cut into blocks."""
HOW = ("precision", "reproducible", "backend")
"""Options of the product of each block: those of :attr:`gemmhub._call.options.Request.in_force`."""

QUERY_PLANNING = hasattr(da.Array, "expr")
"""Whether Dask arrays are expressions: Dask reads its setting array.query-planning once, at import."""


@dataclass(frozen=True)
class Operand:
    """A Dask array, and the dimension of the product of each of its axes; None where it is broadcast."""

    array: Array
    axes: tuple[Dimension | None, ...]

    def chunks(self, dimension: Dimension) -> Chunks | None:
        """The operand's chunks along a dimension; None where it lacks the dimension."""
        return self.array.chunks[self.axes.index(dimension)] if dimension in self.axes else None

    def key(self, index: Mapping[Dimension, int]) -> tuple[Any, ...]:
        """The key of the block at ``index``."""
        return (self.name, *(0 if axis is None else index[axis] for axis in self.axes))

    @cached_property
    def name(self) -> str:
        """The prefix of the keys of its blocks, which an expression has once it is lowered."""
        key = self.array.__dask_keys__() if QUERY_PLANNING else (self.array.name,)
        while isinstance(key, list):
            key = key[0]
        return str(key[0])

    @property
    def nbytes(self) -> int:
        return int(prod(self.array.shape) * self.array.dtype.itemsize)

    def rechunked(self, chunks: Mapping[Dimension, Chunks]) -> Operand:
        """The operand with these ``chunks``; itself where it has them."""
        changed = {i: chunks[x] for i, x in enumerate(self.axes) if x is not None and chunks[x] != self.array.chunks[i]}
        return replace(self, array=self.array.rechunk(changed)) if changed else self


@dataclass(frozen=True)
class Product:
    """A validated call."""

    a: Operand
    b: Operand
    c: Operand | None
    bias: Operand | None
    packed: bool
    sizes: Mapping[Dimension, int]
    out_axes: tuple[Dimension, ...]
    out_dtype: DType
    accumulator: DType
    """Dtype of sums over blocks of k."""
    whole_k: str
    """Reason why k is not cut; empty where it may be."""
    request: Request
    options: Mapping[str, Any]
    """Options of the call without arrays; those of :data:`HOW` are in force here."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[x] for x in self.out_axes)

    @property
    def operands(self) -> tuple[Operand, ...]:
        return tuple(x for x in (self.a, self.b, self.c, self.bias) if x is not None)


def describe(a: Any, b: Any, options: Mapping[str, Any]) -> Product:
    """Validate the call and describe its product.

    Raises ShapeError, DTypeError, OutputError, DeviceError or InputError, naming the argument.
    """
    if options.get("out") is not None:
        raise OutputError(
            "out", "an array", "no out with arrays of Dask, which are lazy",
            "use the result, or write it to a store: gemmhub.distributed.store(result, target)",
        )  # fmt: skip
    arguments = {name: value for name, value in options.items() if name != "out"}
    refuse_operands(arguments, ADDENDS, "with arrays of Dask")
    request = parse_request(arguments)  # type: ignore[arg-type]
    if request.activation is not None and EPILOGUES[request.activation].arity > 1:
        raise InputError(
            "activation", f"{request.activation}, which takes pairs of columns, with arrays of Dask",
            ", ".join(ELEMENTWISE), "multiply without it, and apply it to the result",
        )  # fmt: skip
    if request.stream is not None:
        raise InputError("stream", "given for arrays of Dask", "None", "each worker works on its current stream")
    if isinstance(b, PackedB):
        raise InputError(
            "b", "packed in this process", "a packed array of Dask", "pack the array: gemmhub.pack(b_dask)"
        )
    for name, x in (("a", a), *request.operands.items()):
        if isinstance(x, (PackedB, PackedBlocks)):
            raise InputError(name, "a packed operand", "only b may be packed")
    shapes, operand_dtypes = [], []
    for name, x in (("a", a), ("b", b)):
        shape, dtype = facts(x, name)
        shapes.append(shape)
        operand_dtypes.append(dtype)
    batch, m, n, k, out_shape = product_shapes(shapes[0], shapes[1])
    out_dtype = dtypes.output_dtype(operand_dtypes[0], operand_dtypes[1], request.out_dtype)
    natural = dtypes.compute_dtype(operand_dtypes[0], operand_dtypes[1], out_dtype)
    request.check_scalars(operand_dtypes[0], operand_dtypes[1], out_dtype)
    compute = request.scaled(natural, out_dtype, CPU)

    names = tuple(map(str, range(len(batch))))
    sizes = {**dict(zip(names, batch)), "m": m, "n": n, "k": k}
    a_axes = (*_batch_axes(shapes[0][:-2], names, sizes), *(("m", "k") if len(shapes[0]) > 1 else ("k",)))
    b_axes = (*_batch_axes(shapes[1][:-2], names, sizes), *(("k", "n") if len(shapes[1]) > 1 else ("k",)))
    out_axes = names + ("m",) * (len(shapes[0]) > 1) + ("n",) * (len(shapes[1]) > 1)
    packed = isinstance(b, PackedBlocks)
    if packed and b.a_dtype != operand_dtypes[0]:
        raise InputError(
            "b", f"packed for a of {b.a_dtype}, a is {operand_dtypes[0]}", f"a of {b.a_dtype}",
            f"pack again with a_dtype={operand_dtypes[0]}",
        )  # fmt: skip
    known = {
        axis: chunks
        for x, axes in ((a, a_axes), (b, b_axes))
        if isinstance(x, (da.Array, PackedBlocks))
        for axis, chunks in zip(axes, x.chunks)
        if axis is not None
    }
    left = Operand(as_dask(a, a_axes, known), a_axes)
    right = Operand(b.blocks if packed else as_dask(b, b_axes, known), b_axes)
    allowed = addend_dtypes(out_dtype, natural)
    c = _addend(request, out_shape, out_axes, allowed, known)
    bias = _bias(request, sizes, len(shapes[0]), len(shapes[1]), allowed, known)
    plain = {name: value for name, value in arguments.items() if name not in (*ADDENDS, *HOW)}
    reason = _whole_k(request, natural, compute, out_dtype)
    if packed and len(b.chunks[0]) > 1 and (reason or _finishes(request, natural, out_dtype)):
        reason = reason or f"integers of a packed b become {out_dtype} after the whole sum"
        raise InputError(
            "b", f"packed in {len(b.chunks[0])} blocks of k, though {reason}",
            "b packed in one block of k, or not packed", "pack again: gemmhub.pack(b.rechunk({0: -1}))",
        )  # fmt: skip
    return Product(
        left, right, c, bias, packed, sizes, out_axes, out_dtype, natural, reason, request,
        {**{name: value for name, value in plain.items() if value != DEFAULTS.get(name)}, **request.in_force},
    )  # fmt: skip


def facts(x: Any, argument: str) -> tuple[tuple[int, ...], DType]:
    """Shape and dtype of an operand, in memory or not. ShapeError where the sizes of chunks are unknown."""
    if x is None:
        raise InputError(argument, "None", "an array")
    if isinstance(x, da.Array):
        unknown = [axis for axis, chunks in enumerate(x.chunks) if any(map(np.isnan, chunks))]
        if unknown:
            raise ShapeError(
                argument, f"chunks of unknown size along axis {' and '.join(map(str, unknown))} (shape {x.shape})",
                "chunks of known sizes along every axis, from which the result's shape and blocks follow",
                "call .compute_chunk_sizes() on it first",
            )  # fmt: skip
        shape, dtype = x.shape, x.dtype
    elif isinstance(x, PackedBlocks):
        return x.shape, x.dtype
    else:
        arrays = arrays_of(x, argument)
        native = arrays.view(x, argument)
        shape, dtype = native.shape, native.dtype
    if dtype.kind == "O":
        raise DTypeError(argument, "an array of objects", ", ".join(dtypes.SUPPORTED), "convert it to numbers")
    try:
        dtypes.info(dtype)
    except DTypeError:
        raise dtypes.unsupported(argument, dtype) from None
    return tuple(map(int, shape)), dtype


def _batch_axes(shape: Chunks, names: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[str | None, ...]:
    """The dimensions of an operand's batch axes, aligned on the right; None for broadcast axes."""
    own = names[len(names) - len(shape) :]
    return tuple(name if size == sizes[name] else None for name, size in zip(own, shape))


def as_dask(x: Any, axes: tuple[Dimension | None, ...], known: Mapping[Dimension, Chunks]) -> Array:
    """An operand in memory as a Dask array with the chunks of the others, in blocks of its own library."""
    if isinstance(x, da.Array):
        return x
    if isinstance(x, np.generic) or not hasattr(x, "shape"):
        x = np.asarray(x)
    shape = tuple(map(int, x.shape))
    dtype = dtypes.as_dtype(x.dtype, "dtype")
    wanted = tuple(known.get(axis, "auto") if axis is not None else -1 for axis in axes)
    chunks = da.core.normalize_chunks(wanted, shape, dtype=dtype)
    if isinstance(x, np.ndarray) or hasattr(x, "__array_function__"):
        return da.from_array(x, chunks=chunks, asarray=False)
    if QUERY_PLANNING:
        raise InputError(
            "a, b", f"{instance(type(x))} in memory, with array.query-planning on", "arrays of NumPy or cupy",
            "turn array.query-planning off, or convert it to a Dask array",
        )  # fmt: skip
    starts = [np.cumsum((0, *sizes)) for sizes in chunks]
    name = f"gemmhub-operand-{tokenize(id(x), chunks)}"
    layer = {}
    for index in product(*(range(len(sizes)) for sizes in chunks)):
        here = tuple(slice(int(starts[i][j]), int(starts[i][j + 1])) for i, j in enumerate(index))
        layer[(name, *index)] = x[here]
    return da.Array(layer, name, chunks, dtype=dtype)


def _addend(
    request: Request, out_shape: tuple[int, ...], out_axes: tuple[Dimension, ...], allowed: tuple[DType, ...],
    known: Mapping[Dimension, Chunks],
) -> Operand | None:  # fmt: skip
    addend = request.operands.get("c")
    if addend is None:
        return None
    shape, dtype = facts(addend, "c")
    _check_dtype("c", dtype, allowed)
    try:
        fits = np.broadcast_shapes(shape, out_shape) == out_shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError("c", f"shape {shape}", f"shapes that broadcast to {out_shape}")
    if request.beta == 0:
        return None
    own = out_axes[len(out_axes) - len(shape) :]
    sizes = out_shape[len(out_shape) - len(shape) :]
    axes = tuple(axis if size == full else None for axis, size, full in zip(own, shape, sizes))
    return Operand(as_dask(addend, axes, known), axes)


def _bias(
    request: Request, sizes: Mapping[Dimension, int], a_ndim: int, b_ndim: int, allowed: tuple[DType, ...],
    known: Mapping[Dimension, Chunks],
) -> Operand | None:  # fmt: skip
    vector = request.operands.get("bias")
    if vector is None:
        return None
    shape, dtype = facts(vector, "bias")
    _check_dtype("bias", dtype, allowed)
    m, n = sizes["m"], sizes["n"]
    along_m = b_ndim == 1 and a_ndim > 1
    shapes: dict[tuple[int, ...], tuple[Dimension | None, ...]] = {
        (n,): ("n",),
        (1, n): (None, "n"),
        (m, 1): ("m", None),
    }
    shapes = {(m,): ("m",)} if along_m else shapes
    axes = shapes.get(shape)
    if axes is None:
        raise ShapeError("bias", f"shape {shape}", " or ".join(map(str, shapes)))
    # A vector has one row, or one column, that the result does not have.
    if a_ndim == 1:
        axes = tuple(None if axis == "m" else axis for axis in axes)
    if b_ndim == 1:
        axes = tuple(None if axis == "n" else axis for axis in axes)
    return Operand(as_dask(vector, axes, known), axes)


def _check_dtype(argument: str, dtype: DType, allowed: tuple[DType, ...]) -> None:
    if dtype not in allowed:
        raise DTypeError(argument, f"dtype {dtype}", " or ".join(map(str, allowed)), "convert it")


def _finishes(request: Request, natural: DType, out_dtype: DType) -> bool:
    """Whether a sum of integers is converted to a floating result only once it is complete."""
    return out_dtype.kind not in "biu" and natural.kind in "biu"


def _whole_k(request: Request, natural: DType, compute: DType, out_dtype: DType) -> str:
    """The reason why the sum over k must be one product, not the sum of several; empty where it need not."""
    if pins_rows(request.settings.reproducible):
        return f"reproducible={request.settings.reproducible!r} pins the order of the sum"
    if compute != natural:
        return f"alpha or beta need {compute} for what is summed in {natural}"
    if not all(np.isfinite(complex(x)) for x in (request.alpha, request.beta)):
        return "alpha or beta are not finite"
    if _finishes(request, natural, out_dtype) and request.beta != 0:
        return f"integers that become {out_dtype} are added to c after the whole sum"
    return ""
