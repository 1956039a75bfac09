"""Storage order, leading dimensions, and the one mapping every BLAS-like backend needs.

A matrix is *row-major* ("row") when neighbours in a row are neighbours in memory, *column-major* ("col")
when neighbours in a column are; its *leading dimension* is the distance in elements from one row (or
column) to the next. A row-major m x n matrix is, byte for byte, the column-major n x m matrix of its
transpose. So a library that knows one order only still runs every problem without a copy, because
``C = A B`` is ``C^T = B^T A^T``: :func:`lower` exchanges operands, sizes, transpositions, leading
dimensions, batch strides and the direction of the bias, and plugins never do that by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from gemmhub.capability import Refusal
from gemmhub.errors import InputError

if TYPE_CHECKING:
    from gemmhub.problem import GemmProblem


@dataclass(frozen=True)
class MatrixLayout:
    """How a stack of ``rows`` x ``cols`` matrices lies in memory. All strides count elements."""

    rows: int
    cols: int
    row_stride: int
    """From one row to the next."""
    col_stride: int
    """From one column to the next."""
    batch: tuple[int, ...] = ()
    batch_strides: tuple[int, ...] = ()
    """One per batch dimension; 0 where the operand is broadcast."""

    @classmethod
    def contiguous(cls, rows: int, cols: int, batch: tuple[int, ...] = (), order: str = "row") -> MatrixLayout:
        """The layout of a dense stack in ``order``."""
        strides = tuple(rows * cols * prod(batch[i + 1 :]) for i in range(len(batch)))
        row_stride, col_stride = (cols, 1) if order == "row" else (1, rows)
        return cls(rows, cols, row_stride, col_stride, batch, strides)

    @property
    def transposed(self) -> MatrixLayout:
        return replace(self, rows=self.cols, cols=self.rows, row_stride=self.col_stride, col_stride=self.row_stride)

    @property
    def essential(self) -> MatrixLayout:
        """With strides of 0 where they say nothing: along dimensions of one element, and in empty matrices."""
        sizes = (self.rows, self.cols, *self.batch)
        strides = (self.row_stride, self.col_stride, *_batch_strides(self, self.batch))
        rows, cols, *outer = (0 if x == 1 or self.empty else stride for x, stride in zip(sizes, strides))
        return replace(self, row_stride=rows, col_stride=cols, batch_strides=tuple(outer))

    @property
    def empty(self) -> bool:
        """No elements at all; then no stride matters (libraries disagree on those of an empty array)."""
        return self.rows == 0 or self.cols == 0 or 0 in self.batch

    def stored(self, order: str) -> bool:
        """Whether this is a legal matrix of ``order`` ("row" or "col") as BLAS understands it."""
        inner, inner_stride, outer, outer_stride = (
            (self.cols, self.col_stride, self.rows, self.row_stride)
            if order == "row"
            else (self.rows, self.row_stride, self.cols, self.col_stride)
        )
        # A dimension of size 0 or 1 has no neighbours: its stride says nothing.
        return self.empty or ((inner <= 1 or inner_stride == 1) and (outer <= 1 or outer_stride >= inner))

    @property
    def order(self) -> str | None:
        """ "row", "col", or None where BLAS cannot describe the matrix.

        That is so when neither dimension is dense, or when the other one's stride is smaller than the dense
        dimension (negative, zero, overlapping). A matrix that is both (one row, one column, empty) counts
        as "row".
        """
        return "row" if self.stored("row") else "col" if self.stored("col") else None

    def leading_dimension(self, order: str) -> int:
        """The leading dimension of a matrix stored in ``order``, at least max(1, inner size) as BLAS demands.

        Where there is only one row (or column) to step over, any would do and the least is given.
        """
        inner, outer, outer_stride = (
            (self.cols, self.rows, self.row_stride) if order == "row" else (self.rows, self.cols, self.col_stride)
        )
        return outer_stride if outer > 1 and not self.empty else max(1, inner)

    @property
    def broadcast(self) -> bool:
        """The same matrix serves a whole batch dimension."""
        return any(size > 1 and stride == 0 for size, stride in zip(self.batch, self.batch_strides))

    @property
    def matrices(self) -> int:
        """Matrices of the stack; those that a stride of 0 repeats are counted once."""
        return prod(size if stride != 0 else min(size, 1) for size, stride in zip(self.batch, self.batch_strides))

    @property
    def distinct_elements(self) -> int:
        """Elements that have to be read; those that a stride of 0 repeats are counted once."""
        sizes = (*self.batch, self.rows, self.cols)
        strides = (*self.batch_strides, self.row_stride, self.col_stride)
        return prod(size if stride != 0 else min(size, 1) for size, stride in zip(sizes, strides))


@dataclass(frozen=True)
class BatchDim:
    """One loop over matrices: how many, and how far apart each operand's are (in elements).

    A stride may be 0 (broadcast) or negative (a reversed stack).
    """

    count: int
    stride_a: int
    stride_b: int
    stride_c: int
    stride_d: int

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Of A, B, C and D."""
        return self.stride_a, self.stride_b, self.stride_c, self.stride_d


