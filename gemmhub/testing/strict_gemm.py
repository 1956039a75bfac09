"""A strict model of a BLAS GEMM on flat buffers, for tests of lowerings.

:func:`strict_gemm` has the parameters of cuBLAS, muBLAS or CBLAS, and is slow. It has one storage order a
call and takes only numbers: no strides, shapes or views that could hide a wrong leading dimension. It checks
its parameters as the reference BLAS does with xerbla (netlib dgemm.f), and also that nothing outside the
buffers is read or written, that no element of D is written twice, and that D overlaps no operand. It shares
no code with :mod:`gemmhub.layout`.

:func:`run_call` runs the calls of :func:`gemmhub.lowering.lower` through it::

    call = lower(problem, "col")
    run_call(call, Flat(a_buffer), Flat(b_buffer), Flat(out_buffer, offset))
    # out_buffer now contains the product, everything else in it is unchanged
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gemmhub.epilogues import ELEMENTWISE, EPILOGUES
from gemmhub.errors import InputError
from gemmhub.lowering import BlasCall

Array = Any


class StrictGemmError(InputError):
    """A parameter that a BLAS would reject, or that would make it access other memory.

    ``argument`` is the name of the parameter of :func:`strict_gemm`.
    """


class Flat(NamedTuple):
    """One-dimensional memory, and the element in it where the first matrix starts."""

    buffer: Array
    offset: int = 0


def strict_gemm(
    order: str,
    trans_a: bool,
    trans_b: bool,
    m: int,
    n: int,
    k: int,
    alpha: complex,
    a: Flat,
    lda: int,
    b: Flat,
    ldb: int,
    beta: complex,
    c: Flat | None,
    ldc: int,
    d: Flat,
    ldd: int,
    *,
    bias: Array | None = None,
    bias_axis: str | None = None,
    activation: str | None = None,
    batch: tuple[int, int, int, int, int] | None = None,
) -> None:
    """Compute ``D = activation(alpha * op(A) op(B) + beta * C + bias)`` for each matrix of ``batch``.

    op(A) is m x k, op(B) k x n; with ``trans_a`` A is stored as k x m, with ``trans_b`` B is stored as n x k.
    In ``order`` "col" element (i, j) of a stored matrix is at ``offset + i + j * ld``, in "row" at
    ``offset + i * ld + j``. ``batch`` is (count, stride_a, stride_b, stride_c, stride_d) in elements.
    ``bias`` has one element per row of D (``bias_axis`` "m") or per column ("n"). With ``beta`` 0, C is never
    read and may be None; A and B are read for any ``alpha``. Sums are computed in the widest dtype of the
    dtype class (float64, complex128, or int64 where every dtype is an integer) and rounded once, to D's dtype.

    Raises :class:`StrictGemmError` and then has written nothing.
    """
    if order not in ("col", "row"):
        raise StrictGemmError("order", repr(order), '"col" or "row"')
    for name, flag in (("trans_a", trans_a), ("trans_b", trans_b)):
        if not isinstance(flag, bool):
            raise StrictGemmError(name, repr(flag), "True or False")
    count, *strides = batch if batch is not None else (1, 0, 0, 0, 0)
    for name, size in (("m", m), ("n", n), ("k", k), ("batch", count)):
        if size < 0:
            raise StrictGemmError(name, str(size), "0 or more")
    stored = {
        "a": (k, m) if trans_a else (m, k),
        "b": (n, k) if trans_b else (k, n),
        "c": (m, n),
        "d": (m, n),
    }
    for name, ld in (("lda", lda), ("ldb", ldb), ("ldc", ldc), ("ldd", ldd)):
        rows, cols = stored[name[-1]]
        min_ld = max(1, rows if order == "col" else cols)
        if ld < min_ld:
            raise StrictGemmError(name, str(ld), f"at least {min_ld}, for {rows} x {cols} stored by {order}")
    if (bias is None) != (bias_axis is None) or bias_axis not in (None, "m", "n"):
        raise StrictGemmError("bias_axis", repr(bias_axis), '"m" or "n" with a bias, None without')
    if bias is not None and bias.shape != (m if bias_axis == "m" else n,):
        raise StrictGemmError("bias", f"shape {bias.shape}", f"one element for each of {bias_axis}")
    if activation is not None and activation not in ELEMENTWISE:
        raise StrictGemmError("activation", repr(activation), f"None, {', '.join(ELEMENTWISE)}")
    if c is None and beta != 0:
        raise StrictGemmError("c", "None", "a buffer, where beta is not 0")

    read_c = c if beta != 0 else None
    where_a = _positions("a", a, order, stored["a"], lda, count, strides[0])
    where_b = _positions("b", b, order, stored["b"], ldb, count, strides[1])
    where_c = None if read_c is None else _positions("c", read_c, order, stored["c"], ldc, count, strides[2])
    where_d = _positions("d", d, order, stored["d"], ldd, count, strides[3])
    if np.unique(where_d).size != where_d.size:
        raise StrictGemmError("d", f"ldd {ldd}, batch stride {strides[3]}", "each element written once")
    written = _addresses(d, where_d)
    for name, flat, where in (("a", a, where_a), ("b", b, where_b)):
        if np.intersect1d(_addresses(flat, where), written).size:
            raise StrictGemmError("d", f"memory shared with {name}", "memory of its own")
    if read_c is not None and where_c is not None:
        read = _addresses(read_c, where_c)
        if np.intersect1d(read, written).size and not np.array_equal(read, written):
            raise StrictGemmError("d", "memory shared with c", "memory of its own, or exactly that of c")

    dtypes = [x.buffer.dtype for x in (a, b, d)] + [x.dtype for x in (bias,) if x is not None]
    work = _widest(dtypes + ([] if read_c is None else [read_c.buffer.dtype]))
    left, right = a.buffer[where_a].astype(work), b.buffer[where_b].astype(work)
    left = left.transpose(0, 2, 1) if trans_a else left
    right = right.transpose(0, 2, 1) if trans_b else right
    result = work.type(alpha) * np.matmul(left, right)
    if read_c is not None:
        result += work.type(beta) * read_c.buffer[where_c].astype(work)
    if bias is not None:
        result += bias.astype(work)[:, np.newaxis] if bias_axis == "m" else bias.astype(work)
    with np.errstate(over="ignore"):  # infinity is the correct rounding of values beyond D's range
        d.buffer[where_d] = (EPILOGUES[activation](result) if activation else result).astype(d.buffer.dtype)


def run_call(
    call: BlasCall,
    a: Flat,
    b: Flat,
    out: Flat,
    c: Flat | None = None,
    *,
    alpha: complex = 1,
    beta: complex = 0,
    bias: Array | None = None,
    activation: str | None = None,
) -> None:
    """Run ``call`` as a plugin should: one strided batch for its innermost dimension, a loop for the rest.

    ``a``, ``b``, ``out`` and ``c`` are the problem's own operands, unswapped: their memory, and the position
    of the element with all indices 0.
    """
    first, second = (b, a) if call.swapped else (a, b)
    batch = None
    if call.batch:
        inner = call.batch[-1]
        batch = (inner.count, inner.stride_a, inner.stride_b, inner.stride_c, inner.stride_d)
    for shift_a, shift_b, shift_c, shift_d in call.offsets(keep=1):
        strict_gemm(
            call.order,
            call.trans_a,
            call.trans_b,
            call.m,
            call.n,
            call.k,
            alpha,
            Flat(first.buffer, first.offset + shift_a),
            call.lda,
            Flat(second.buffer, second.offset + shift_b),
            call.ldb,
            beta,
            None if c is None else Flat(c.buffer, c.offset + shift_c),
            call.ldc,
            Flat(out.buffer, out.offset + shift_d),
            call.ldd,
            bias=bias,
            bias_axis=call.bias_axis,
            activation=activation,
            batch=batch,
        )


def _positions(name: str, flat: Flat, order: str, shape: tuple[int, int], ld: int, count: int, stride: int) -> Array:
    """The index in the buffer of every element of the batch, (count, rows, cols); all within the buffer."""
    if flat.buffer.ndim != 1:
        raise StrictGemmError(name, f"{flat.buffer.ndim} dimensions", "a one-dimensional buffer")
    matrix = np.arange(count, dtype=np.int64)[:, np.newaxis, np.newaxis]
    i = np.arange(shape[0], dtype=np.int64)[:, np.newaxis]
    j = np.arange(shape[1], dtype=np.int64)
    where = flat.offset + matrix * stride + (i + j * ld if order == "col" else i * ld + j)
    if where.size and not (where.min() >= 0 and where.max() < flat.buffer.size):
        extent = f"elements {where.min()} to {where.max()}"
        raise StrictGemmError(name, extent, f"0 to {flat.buffer.size - 1}, the extent of the buffer")
    return where


def _addresses(flat: Flat, where: Array) -> Array:
    """The addresses of those elements."""
    return flat.buffer.ctypes.data + where * flat.buffer.strides[0]


def _widest(dtypes: list[Any]) -> Any:
    if all(x.kind in "biu" for x in dtypes):
        return np.dtype(np.int64)
    return np.dtype(np.complex128 if any(x.kind == "c" for x in dtypes) else np.float64)
