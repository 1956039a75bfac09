"""Storage order, strides and leading dimensions of matrices.

A matrix is *row-major* ("row") when the elements of a row are contiguous in memory, *column-major* ("col") when those
of a column are; its *leading dimension* is the distance in elements from one row (or column) to the next. A row-major
m x n matrix is, byte for byte, the column-major n x m matrix of its transpose: :mod:`gemmhub.lowering` makes use of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod


@dataclass(frozen=True)
class MatrixLayout:
    """The memory layout of a stack of ``rows`` x ``cols`` matrices. All strides count elements."""

    rows: int
    cols: int
    row_stride: int
    """Distance from one row to the next."""
    col_stride: int
    """Distance from one column to the next."""
    batch: tuple[int, ...] = ()
    batch_strides: tuple[int, ...] = ()
    """Stride of each batch dimension; 0 where the operand is broadcast."""

    @classmethod
    def contiguous(cls, rows: int, cols: int, batch: tuple[int, ...] = (), order: str = "row") -> MatrixLayout:
        """Return the layout of a dense stack in ``order``."""
        strides = tuple(rows * cols * prod(batch[i + 1 :]) for i in range(len(batch)))
        row_stride, col_stride = (cols, 1) if order == "row" else (1, rows)
        return cls(rows, cols, row_stride, col_stride, batch, strides)

    @property
    def transposed(self) -> MatrixLayout:
        return replace(self, rows=self.cols, cols=self.rows, row_stride=self.col_stride, col_stride=self.row_stride)

    @property
    def essential(self) -> MatrixLayout:
        """This layout with strides of 0 where they have no effect: in dimensions of one element, in empty matrices."""
        sizes = (self.rows, self.cols, *self.batch)
        strides = (self.row_stride, self.col_stride, *strides_over(self, self.batch))
        rows, cols, *outer = (0 if x == 1 or self.empty else stride for x, stride in zip(sizes, strides))
        return replace(self, row_stride=rows, col_stride=cols, batch_strides=tuple(outer))

    @property
    def empty(self) -> bool:
        """Whether there are no elements; then no stride matters (libraries disagree on the strides of empty arrays)."""
        return self.rows == 0 or self.cols == 0 or 0 in self.batch

    def stored(self, order: str) -> bool:
        """Whether this is a legal matrix of ``order`` ("row" or "col") as BLAS understands it."""
        if order == "row":
            inner, inner_stride, outer, outer_stride = self.cols, self.col_stride, self.rows, self.row_stride
        else:
            inner, inner_stride, outer, outer_stride = self.rows, self.row_stride, self.cols, self.col_stride
        # The stride of a dimension of size 0 or 1 has no effect.
        return ((inner <= 1 or inner_stride == 1) and (outer <= 1 or outer_stride >= inner)) or self.empty

    @property
    def order(self) -> str | None:
        """The storage order: "row", "col", or None where BLAS cannot describe the matrix.

        BLAS cannot where neither dimension is contiguous, or where the other one's stride is smaller than the size of
        the contiguous dimension (negative, zero, overlapping). A matrix that is both (one row, one column, empty)
        counts as "row".
        """
        return "row" if self.stored("row") else "col" if self.stored("col") else None

    def leading_dimension(self, order: str) -> int:
        """Return the leading dimension of a matrix stored in ``order``, at least max(1, inner size) as BLAS requires.

        Where there is only one row (or column) to step over, any value is valid and the minimum is returned.
        """
        inner, outer, outer_stride = (
            (self.cols, self.rows, self.row_stride) if order == "row" else (self.rows, self.cols, self.col_stride)
        )
        return outer_stride if outer > 1 and not self.empty else max(1, inner)

    @property
    def broadcast(self) -> bool:
        """Whether one matrix serves all of a batch dimension."""
        return any(size > 1 and stride == 0 for size, stride in zip(self.batch, self.batch_strides))

    @property
    def matrices(self) -> int:
        """The number of matrices of the stack; those that a stride of 0 repeats are counted once."""
        return prod(size if stride != 0 else min(size, 1) for size, stride in zip(self.batch, self.batch_strides))

    @property
    def distinct_elements(self) -> int:
        """The number of elements to read; those that a stride of 0 repeats are counted once."""
        sizes = (*self.batch, self.rows, self.cols)
        strides = (*self.batch_strides, self.row_stride, self.col_stride)
        return prod(size if stride != 0 else min(size, 1) for size, stride in zip(sizes, strides))


def strides_over(layout: MatrixLayout, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides along the dimensions of ``batch``; leading dimensions that the layout lacks are broadcast."""
    return (0,) * (len(batch) - len(layout.batch_strides)) + layout.batch_strides