@dataclass(frozen=True)
class BlasCall:
    """A problem in the words of a library that knows one storage order.

    ``D = activation(alpha * op(A) op(B) + beta * C + bias)`` with op(A) m x k, op(B) k x n. When
    ``swapped``, A is the problem's b and B the problem's a: hand over the pointers in that order.
    """

    order: str
    """The storage order in which this call is to be read: "col" or "row"."""
    swapped: bool
    m: int
    n: int
    k: int
    trans_a: bool
    trans_b: bool
    lda: int
    ldb: int
    ldc: int
    """Leading dimension of the addend C; equals ``ldd`` where there is none."""
    ldd: int
    bias_axis: str | None = None
    """ "m": one bias element per row of D; "n": one per column; in this call's own m and n."""
    batch: tuple[BatchDim, ...] = ()
    """As few dimensions as the strides allow, outermost first; empty for a single matrix."""

    def offsets(self, keep: int = 1) -> Iterator[tuple[int, int, int, int]]:
        """Element offsets (A, B, C, D) over all batch dimensions but the innermost ``keep``."""
        outer = self.batch[: max(0, len(self.batch) - keep)]
        for index in product(*(range(d.count) for d in outer)):
            pairs = list(zip(index, outer))
            yield (
                sum(i * d.stride_a for i, d in pairs),
                sum(i * d.stride_b for i, d in pairs),
                sum(i * d.stride_c for i, d in pairs),
                sum(i * d.stride_d for i, d in pairs),
            )


