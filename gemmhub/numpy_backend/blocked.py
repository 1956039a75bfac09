"""Blocked GEMM: operands are converted block by block into scratch memory and multiplied there by the BLAS.

NumPy multiplies half precision and integers by scalar loops, hundreds of times slower than its BLAS. The BLAS can
compute both: every float16, bfloat16 and fp8 number is a float32, so the conversion is exact and the product is
accumulated in float32; and products of small integers are exact in a float while no partial sum exceeds its
significand, so K is cut into blocks short enough for that, and the blocks are added as integers. Converting whole
operands would double or quadruple memory; blocks bound it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from gemmhub._base.evicting import keep
from gemmhub.buckets import end
from gemmhub.dtypes import DType, info
from gemmhub.kit.floats import DefaultMode
from gemmhub.numpy_backend.activations import IN_PLACE, activate
from gemmhub.numpy_backend.scratch import Lease, scratch
from gemmhub.problem import GemmProblem

Array = Any
CopyTo = Callable[..., None]
"""``copy(target, source)`` with conversion: numpy.copyto, or one that splits the work over threads."""


@dataclass(frozen=True)
class Blocking:
    """The block sizes of a problem, in elements, and its dtypes."""

    work: DType
    """Dtype that the BLAS multiplies in."""
    accumulator: DType
    """Dtype that blocks of K are added in, and the epilogue is computed in."""
    stacks: int
    """Number of matrices of the innermost batch dimension in a block."""
    rows: int
    cols: int
    depth: int
    """Length of a block of K that is multiplied at once."""
    panel: int
    """Length of K of a block of columns of B that is converted at once: all of K where that fits."""
    scratch_bytes: int


def exact_depth(a: DType, b: DType, work: DType) -> int:
    """The longest K for which sums of products of these integer dtypes are exact in ``work``."""
    bits = 24 if work == np.float32 else 53
    largest = [2 ** (8 * x.itemsize - (x.kind == "i")) for x in (a, b)]
    return int(2**bits // (largest[0] * largest[1]))


def work_dtypes(problem: GemmProblem) -> tuple[DType, DType, int] | None:
    """(work, accumulator, longest exact K) of a problem; None where no BLAS type can hold its products."""
    if problem.compute_dtype.kind in "fc":
        return problem.compute_dtype, problem.compute_dtype, max(1, problem.k)
    return _integers(problem.a.dtype, problem.b.dtype, problem.out.dtype)


@lru_cache(maxsize=256)
def _integers(a: DType, b: DType, out: DType) -> tuple[DType, DType, int] | None:
    if not all(info(x).kind in ("int", "uint") and x.itemsize <= 2 for x in (a, b)):
        return None
    work: DType = np.dtype(np.float32)
    if exact_depth(a, b, work) < 256:
        work = np.dtype(np.float64)
    # Sums of blocks added in float32 are below 2**24; those in float64 may exceed 32 bits.
    wide = work == np.float64 or (out.itemsize == 8 and out.kind != "f")
    return work, np.dtype(np.int64 if wide else np.int32), exact_depth(a, b, work)


_MOST = 256
"""The most buckets of sizes whose blocks a product keeps."""
_SLACK = 1024
"""Bytes for the alignment of the blocks of one call."""


def blocking(problem: GemmProblem, limit: int, sizes: tuple[int, int, int, int] | None = None) -> Blocking:
    """Choose blocks whose scratch memory is within ``limit`` bytes, or as close as blocks of 64 permit.

    ``sizes``: m, n, k and the innermost batch dimension, by default those of ``problem``.
    """
    kinds = work_dtypes(problem)
    assert kinds is not None
    work, accumulator, exact = kinds
    m, n, k, innermost = sizes or (problem.m, problem.n, problem.k, problem.batch[-1] if problem.batch else 1)
    m, n, k = max(1, m), max(1, n), max(1, k)
    exact = k if accumulator.kind != "i" else exact
    integers = accumulator.kind == "i"
    size = max(work.itemsize, accumulator.itemsize, problem.out.dtype.itemsize if integers else 0)
    budget = max((limit - _SLACK) // size, 3 * 64 * 64)
    # Tiles that exist at the same time: during the product (the sum, a partial sum, that as an integer), and after it,
    # when the converted blocks are no longer needed (the sum, in the dtype of the epilogue, an addend).
    activating = IN_PLACE[problem.activation].blocks if problem.activation in IN_PLACE else 0
    finishing = 1 + integers + max(problem.c is not None, activating)

    def needed(rows: int, cols: int) -> int:
        multiplying = 3 if integers else 1 + (depth < k)
        return rows * depth + panel * cols + max(multiplying, finishing) * rows * cols

    stacks, rows, cols, depth, panel = 1, m, n, min(k, exact), k
    if needed(rows, cols) <= budget:
        stacks = max(1, min(innermost, budget // needed(rows, cols)))
    else:
        # A is converted once for every block of columns, B once: prefer wide blocks, then tall ones, and cut
        # K only when blocks of 512 do not fit otherwise (each cut costs a pass over the result).
        while needed(min(rows, 512), min(cols, 512)) > budget and panel > 256:
            panel = max(256, _half(panel))
            depth = min(depth, panel)
        while needed(min(rows, 512), cols) > budget and cols > 64:
            cols = max(64, _half(cols))
        while needed(rows, cols) > budget and rows > 64:
            rows = max(64, _half(rows))
    return Blocking(work, accumulator, stacks, rows, cols, depth, panel, stacks * needed(rows, cols) * size + _SLACK)


def _half(size: int) -> int:
    """Half of ``size``, rounded up to a multiple of 64."""
    return -(-size // 2 // 64) * 64


def _stacks(batch: Sequence[int], count: int) -> Iterator[tuple[tuple[int, ...], slice]]:
    """Yield indices of the outer batch dimensions with slices of the innermost one."""
    if not batch:
        yield (), slice(0, 1)
        return
    for lead in product(*map(range, batch[:-1])):
        for start in range(0, batch[-1], count):
            yield lead, slice(start, start + count)


def _part(x: Array, dims: int, lead: tuple[int, ...], stack: slice) -> Array:
    """The matrices of one stack; broadcast dimensions (missing, or of size 1) are kept."""
    own = x.ndim - 2
    if own == 0:
        return x
    index: list[Any] = []
    for axis in range(own):
        position = dims - own + axis
        if position == dims - 1:
            index.append(stack if x.shape[axis] > 1 else slice(None))
        else:
            index.append(lead[position] if x.shape[axis] > 1 else 0)
    return x[tuple(index)]


class BlockedGemm:
    """A product in blocks, callable with operands of any sizes, also from several threads at once.

    Blocks are chosen for the bucket that the sizes are in, so that equal products have equal blocks, and equal bits.
    """

    def __init__(self, problem: GemmProblem, limit: int, copy: CopyTo = np.copyto) -> None:
        """``problem`` with any sizes; ``limit`` bounds scratch memory in bytes, ``copy`` converts blocks."""
        self.problem = problem
        self._limit, self._copy = limit, copy
        self._known: OrderedDict[tuple[int, int, int, int], Blocking] = OrderedDict()
        self._last: tuple[tuple[int, ...], Blocking | None] = (), None
        self.blocks = self._blocking(problem.m, problem.n, problem.k, problem.batch[-1] if problem.batch else 1)
        """The blocks of the sizes of ``problem``."""
        work, accumulator = self.blocks.work, self.blocks.accumulator
        # Integers wrap to the width of the result before the epilogue, floats are rounded after it.
        self._finish_dtype = problem.out.dtype if accumulator.kind == "i" else accumulator
        self._adds_directly = work == accumulator

    def _blocking(self, m: int, n: int, k: int, innermost: int) -> Blocking:
        given, last = (m, n, k, innermost), self._last
        if last[0] == given and last[1] is not None:
            return last[1]
        sizes = end(m), end(n), end(k), end(innermost)
        found = self._known.get(sizes)
        if found is None:
            found = blocking(self.problem, self._limit, sizes)
            keep(self._known, sizes, found, _MOST)
        self._last = given, found
        return found

    def __call__(
        self, a: Array, b: Array, out: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any,
        scale_a: Array | None = None, scale_b: Array | None = None,
    ) -> None:  # fmt: skip
        """Compute the whole problem, block by block. ``b`` may already be in the work dtype (packed)."""
        quiet = np.errstate(over="ignore", invalid="ignore", under="ignore")
        *batch, m, n = out.shape
        blocks = self._blocking(m, n, a.shape[-1], batch[-1] if batch else 1)
        with DefaultMode(), quiet, scratch.lease(blocks.scratch_bytes) as lease:
            if bias is not None:
                bias = bias.astype(self._finish_dtype, copy=False)
            scales = self._scales(scale_a, scale_b)
            for lead, stack in _stacks(batch, blocks.stacks):
                lease.used = 0
                left, right, result = (_part(x, len(batch), lead, stack) for x in (a, b, out))
                addend = None if c is None else _part(c, len(batch), lead, stack)
                self._stack(lease, blocks, left, right, result, addend, bias, alpha, beta, scales)

    def _scales(self, scale_a: Array | None, scale_b: Array | None) -> list[tuple[Array, str | None]]:
        """The factors as rows and columns, and the axis of the result that each has an element for."""
        found: list[tuple[Array, str | None]] = []
        if scale_a is not None and self.problem.scale_a is not None:
            found.append((scale_a[:, np.newaxis], self.problem.scale_a.axis))
        if scale_b is not None and self.problem.scale_b is not None:
            found.append((scale_b[np.newaxis], self.problem.scale_b.axis))
        return found

    def _convert(self, lease: Lease, x: Array, dtype: DType) -> Array:
        if x.dtype == dtype:
            return x
        block = lease.take(x.shape, dtype)
        self._copy(block, x, casting="unsafe")
        return block

    def _stack(
        self, lease: Lease, blocks: Blocking, a: Array, b: Array, out: Array, c: Array | None, bias: Array | None,
        alpha: Any, beta: Any, scales: list[tuple[Array, str | None]],
    ) -> None:  # fmt: skip
        problem, (m, n), k = self.problem, out.shape[-2:], a.shape[-1]
        start = lease.used
        for col in range(0, n, blocks.cols):
            cols = slice(col, min(col + blocks.cols, n))
            lease.used = start
            panel = b[..., cols]
            if blocks.panel >= k:
                panel = self._convert(lease, panel, blocks.work)
            inner = lease.used
            for row in range(0, m, blocks.rows):
                rows = slice(row, min(row + blocks.rows, m))
                lease.used = inner
                target = out[..., rows, cols]
                product = self._product(lease, blocks, a[..., rows, :], panel, target.shape)
                tile = self._convert(lease, product, self._finish_dtype)
                vector = None
                if bias is not None and problem.bias is not None:
                    vector = bias[cols] if problem.bias.axis == "n" else bias[rows, np.newaxis]
                addend = None if c is None else c[..., rows, cols]
                if scales:
                    here = {"m": (rows,), "n": (slice(None), cols), None: ()}
                    for factors, axis in scales:
                        np.multiply(tile, factors[here[axis]], out=tile)
                finish(lease, tile, addend, vector, alpha, beta, problem.activation)
                self._copy(target, tile, casting="unsafe")

    def _product(self, lease: Lease, blocks: Blocking, a: Array, b: Array, shape: tuple[int, ...]) -> Array:
        """One tile of a @ b in the accumulator dtype, over all of K."""
        k = a.shape[-1]
        tile = lease.take(shape, blocks.accumulator)
        after = lease.used
        if k == 0:
            tile[...] = 0
            return tile
        partial = tile if self._adds_directly else lease.take(shape, blocks.work)
        whole = None if self._adds_directly else lease.take(shape, blocks.accumulator)
        mark = lease.used
        for start in range(0, k, blocks.depth):
            span = slice(start, min(start + blocks.depth, k))
            lease.used = mark
            if start and self._adds_directly:
                partial = lease.take(shape, blocks.work)
            left = self._convert(lease, a[..., span], blocks.work)
            right = self._convert(lease, b[..., span, :], blocks.work)
            np.matmul(left, right, out=partial)
            if whole is None:
                if start:
                    np.add(tile, partial, out=tile)
            elif start == 0:
                self._copy(tile, partial, casting="unsafe")
            else:
                self._copy(whole, partial, casting="unsafe")
                np.add(tile, whole, out=tile)
        lease.used = after
        return tile


def finish(
    lease: Lease, tile: Array, c: Array | None, bias: Array | None, alpha: Any, beta: Any, activation: str | None
) -> None:
    """``tile = activation(alpha * tile + beta * c + bias)`` in place, in the tile's dtype."""
    if alpha == 0:
        tile[...] = 0  # not 0 * tile: NaN must not propagate
    elif alpha != 1:
        np.multiply(tile, _scalar(alpha, tile.dtype), out=tile)
    mark = lease.used
    if c is not None:
        addend = lease.take(tile.shape, tile.dtype)
        np.copyto(addend, c, casting="unsafe")
        if beta != 1:
            np.multiply(addend, _scalar(beta, tile.dtype), out=addend)
        np.add(tile, addend, out=tile)
        lease.used = mark
    if bias is not None:
        np.add(tile, bias, out=tile)
    if activation is not None:
        activate(activation, lease, tile)


def _scalar(value: Any, dtype: DType) -> Any:
    """``value`` in ``dtype``; integers wrap, as they do everywhere in an integer product."""
    return np.asarray(value).astype(dtype)[()]
