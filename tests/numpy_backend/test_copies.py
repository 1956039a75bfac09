"""Every copy of an operand that numpy.matmul makes is one that explain() shows, with its size."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from products import BOOL, C64, F16, F32, F64, I8, I32, I64, U64

import gemmhub

M, K, N = 6, 20000, 5


def zeros(rows, cols, dtype):
    return np.zeros((rows, cols), dtype)


def unaligned(rows, cols, dtype):
    return np.ndarray((rows, cols), dtype, np.zeros(rows * cols * dtype.itemsize + 1, np.uint8), 1)


def packed_fields(rows, cols, dtype):
    return np.zeros((rows, cols), [("before", "i1"), ("x", dtype)])["x"]


def stepped(rows, cols, dtype):
    return np.zeros((2 * rows, 2 * cols), dtype)[::2, ::2]


def reversed_rows(rows, cols, dtype):
    return np.zeros((rows, cols), dtype)[::-1]


def repeated(rows, cols, dtype):
    return np.broadcast_to(np.zeros((1, cols), dtype), (rows, cols))


def turned(rows, cols, dtype):
    return np.zeros((cols, rows), dtype).T


def shown(a, b, **options):
    found = gemmhub.explain(a, b, backend="numpy", **options)["numpy"].copies
    return {copy.operand: copy.nbytes for copy in found}


CASES = [
    # a, b, out_dtype, element size of the copies of a and b (0: none)
    ((zeros, F64), (zeros, F64), None, (0, 0)),
    ((turned, F64), (turned, F64), None, (0, 0)),
    ((unaligned, F64), (zeros, F64), None, (8, 0)),
    ((zeros, F32), (unaligned, F32), None, (0, 4)),
    ((packed_fields, F64), (packed_fields, F64), None, (8, 8)),
    ((unaligned, I64), (zeros, I64), None, (8, 0)),
    ((stepped, I64), (reversed_rows, I64), None, (0, 0)),  # NumPy's loops take any strides
    ((zeros, I32), (zeros, I64), None, (8, 0)),
    ((zeros, I64), (zeros, I32), None, (0, 8)),
    ((stepped, I32), (unaligned, I32), I64, (8, 8)),
    ((zeros, I64), (zeros, I64), I32, (4, 4)),
    ((zeros, BOOL), (zeros, BOOL), None, (0, 0)),
    ((zeros, BOOL), (zeros, BOOL), I64, (8, 8)),
    ((zeros, U64), (zeros, I64), None, (0, 0)),  # blocks of these are converted
    ((unaligned, F16), (stepped, F16), None, (0, 0)),
    ((unaligned, I8), (stepped, I8), None, (0, 0)),
    ((zeros, F32), (unaligned, F64), None, (0, 8)),
]


@pytest.mark.parametrize(("left", "right", "out_dtype", "sizes"), CASES, ids=lambda x: getattr(x, "__name__", None))
@pytest.mark.parametrize("options", [{}, {"alpha": 2}], ids=["plain", "alpha"])
def test_what_is_copied_is_shown(left, right, out_dtype, sizes, options):
    if options and BOOL in (left[1], out_dtype or left[1]):
        pytest.skip("alpha of a logical product is 0 or 1")
    a, b = left[0](M, K, left[1]), right[0](K, N, right[1])
    out = gemmhub.matmul(a, b, out_dtype=out_dtype, **options)
    expected = {name: x.size * size for name, x, size in (("a", a, sizes[0]), ("b", b, sizes[1])) if size}
    if options and out.dtype.kind in "iu" and a.itemsize > 1:  # NumPy's loops, then alpha in a new array
        expected["out"] = out.size * (max(sizes) or out.itemsize)
    assert shown(a, b, out=out, **options) == expected
    gemmhub.matmul(a, b, out=out, **options)
    tracemalloc.start()
    gemmhub.matmul(a, b, out=out, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(expected.values()) <= peak < sum(expected.values()) + 16384


@pytest.mark.parametrize("make", [stepped, reversed_rows, repeated])
def test_what_the_blas_cannot_address(make):
    """NumPy copies it since 2.3, in full, where no dimension is 1. (By malloc: tracemalloc does not see it.)"""
    a, b = make(M, K, F64), zeros(K, N, F64)
    assert shown(a, b) == {"a": 8 * M * K}
    assert shown(b.T, a.T) == {"b": 8 * M * K}
    assert shown(a, b[:, 0]) == {}
    assert shown(a[0], b) == {}
    assert shown(a, b, alpha=2) == {"a": 8 * M * K}
    assert shown(np.broadcast_to(a, (3, M, K)), zeros(K, N, C64)) == {}
    assert shown(a, np.zeros((3, K, N))) == {"a": 8 * M * K}
    assert shown(a[:0], b) == shown(a[:, :0], b[:0]) == {}


def test_a_result_is_copied_likewise():
    a, b = zeros(M, 7, F64), zeros(7, N, F64)
    size = 8 * M * N
    assert shown(a, b, out=zeros(M, N, F64)) == shown(a, b, out=turned(M, N, F64)) == {}
    assert shown(a, b, out=unaligned(M, N, F64)) == shown(a, b, out=stepped(M, N, F64)) == {"out": size}
    assert shown(a, b, out=stepped(M, N, F64), alpha=2) == {}  # written by blocks
    integers = a.astype(I64), b.astype(I64)
    assert shown(*integers, out=stepped(M, N, I64)) == {}
    assert shown(*integers, out=unaligned(M, N, I64)) == {"out": size}


def test_a_packed_operand_is_copied_where_it_is_converted():
    a = np.zeros((M, K), I64)
    b = gemmhub.pack(np.zeros((K, N), U64), a_dtype=I64)
    assert shown(a, b) == {}
    assert shown(a, b, out_dtype=I64) == {"b": 8 * K * N}
    assert shown(unaligned(M, K, F64), gemmhub.pack(np.zeros((K, N)))) == {"a": 8 * M * K}
