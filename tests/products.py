"""Helpers of the tests of products: operands of any dtype and layout, and the check of a result."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from gemmhub import accuracy, dtypes
from gemmhub.epilogues import columns

F16, F32, F64 = (np.dtype(x) for x in (np.float16, np.float32, np.float64))
C64, C128 = np.dtype(np.complex64), np.dtype(np.complex128)
BF16 = np.dtype(ml_dtypes.bfloat16)
E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
I8, I16, I32, I64 = (np.dtype(f"i{size}") for size in (1, 2, 4, 8))
U8, U16, U32, U64 = (np.dtype(f"u{size}") for size in (1, 2, 4, 8))
BOOL = np.dtype(bool)
FLOATS = (F16, BF16, F32, F64)
INTEGERS = (I8, I16, I32, I64, U8, U16, U32, U64)
NATURAL = (*FLOATS, C64, C128, *INTEGERS, BOOL)
"""Every dtype that has a result of its own; fp8 needs out_dtype."""


def draw(rng, shape, dtype):
    """Random numbers: normal ones of a float dtype, all values of an integer one."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    if dtype == BOOL:
        return rng.random(shape) < 0.3
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.kind == "c" else x).astype(dtype)


def relaid(rng, x):
    """(view, memory): the values of ``x`` in a random layout, surrounded by other bytes.

    Axes are permuted, reversed and stepped through; now and then the elements are fields of packed records,
    so that strides are no multiples of the itemsize and nothing is aligned.
    """
    dtype = x.dtype
    record = np.dtype([("before", "i1"), ("x", dtype)]) if rng.random() < 0.2 else dtype
    order = rng.permutation(x.ndim)
    steps = rng.choice([-2, -1, -1, 1, 1, 1, 1, 2, 3], x.ndim)
    sizes = [x.shape[axis] * abs(step) + 2 for axis, step in zip(order, steps)]
    memory = rng.integers(0, 256, (int(np.prod(sizes)) * record.itemsize), np.uint8)
    base = memory.view(record).reshape(sizes)
    base = base if record == dtype else base["x"]
    cuts = []
    for axis, step in zip(order, steps):
        span = slice(1, 1 + x.shape[axis] * abs(step))
        cuts.append((span, slice(None, None, step)))
    view = base[(*(span for span, _ in cuts), ...)][(*(step for _, step in cuts), ...)]
    view = view.transpose(np.argsort(order))
    view[...] = x
    return view, memory


def natural_result(a, b):
    """The table at the head of gemmhub/dtypes.py, written independently."""
    if {a, b} <= {I8, U8}:
        return I32
    if BF16 not in (a, b):
        return np.result_type(a, b)
    other = a if b == BF16 else b
    floats = {BF16: BF16, F16: F32, F32: F32, F64: F64, C64: C64, C128: C128}
    return {**floats, BOOL: BF16, I8: BF16, U8: BF16, I16: F32, U16: F32}.get(other, F64)


def product_shape(a, b):
    """What numpy.matmul makes of these shapes (it raises ValueError where they do not multiply)."""
    return np.matmul(np.empty(a, np.bool_), np.empty(b, np.bool_)).shape


def ratio(
    got, a, b, *, out_dtype=None, alpha=1, beta=0, c=None, bias=None, activation=None, precision="ieee"
):  # fmt: skip
    """The largest |error| / bound of a result, after a check of its shape and dtype. Right where at most 1."""
    a, b = np.asarray(a), np.asarray(b)
    wanted = natural_result(a.dtype, b.dtype) if out_dtype is None else np.dtype(out_dtype)
    assert got.dtype == wanted
    shape = product_shape(a.shape, b.shape)
    assert got.shape == (shape if b.ndim == 1 else (*shape[:-1], columns(activation, shape[-1])))
    compute = dtypes.scaled_dtype(dtypes.compute_dtype(a.dtype, b.dtype, wanted), wanted, alpha, beta)
    model = accuracy.error_model(a.dtype, b.dtype, wanted, compute, precision)
    if bias is not None and b.ndim == 1 and a.ndim > 1:
        bias = bias[:, np.newaxis]
    if c is not None:
        c = _with_dropped_axes(np.broadcast_to(c, shape), a.ndim, b.ndim)
    reference = accuracy.reference(
        a if a.ndim > 1 else a[np.newaxis],
        b if b.ndim > 1 else b[:, np.newaxis],
        model=model,
        alpha=alpha,
        beta=beta,
        c=c,
        bias=bias,
        activation=activation,
        out_dtype=wanted,
    )
    return np.max(reference.ratio(_with_dropped_axes(np.asarray(got), a.ndim, b.ndim)), initial=0.0)


def _with_dropped_axes(x, a_ndim, b_ndim):
    x = x if b_ndim > 1 else x[..., np.newaxis]
    return x if a_ndim > 1 else x[..., np.newaxis, :]


def integer_product(a, b, out_dtype):
    """A product in unbounded integers, reduced to the width of ``out_dtype``."""
    exact = np.matmul(a.astype(object), b.astype(object))
    bits = 8 * out_dtype.itemsize
    wrapped = np.asarray(exact) % (1 << bits)
    if out_dtype.kind == "i":
        wrapped = np.where(wrapped >= 1 << (bits - 1), wrapped - (1 << bits), wrapped)
    return wrapped.astype(out_dtype)
