"""Symmetric products: blocks of the lower triangle by a kernel for plain products, and the upper triangle mirrored.

The triangle is halved again and again, into a square below the diagonal and two triangles of half the size, as the
recursive syrk of Elmroth, Gustavson, Jonsson and Kagstrom (SIAM Review 46, 2004). NumPy itself multiplies a matrix by
its own transpose by the BLAS's syrk, in one call: that is faster than parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gemmhub._base.geometry import same_memory
from gemmhub.backend import Kernel
from gemmhub.problem import GemmProblem, Operand

Array = Any

HALF, WHOLE = "; symmetric: half the products", "; symmetric: computed whole, and mirrored"
"""The ends of the remark on a candidate for a symmetric problem."""
_SHARE = 0.75
"""Seconds of a symmetric product in those of a plain one: small blocks have a lower rate, and the mirroring costs."""
_SMALLEST = 256
"""Most rows of a diagonal block, which is computed whole."""
_GAINS = 512
"""Rows up to which nothing is gained: float32 took as long as a plain product, measured on one core of a Xeon."""
_MIRROR, _MIRROR_ELEMENT = 8e-6, 5e-10
"""Seconds of mirroring a matrix, and for an element of it, measured there."""
_TILE = 64
"""Rows and columns that are mirrored at a time, so that the lines of both stay in the cache."""
_ABOVE = np.triu(np.ones((_TILE, _TILE), np.bool_), 1)
"""Mask of the elements of a diagonal tile that are above the diagonal."""


def remark(problem: GemmProblem) -> str:
    """The end of the remark on a candidate for ``problem``; empty for one that is not symmetric."""
    return "" if not problem.symmetric else HALF if problem.n > _SMALLEST else WHOLE


def seconds(problem: GemmProblem, plain: float) -> float:
    """The seconds of a symmetric problem, from those of the same product without the promise."""
    if problem.n > _GAINS:
        return _SHARE * plain
    return plain + problem.batch_count * (_MIRROR + _MIRROR_ELEMENT * problem.n**2)


def symmetric_kernel(problem: GemmProblem, prepare: Callable[[GemmProblem], Kernel], native: bool = False) -> Kernel:
    """Return the kernel of a symmetric problem, whose parts are run by kernels that ``prepare`` returns.

    ``native``: these are numpy.matmul, whose bits may depend on the addresses of the operands.
    """
    plain = replace(problem, symmetric=False)
    sizes = {rows.stop - rows.start for rows, _ in parts(problem.n)} or {problem.n}
    kernels = [prepare(_resized(plain, size)) for size in sorted(sizes)]
    product = kernels[-1].run  # which takes the sizes from its operands

    def run(a: Array, b: Array, out: Array, alpha: Any, beta: Any, stream: Any, c: Array | None = None) -> None:
        whole = native and _has_syrk(a, b)
        for rows, columns in [(slice(None), slice(None))] if whole else parts(out.shape[-1]):
            addend = {} if c is None else {"c": _part(c, rows, columns)}
            target = out[..., rows, columns]
            product(a[..., rows, :], b[..., columns], target, alpha, beta, stream, **addend)
        mirror(out)

    workspace = max(kernel.workspace_bytes for kernel in kernels)
    return Kernel(run, kernels[-1].description + remark(problem), workspace, any_size=True)


def parts(n: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of the blocks that cover the lower triangle of an n by n matrix."""

    def triangle(first: int, last: int) -> Iterator[tuple[slice, slice]]:
        if last - first <= _SMALLEST:
            yield slice(first, last), slice(first, last)
            return
        middle = first + -(-(last - first) // 2 // 64) * 64
        yield from triangle(first, middle)
        yield from triangle(middle, last)
        yield slice(middle, last), slice(first, middle)

    if n:
        yield from triangle(0, n)


def mirror(out: Array) -> None:
    """Copy the lower triangle of each matrix (..., n, n) to the upper one, bit for bit."""
    bits = out.view(f"u{out.itemsize}") if out.itemsize <= 8 else out  # NumPy copies its own dtypes faster than others
    n = bits.shape[-1]
    for row in range(0, n, _TILE):
        rows = slice(row, min(row + _TILE, n))
        for column in range(0, row, _TILE):
            columns = slice(column, column + _TILE)
            bits[..., columns, rows] = np.swapaxes(bits[..., rows, columns], -1, -2)
        tile, size = bits[..., rows, rows], rows.stop - row
        np.copyto(tile, np.swapaxes(tile, -1, -2), where=_ABOVE[:size, :size])  # which copies operands that overlap


def _has_syrk(a: Array, b: Array) -> bool:
    """Whether numpy.matmul calls the BLAS's syrk: b is a's transpose in the same memory, which the BLAS can address."""
    return bool(a.itemsize in a.strides[-2:]) and same_memory(a, np.swapaxes(b, -1, -2))


def _part(c: Array, rows: slice, columns: slice) -> Array:
    """The part of an addend that broadcasts to these rows and columns of the result."""
    c = c[..., rows, :] if c.shape[-2] > 1 else c
    return c[..., columns] if c.shape[-1] > 1 else c


def _resized(problem: GemmProblem, n: int) -> GemmProblem:
    """The problem with n rows and columns of the result."""

    def narrowed(x: Operand) -> Operand:
        return replace(x, layout=replace(x.layout, cols=n))

    rows = problem.with_rows(n)
    others = {name: narrowed(x) for name, x in rows.matrices.items()}
    return replace(rows, n=n, b=narrowed(rows.b), out=narrowed(rows.out)).having(**others)
