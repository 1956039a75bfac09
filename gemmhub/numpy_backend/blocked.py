"""Blocked GEMM: operands are converted block by block into scratch memory and multiplied there by the BLAS.

NumPy multiplies half precision and integers by scalar loops, hundreds of times slower than its BLAS. The BLAS can
compute both: every float16, bfloat16 and fp8 number is a float32, so the conversion is exact and the product is
accumulated in float32; and products of small integers are exact in a float while no partial sum exceeds its
significand, so K is cut into blocks short enough for that, and the blocks are added as integers. Converting
entire operands would double or quadruple memory; blocks bound it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from gemmhub._base.evicting import keep
from gemmhub.buckets import end
from gemmhub.dtypes import DType, epilogue_dtype, info
from gemmhub.epilogues import EPILOGUES
from gemmhub.kit.floats import DefaultMode
from gemmhub.numpy_backend.ending import CopyTo, Ending, Terms, combine, terms_of
from gemmhub.numpy_backend.factors import NO_SCALES, Scales
from gemmhub.numpy_backend.scratch import Lease, scratch
from gemmhub.operands import BLOCK, OPERANDS, Scale
from gemmhub.problem import GemmProblem

Array = Any
Cut = tuple[slice, slice]
"""Columns of a tile, and the columns of the product that they are."""


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
    """Columns of the product in a block; a gated activation makes half as many of the result."""
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


def _epilogue_dtype(problem: GemmProblem, accumulator: DType) -> DType:
    """Integers wrap to the width of an integer result before the epilogue, floats are rounded after it."""
    return epilogue_dtype(accumulator, problem.out.dtype)


def by_block(problem: GemmProblem) -> bool:
    """Whether the products of each block of k have scales of their own."""
    return any(isinstance(x, Scale) and x.depth for x in problem.operands.values())


_MAX_ENTRIES = 256
"""Maximum number of buckets of sizes whose blocks a product keeps."""
_SLACK = 1024
"""Bytes for the alignment of the blocks of one call."""


def blocking(problem: GemmProblem, limit: int, sizes: tuple[int, int, int, int] | None = None) -> Blocking:
    """Choose blocks whose scratch memory is within ``limit`` bytes, or as close as blocks of 64 permit.

    ``sizes``: m, n, k and the innermost batch dimension, by default those of ``problem``.
    """
    dtypes = work_dtypes(problem)
    assert dtypes is not None
    work, accumulator, exact = dtypes
    if by_block(problem):
        accumulator, exact = _epilogue_dtype(problem, accumulator), BLOCK
    m, n, k, innermost = sizes or (problem.m, problem.n, problem.k, problem.batch[-1] if problem.batch else 1)
    m, n, k = max(1, m), max(1, n), max(1, k)
    epilogue = _epilogue_dtype(problem, accumulator)
    size = max(work.itemsize, accumulator.itemsize, epilogue.itemsize)
    budget = max((limit - _SLACK) // size, 3 * 64 * 64)
    # Tiles that exist at the same time: during the product (the sum, a partial sum, that in the dtype of the sum), and
    # after it, when the converted blocks are no longer needed (the sum, in the dtype of the epilogue, an addend).
    converts = work != accumulator
    finishing = 1 + (accumulator != epilogue) + any(OPERANDS[name].role == "term" for name in problem.matrices)

    def needed(rows: int, cols: int) -> int:
        multiplying = 3 if converts else 1 + (depth < k)
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
        self._ending = Ending(problem.activation, copy, {})
        """The ending of calls without other operands, which change nothing in it."""
        self._known: OrderedDict[tuple[int, int, int, int], Blocking] = OrderedDict()
        self._last: tuple[tuple[int, ...], Blocking | None] = (), None
        self.blocks = self._blocking(problem.m, problem.n, problem.k, problem.batch[-1] if problem.batch else 1)
        """The blocks of the sizes of ``problem``."""
        self._epilogue = _epilogue_dtype(problem, self.blocks.accumulator)
        self._adds_directly = self.blocks.work == self.blocks.accumulator
        self._gate = None if problem.activation is None else EPILOGUES[problem.activation].gate

    def _blocking(self, m: int, n: int, k: int, innermost: int) -> Blocking:
        call_sizes, last = (m, n, k, innermost), self._last
        if last[0] == call_sizes and last[1] is not None:
            return last[1]
        sizes = end(m), end(n), end(k), end(innermost)
        blocks = self._known.get(sizes)
        if blocks is None:
            blocks = blocking(self.problem, self._limit, sizes)
            keep(self._known, sizes, blocks, _MAX_ENTRIES)
        self._last = call_sizes, blocks
        return blocks

    def __call__(self, a: Array, b: Array, out: Array, alpha: Any, beta: Any, **operands: Array) -> None:
        """Compute the problem, block by block. ``b`` may already be in the work dtype (packed)."""
        quiet = np.errstate(over="ignore", invalid="ignore", under="ignore")
        *batch, m, _ = out.shape
        n = b.shape[-1]
        blocks = self._blocking(m, n, a.shape[-1], batch[-1] if batch else 1)
        with DefaultMode(), quiet, scratch.lease(blocks.scratch_bytes) as lease:
            terms = terms_of(self.problem, operands, beta, self._epilogue) if operands else []
            scales, pre = (operands.get("scale_a"), operands.get("scale_b")), operands.get("pre_activation")
            ending = Ending(self.problem.activation, self._copy, operands) if operands else self._ending
            scaled = any(x is not None for x in scales)
            for lead, stack in _stacks(batch, blocks.stacks):
                lease.used = 0

                def part(x: Array, lead: tuple[int, ...] = lead, stack: slice = stack) -> Array:
                    return None if x is None else _part(x, len(batch), lead, stack)

                self._stack(
                    lease, blocks, part(a), part(b), part(out), alpha, [(factor, part(x)) for factor, x in terms],
                    Scales(part(scales[0]), part(scales[1]), n) if scaled else NO_SCALES, part(pre), ending,
                )  # fmt: skip
            ending.close()

    def _cuts(self, first: int, last: int, n: int) -> list[Cut]:
        """Where the columns ``first`` to ``last`` of the result come from, of ``n`` columns of the product."""
        count = last - first
        if self._gate == "halves":
            return [
                (slice(0, count), slice(first, last)), (slice(count, 2 * count), slice(n // 2 + first, n // 2 + last))
            ]  # fmt: skip
        each = 1 if self._gate is None else 2
        return [(slice(0, each * count), slice(each * first, each * last))]

    def _convert(self, lease: Lease, x: Array, dtype: DType) -> Array:
        if x.dtype == dtype:
            return x
        block = lease.take(x.shape, dtype)
        self._copy(block, x, casting="unsafe")
        return block

    def _stack(
        self, lease: Lease, blocks: Blocking, a: Array, b: Array, out: Array, alpha: Any, terms: Terms, scales: Scales,
        pre: Array | None, ending: Ending,
    ) -> None:  # fmt: skip
        (m, width), (k, n) = out.shape[-2:], b.shape[-2:]
        step = blocks.cols if self._gate is None else blocks.cols // 2
        start = lease.used
        for col in range(0, width, step):
            last = min(col + step, width)
            cuts = self._cuts(col, last, n)
            lease.used = start
            panels = [b[..., columns] for _, columns in cuts]
            if blocks.panel >= k:
                panels = [self._convert(lease, panel, blocks.work) for panel in panels]
            inner = lease.used
            for row in range(0, m, blocks.rows):
                rows = slice(row, min(row + blocks.rows, m))
                lease.used = inner
                target = out[..., rows, col:last]
                shape = (*target.shape[:-1], cuts[-1][0].stop)
                product = self._product(lease, blocks, a[..., rows, :], panels, shape, rows, cuts, scales)
                tile = self._convert(lease, product, self._epilogue)
                for at, columns in cuts:
                    view = tile[..., at]
                    for factors in scales.of_sum:
                        np.multiply(view, factors(rows, columns, 0), out=view)
                    combine(lease, view, alpha, [(factor, _within(x, rows, columns)) for factor, x in terms])
                    if pre is not None:
                        self._copy(pre[..., rows, columns], view, casting="unsafe")  # never of float8
                ending.write(tile, target)

    def _product(
        self, lease: Lease, blocks: Blocking, a: Array, panels: Sequence[Array], shape: tuple[int, ...], rows: slice,
        cuts: Sequence[Cut], scales: Scales,
    ) -> Array:  # fmt: skip
        """One tile of a @ b in the accumulator dtype, over all of K; ``panels`` are b's columns of each cut."""
        k = a.shape[-1]
        tile = lease.take(shape, blocks.accumulator)
        after = lease.used
        if k == 0:
            tile[...] = 0
            return tile
        partial = tile if self._adds_directly else lease.take(shape, blocks.work)
        converted = None if self._adds_directly else lease.take(shape, blocks.accumulator)
        mark = lease.used
        for start in range(0, k, blocks.depth):
            span = slice(start, min(start + blocks.depth, k))
            lease.used = mark
            if start and self._adds_directly:
                partial = lease.take(shape, blocks.work)
            left = self._convert(lease, a[..., span], blocks.work)
            for (at, _), panel in zip(cuts, panels):
                right = self._convert(lease, panel[..., span, :], blocks.work)
                np.matmul(left, right, out=partial[..., at])
            part = partial
            if converted is not None:
                part = converted if start else tile
                self._copy(part, partial, casting="unsafe")
            for factors in scales.of_blocks:
                for at, columns in cuts:
                    view = part[..., at]
                    np.multiply(view, factors(rows, columns, start // BLOCK), out=view)
            if start:
                np.add(tile, part, out=tile)
        lease.used = after
        return tile


def _within(x: Array, rows: slice, columns: slice) -> Array:
    """The part of an addend that is added to these rows and columns."""
    x = x[..., rows, :] if x.shape[-2] > 1 else x
    return x[..., columns] if x.shape[-1] > 1 else x
