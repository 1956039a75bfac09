"""The proof of an algorithm on the card, before it runs products with quantization scales.

Whether a version of the library reads the scales of a mode, and covers all of k, is not documented for each of its
algorithms. So each algorithm computes one small product of each kind, once a process, which is compared with the exact
result. The operands are zeros, ones and twos, the factors powers of two that differ from row to row and from block to
block: every sum is exact in float32, in any order, and rounded once. k has a remainder of 16 elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, byref, c_float, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gemmhub_nvidia.driver import Gpu

from gemmhub.dtypes import as_dtype, info
from gemmhub.operands import BLOCK, blocks
from gemmhub.scale_layouts import spread
from gemmhub_cublas.descriptors import (
    A_SCALE_POINTER,
    AMAX_POINTER,
    B_SCALE_POINTER,
    BIAS_POINTER,
    D_SCALE_POINTER,
    KEPT,
    HeuristicResult,
    Objects,
    scale_pointers,
)
from gemmhub_cublas.library import Library
from gemmhub_cublas.lower import FLOAT8, GELU, NAME, NO_EPILOGUE, RELU, Form, Matrix
from gemmhub_cublas.scales import BLOCK128, SCALAR, VEC128, strides

COPIES: dict[str, tuple[Any, ...]] = {
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
}
"""Functions of libcuda beside those of :mod:`gemmhub_nvidia.driver`, with their argument types: for proofs, and for the
copy of a bias that is not aligned."""
M, N = 160, 144
"""Sizes of the library's result: whole blocks of 128 and 16 elements more."""
_MIN_BLOCKS, _REMAINDER = 9, 16
"""Least number of whole blocks along k, and the elements after them."""
_PERIOD = 64
"""Distance along k of the elements of a row of A that are not 0. Every 64 rows have one in each column."""
_ALPHA, _A_FACTOR, _B_FACTOR, _RESULT_FACTOR = 2.0, 4.0, 2.0, 0.25
"""alpha, the factors of mode SCALAR, and that of D."""
_PLACED = 256
"""Alignment in bytes of each buffer."""
_NON_BLOCKING = 1

Array = Any


class _Product(NamedTuple):
    """The product of a proof: what is in memory before, by name, and what the library must write."""

    memory: dict[str, Array]
    result: Array
    """D, transposed."""
    largest: float
    """The largest magnitude of D before its factor."""