def collapse(shape: tuple[int, ...], *strides: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Merge batch dimensions that every operand steps through evenly.

    Returns ``((count, (stride of each operand)), ...)``, outermost first; dimensions of size 1 vanish.
    Any number of matrices in one evenly spaced row become a single dimension. Each of ``strides`` must be as
    long as ``shape`` (ValueError).
    """
    dims: list[tuple[int, tuple[int, ...]]] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        here = tuple(steps)
        if dims:
            outer_size, outer = dims[-1]
            if all(o == i * size for o, i in zip(outer, here)):
                dims[-1] = (outer_size * size, here)
                continue
        dims.append((size, here))
    return tuple(dims)


def lower(problem: GemmProblem, order: str = "any") -> BlasCall | Refusal:
    """Say ``problem`` to a backend that knows ``order``: "col", "row", or "any" (free choice; never swapped).

    No data moves. A refusal names the operand no BLAS call can describe (its :attr:`MatrixLayout.order` is
    None, or it is an addend whose order is not that of the result) and what to do. Raises
    :class:`~gemmhub.errors.InputError` for an unknown ``order``.
    """
    if order not in ("col", "row", "any"):
        raise InputError("order", repr(order), '"col", "row", "any"')
    a, b, out = problem.a.layout, problem.b.layout, problem.out.layout
    c = problem.c.layout if problem.c else out
    for name, operand in (("a", problem.a), ("b", problem.b), ("out", problem.out), ("c", problem.c)):
        if operand is not None and operand.alignment < operand.dtype.itemsize:
            return Refusal(
                f"{name} has elements that are not aligned, or no whole number of elements apart",
                f"pass a contiguous copy of {name} (numpy.ascontiguousarray or .copy())",
            )
    for name, layout in (("a", a), ("b", b), ("out", out), ("c", c)):
        if layout.order is None:
            return Refusal(
                f"{name} ({layout.rows} x {layout.cols}) has strides ({layout.row_stride}, {layout.col_stride}): "
                "one must be 1 (a dense dimension) and the other at least the size of that dimension",
                "leave out= away, or pass a contiguous one"
                if name == "out"
                else f"pass a contiguous copy of {name} (numpy.ascontiguousarray or .copy())",
            )
    # A result of one row or column can be read either way: take the reading that its addend shares.
    shared = [either for either in ("row", "col") if out.stored(either) and c.stored(either)]
    if not shared:
        return Refusal(
            "c and the result have different storage orders", "pass c in the order of out (or a copy in that order)"
        )
    if order == "any":
        order = shared[0]
    direct = order in shared
    bias_axis = problem.bias.axis if problem.bias else None
    if not direct:
        # Read every matrix as the transpose of what it is: C^T = B^T A^T.
        a, b, c, out = b.transposed, a.transposed, c.transposed, out.transposed
        bias_axis = {"m": "n", "n": "m", None: None}[bias_axis]

    def stored_as(layout: MatrixLayout) -> tuple[bool, int]:
        if layout.stored(order):
            return False, layout.leading_dimension(order)
        return True, layout.transposed.leading_dimension(order)

    trans_a, lda = stored_as(a)
    trans_b, ldb = stored_as(b)
    dims = collapse(problem.batch, *(_batch_strides(layout, problem.batch) for layout in (a, b, c, out)))
    return BlasCall(
        order=order,
        swapped=not direct,
        m=out.rows,
        n=out.cols,
        k=problem.k,
        trans_a=trans_a,
        trans_b=trans_b,
        lda=lda,
        ldb=ldb,
        ldc=c.leading_dimension(order),
        ldd=out.leading_dimension(order),
        bias_axis=bias_axis,
        batch=tuple(BatchDim(count, *steps) for count, steps in dims),
    )


def _batch_strides(layout: MatrixLayout, batch: tuple[int, ...]) -> tuple[int, ...]:
    """One for each dimension of ``batch``; leading dimensions that a layout lacks are broadcast."""
    return (0,) * (len(batch) - len(layout.batch_strides)) + layout.batch_strides


def fold_batch(problem: GemmProblem) -> GemmProblem | None:
    """One GEMM of batch*m rows, where every matrix of the batch is multiplied by the same b.

    Possible when a, out (and c) step from one matrix to the next as from one row to the next, and b and
    the bias are shared. None where that does not hold, where nothing is batched, or where :func:`lower`
    would take ``problem`` but not its folded form. The same pointers serve.
    """
    if problem.batch_count <= 1 or (problem.bias and problem.bias.axis == "m"):
        return None
    if any(s != 0 for size, s in zip(problem.batch, _batch_strides(problem.b.layout, problem.batch)) if size > 1):
        return None
    count = problem.batch_count
    folded = {}
    for name in ("a", "out", "c"):
        operand = getattr(problem, name)
        if operand is None:
            continue
        layout: MatrixLayout = operand.layout
        dims = collapse((*problem.batch, problem.m), (*_batch_strides(layout, problem.batch), layout.row_stride))
        if len(dims) != 1:
            return None
        rows = MatrixLayout(count * problem.m, layout.cols, dims[0][1][0], layout.col_stride)
        folded[name] = replace(operand, layout=rows)
    shared = replace(problem.b.layout, batch=(), batch_strides=())
    result = replace(problem, m=count * problem.m, batch=(), b=replace(problem.b, layout=shared), **folded)
    # Matrices of one row may be broadcast, overlap or run backwards; rows of one matrix may not.
    if isinstance(lower(result), Refusal) and not isinstance(lower(problem), Refusal):
        return None
    return result
