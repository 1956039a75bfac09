"""Proves a library right by a small product in every storage order, exact in every dtype, compared with NumPy.

Wrong numbers for enumerations, transpositions, dtypes or leading dimensions show here, before a user's product depends
on them. Every backend runs this product once for each device and dtype, and refuses where it fails.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmhub.backend import Kernel
from gemmhub.capability import Device, Refusal
from gemmhub.dtypes import as_dtype, compute_dtype, result_dtype
from gemmhub.layout import MatrixLayout
from gemmhub.problem import GemmProblem, Operand
from gemmhub_musa.runtime import TO_DEVICE, TO_HOST, Runtime

HostArray = npt.NDArray[Any]

SIZES = 4, 3, 2
"""Sizes of the product: m, n, k."""
REMEDY = "send us what `gemmhub doctor musa` prints; other backends are not affected"
_ALIGNMENT = 256
_GUARD = 256


def problems(
    dtype: str, index: int, out_dtype: str | None = None, sizes: tuple[int, int, int] = SIZES
) -> list[GemmProblem]:
    """Return a plain product in the eight combinations of row- and column-major a, b and out."""
    m, n, k = sizes
    one = as_dtype(dtype)
    out = result_dtype(one, one) if out_dtype is None else as_dtype(out_dtype)

    def operand(kind: Any, rows: int, cols: int, order: str) -> Operand:
        return Operand(kind, MatrixLayout.contiguous(rows, cols, (), order), _ALIGNMENT)

    return [
        GemmProblem(
            m=m, n=n, k=k, a=operand(one, m, k, a), b=operand(one, k, n, b), out=operand(out, m, n, d),
            compute_dtype=compute_dtype(one, one, out), device=Device("musa", index),
        )
        for a, b, d in product(("row", "col"), repeat=3)
    ]  # fmt: skip


def check(
    prepare: Callable[[GemmProblem], Kernel | Refusal],
    runtime: Runtime,
    index: int,
    dtype: str,
    out_dtype: str | None = None,
    sizes: tuple[int, int, int] = SIZES,
) -> Refusal | None:
    """Return None where every storage order that ``prepare`` takes gives exactly NumPy's result; else a refusal.

    Where it takes none, its last refusal is returned. Raises nothing.
    """
    refusal: Refusal | None = None
    ran = 0
    for problem in problems(dtype, index, out_dtype, sizes):
        try:
            kernel = prepare(problem)
            if isinstance(kernel, Refusal):
                refusal = kernel
                continue
            wrong = _wrong(problem, kernel, runtime, index)
        except Exception as error:  # any failure of the library's first call
            return Refusal(
                f"the first product ({problem.key}) failed: {type(error).__name__}: {error}",
                REMEDY, traceback.format_exc(),
            )  # fmt: skip
        if wrong:
            return Refusal(f"the first product ({problem.key}) by {kernel.description} is wrong: {wrong}", REMEDY)
        ran += 1
    return None if ran else refusal


def run(
    kernel: Kernel,
    runtime: Runtime,
    index: int,
    a: HostArray,
    b: HostArray,
    out: HostArray,
    *,
    alpha: complex = 1,
    beta: complex = 0,
    **operands: HostArray,
) -> HostArray:
    """Run ``kernel`` on copies of host memory; return the bytes of the result's memory afterwards.

    ``operands`` are the others by name; the addend, unless ``beta`` is 0, is the result's own memory. The kernel runs
    on a stream of its own, and what it raises is raised here.
    """
    after = np.empty(out.nbytes, np.uint8)
    with runtime.device(index):
        addresses: list[int] = []
        stream = runtime.stream_create()
        try:
            for data in (a, b, out, *operands.values()):
                addresses.append(runtime.malloc(data.nbytes))
                runtime.memcpy(addresses[-1], data.ctypes.data, data.nbytes, TO_DEVICE)
            runtime.synchronize()
            there = addresses[2]
            others = dict(zip(operands, addresses[3:])) | ({"c": there} if beta else {})
            kernel.run(*addresses[:3], alpha, beta, stream, **others)
            runtime.stream_synchronize(stream)
            runtime.memcpy(after.ctypes.data, there, after.nbytes, TO_HOST)
        finally:
            runtime.stream_destroy(stream)
            for address in addresses:
                runtime.free(address)
    return after


def _wrong(problem: GemmProblem, kernel: Kernel, runtime: Runtime, index: int) -> str:
    """Return a text about the fault in the kernel's result; empty where there is none."""
    # Small whole numbers, no two rows or columns alike: exact in every dtype and order of addition.
    a = (np.arange(problem.m * problem.k).reshape(problem.m, problem.k) * 3 % 7 - 2).astype(problem.a.dtype)
    b = (np.arange(problem.k * problem.n).reshape(problem.k, problem.n) * 5 % 7 - 3).astype(problem.b.dtype)
    wide = np.complex128 if problem.compute_dtype.kind == "c" else np.float64
    expected = (a.astype(wide) @ b.astype(wide)).astype(problem.out.dtype)
    before = np.full(expected.nbytes + _GUARD, 0xFF, np.uint8)  # NaN in every float
    after = run(kernel, runtime, index, _stored(a, problem.a), _stored(b, problem.b), before)
    flat = after[: expected.nbytes].view(problem.out.dtype)
    shape = (problem.m, problem.n)
    got = flat.reshape(shape[::-1]).T if problem.out.layout.order == "col" else flat.reshape(shape)
    if not np.array_equal(got, expected):
        return f"NumPy has {_numbers(expected)}, it has {_numbers(got)}"
    if not np.array_equal(after[expected.nbytes :], before[expected.nbytes :]):
        return "the numbers are right, but it wrote beyond the result"
    return ""


def _stored(x: HostArray, operand: Operand) -> HostArray:
    """Return the elements in their order in memory."""
    return np.ascontiguousarray(x.T if operand.layout.order == "col" else x)


def _numbers(x: HostArray) -> str:
    wide = x if x.dtype.kind == "c" else x.astype(np.float64)
    return str([[f"{value:g}" for value in row] for row in wide]).replace("'", "")