class Proofs:
    """The outcomes of the proofs on the devices of a machine, kept for the process."""

    def __init__(self, library: Library, objects: Objects, gpus: Sequence[Gpu]) -> None:
        self._lt, self._objects, self._gpus = library.lt, objects, gpus
        self._once = lru_cache(KEPT)(self._computed)

    def holds(self, index: int, handle: int, form: Form, algorithm: bytes, splits: int) -> bool:
        """Return whether the algorithm, with so many splits of k, computes products of the kind of ``form`` right.

        True without a computation for forms without scales. Raises AllocationError or DriverError. Works while streams
        are captured, without effect on the captures. A computation frees its memory, which waits for the device.
        """
        return form.scaling is None or self._once(index, handle, small(form, splits), algorithm)

    def _computed(self, index: int, handle: int, form: Form, algorithm: bytes) -> bool:
        """Compute the product of ``form``, and return whether it is right; False where the library refuses it."""
        checked, handles = HeuristicResult(), self._objects.descriptors(form).handles
        if self._lt.cublasLtMatmulAlgoCheck(handle, *handles, algorithm, byref(checked)):
            return False
        product, workspace, gpu = expected(form), max(1, checked.workspace), self._gpus[index]
        sizes = {**{name: x.nbytes for name, x in product.memory.items()}, "workspace": workspace}
        places, total = {}, 0
        for name, nbytes in sizes.items():
            places[name] = total
            total += -(-nbytes // _PLACED) * _PLACED
        base = gpu.allocate(total)
        try:
            at = {name: base + place for name, place in places.items()}
            with gpu.outside_captures():
                return self._right(gpu, handle, form, algorithm, product, at, checked.workspace)
        finally:
            gpu.free(base)

    def _right(
        self, gpu: Gpu, handle: int, form: Form, algorithm: bytes, product: _Product, at: dict[str, int], nbytes: int
    ) -> bool:
        """Compute ``product`` in memory at these addresses, and compare."""
        descriptors, call = self._objects.descriptors(form), gpu.driver.call
        operation, stream = descriptors.operation, c_void_p()
        alpha, beta = c_float(_ALPHA), c_float(0)
        result, largest = np.empty_like(product.memory["d"]), np.empty(1, np.float32)
        pointers = {attribute: at[_NAMES[attribute]] for attribute in scale_pointers(form.scaling)}
        if form.bias_type is not None:
            pointers[BIAS_POINTER] = at["bias"]
        _, a, b, c, d = descriptors.handles
        own = at["d"] if form.c.type == form.d.type else None
        call("cuStreamCreate", byref(stream), _NON_BLOCKING)
        try:
            for name, x in product.memory.items():
                call("cuMemcpyHtoDAsync_v2", at[name], x.ctypes.data, x.nbytes, stream)
            leased = operation.at(pointers) if pointers else operation.shared
            status = self._lt.cublasLtMatmul(
                handle, leased.handle, addressof(alpha), at["a"], a, at["b"], b, addressof(beta), own, c, at["d"], d,
                algorithm, at["workspace"], nbytes, stream,
            )  # fmt: skip
            if pointers:
                operation.give_back(leased)
            call("cuMemcpyDtoHAsync_v2", result.ctypes.data, at["d"], result.nbytes, stream)
            if "amax" in at:
                call("cuMemcpyDtoHAsync_v2", largest.ctypes.data, at["amax"], largest.nbytes, stream)
            call("cuStreamSynchronize", stream)
        finally:
            call("cuStreamDestroy_v2", stream)
        written = result.view(product.result.dtype).reshape(product.result.shape)
        same = np.array_equal(written.astype(np.float32), product.result.astype(np.float32))
        return not status and same and ("amax" not in at or largest[0] == product.largest)


_NAMES = {A_SCALE_POINTER: "scale_a", B_SCALE_POINTER: "scale_b", D_SCALE_POINTER: "scale_d", AMAX_POINTER: "amax"}


def small(form: Form, splits: int) -> Form:
    """Return the form of the proof for products like ``form``: without an addend, and without GELU, which rounds."""
    k = BLOCK * max(_MIN_BLOCKS, splits + 1) + _REMAINDER
    a, b = (Matrix(x.type, k, size, k, 0, _PLACED) for x, size in ((form.a, M), (form.b, N)))
    d = Matrix(form.d.type, M, N, M, 0, _PLACED)
    return form._replace(
        trans_a=True, trans_b=False, a=a, b=b, c=d._replace(type=form.c.type), d=d, products=1, addend=False,
        epilogue=(form.epilogue & ~GELU) or NO_EPILOGUE,
    )  # fmt: skip


@lru_cache(8)
def expected(form: Form) -> _Product:
    """Return the product of a form of :func:`small`."""
    scaling, k = form.scaling, form.k
    assert scaling is not None
    rows, columns, along = np.arange(M), np.arange(N), np.arange(k)
    a = np.where((along + 7 * rows[:, None]) % _PERIOD == 0, np.where(rows % 3, 1.0, -1.0)[:, None], 0.0)
    b = 1.0 + (3 * along + columns[:, None]) % 2
    memory = {"a": a.astype(as_dtype(NAME[form.a.type])), "b": b.astype(as_dtype(NAME[form.b.type]))}
    if scaling.a is not None:
        memory["scale_a"], factors = _factors(scaling.a, M, k, _A_FACTOR)
        a = a * factors
    if scaling.b is not None:
        memory["scale_b"], factors = _factors(scaling.b, N, k, _B_FACTOR)
        b = b * factors
    value = _ALPHA * (b @ a.T)
    if form.bias_type is not None:
        dtype = as_dtype(NAME[form.bias_type])
        bias = (rows % 5 - 2.0).astype(dtype)
        memory["bias"] = bias
        value = value + bias.astype(np.float64)
    if form.epilogue & RELU:
        value = np.maximum(value, 0)
    largest = float(np.abs(value).max())
    if scaling.amax:
        memory["amax"] = np.full(1, 1e30, np.float32)
    if scaling.result:
        memory["scale_d"] = np.full(1, _RESULT_FACTOR, np.float32)
        value = value * _RESULT_FACTOR
    dtype = as_dtype(NAME[form.d.type])
    if form.d.type in FLOAT8:
        value = np.clip(value, -info(dtype).largest, info(dtype).largest)
    result = value.astype(np.float32).astype(dtype)
    memory["d"] = np.full(result.nbytes, 0xFF, np.uint8)
    return _Product(memory, result, largest)


def _factors(mode: int, size: int, k: int, single: float) -> tuple[Array, Array]:
    """Return the memory of an operand's factors, and what they multiply each of its ``size`` rows of k elements by."""
    if mode == SCALAR:
        return np.full(1, single, np.float32), single
    own, deep = (blocks(size) if mode == BLOCK128 else size), blocks(k) if mode in (VEC128, BLOCK128) else 1
    factors = np.ldexp(np.float32(1), np.random.default_rng(mode).integers(0, 2, (own, deep))).astype(np.float32)
    own_stride, depth_stride = strides(mode, size, k)
    memory = np.full(max(1, own_stride * own, depth_stride * deep), np.nan, np.float32)  # padding must not matter
    memory[own_stride * np.arange(own)[:, None] + depth_stride * np.arange(deep)] = factors
    return memory, spread(factors, (size, k))
