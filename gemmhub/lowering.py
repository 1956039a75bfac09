"""The lowering of a problem to the call of a BLAS-like library.

A library with one storage order runs every problem without a copy, because ``C = A B`` is ``C^T = B^T A^T``:
:func:`lower` exchanges operands, sizes, transpositions, leading dimensions, batch strides and the direction of the
bias, so that no plugin does it by hand. A lowered problem may have several batch dimensions: :func:`split` picks the
one that a library steps through in a call, and :func:`offsets` returns where each of the calls for the others begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from gemmhub.capability import Refusal
from gemmhub.errors import InputError
from gemmhub.layout import MatrixLayout, strides_over
from gemmhub.operands import Operand
from gemmhub.problem import GemmProblem


@dataclass(frozen=True)
class BatchDim:
    """One loop over matrices: their number, and the stride of each operand (in elements).

    A stride may be 0 (broadcast) or negative (a reversed stack).
    """

    count: int
    stride_a: int
    stride_b: int
    stride_c: int
    stride_d: int

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """The strides of A, B, C and D."""
        return self.stride_a, self.stride_b, self.stride_c, self.stride_d


@dataclass(frozen=True)
class BlasCall:
    """A problem as the call of a library with one storage order.

    ``D = activation(alpha * op(A) op(B) + beta * C + bias)`` with op(A) m x k, op(B) k x n. When
    ``swapped``, A is the problem's b and B the problem's a: hand over the pointers in that order.
    """

    order: str
    """Storage order of this call: "col" or "row"."""
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
    """Batch dimensions, as few as the strides allow, outermost first; empty for a single matrix."""

    def offsets(self, keep: int = 1) -> Iterator[tuple[int, int, int, int]]:
        """Yield element offsets (A, B, C, D) over all batch dimensions but the innermost ``keep``."""
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
    """Lower ``problem`` to a call in ``order``: "col", "row", or "any" (free choice; never swapped).

    No data moves. A refusal names the operand that no BLAS call can describe (its :attr:`MatrixLayout.order` is
    None, or it is an addend whose order is not that of the result) and what to do. Raises
    :class:`~gemmhub.errors.InputError` for an unknown ``order``.
    """
    if order not in ("col", "row", "any"):
        raise InputError("order", repr(order), '"col", "row", "any"')
    shared = _shared_orders(problem)
    if isinstance(shared, Refusal):
        return shared
    order = shared[0] if order == "any" else order
    return _call(problem, order, order not in shared)


def _shared_orders(problem: GemmProblem) -> list[str] | Refusal:
    """Return the storage orders that out and c have in common, or the refusal of :func:`lower`."""
    out, c = problem.out, problem.c
    for name, operand in (("a", problem.a), ("b", problem.b), ("out", out), ("c", c)):
        if operand is None:
            continue
        if operand.alignment < operand.dtype.itemsize:
            return Refusal(
                f"{name} has elements that are not aligned, or no whole number of elements apart",
                f"pass a contiguous copy of {name} (numpy.ascontiguousarray or .copy())",
            )
        layout = operand.layout
        if layout.order is None:
            return Refusal(
                f"{name} ({layout.rows} x {layout.cols}) has strides ({layout.row_stride}, {layout.col_stride}): "
                "one must be 1 (a dense dimension) and the other at least the size of that dimension",
                "omit out=, or pass a contiguous one"
                if name == "out"
                else f"pass a contiguous copy of {name} (numpy.ascontiguousarray or .copy())",
            )
    # A result of one row or column has both storage orders: take the order of its addend.
    shared = [order for order in _OTHER if out.layout.stored(order) and (c is None or c.layout.stored(order))]
    return shared or Refusal(
        "c and the result have different storage orders", "pass c in the order of out (or a copy in that order)"
    )


_OTHER = {"row": "col", "col": "row"}


def _call(problem: GemmProblem, order: str, swapped: bool) -> BlasCall:
    """Return the call in ``order``: of all matrices' transposes where ``swapped``, as C^T = B^T A^T."""
    # A matrix that is stored in the other order is the transpose of one that is stored in this order.
    read = _OTHER[order] if swapped else order
    a, b, out = problem.a.layout, problem.b.layout, problem.out.layout
    m, n, axis = problem.m, problem.n, problem.bias.axis if problem.bias else None

    def stored_as(layout: MatrixLayout) -> tuple[bool, int]:
        if layout.stored(read):
            return False, layout.leading_dimension(read)
        return True, layout.leading_dimension(_OTHER[read])

    (trans_a, lda), (trans_b, ldb) = stored_as(a), stored_as(b)
    ldd = out.leading_dimension(read)
    c = problem.c.layout if problem.c else out
    ldc = c.leading_dimension(read) if problem.c else ldd
    if swapped:
        a, b, m, n, trans_a, lda, trans_b, ldb = b, a, n, m, trans_b, ldb, trans_a, lda
        axis = {"m": "n", "n": "m", None: None}[axis]
    batch: tuple[BatchDim, ...] = ()
    if problem.batch:
        dims = collapse(problem.batch, *(strides_over(layout, problem.batch) for layout in (a, b, c, out)))
        batch = tuple(BatchDim(count, *steps) for count, steps in dims)
    return BlasCall(order, swapped, m, n, problem.k, trans_a, trans_b, lda, ldb, ldc, ldd, axis, batch)


def flipped(call: BlasCall) -> BlasCall:
    """Return ``call`` in the other storage order, on all matrices' transposes: the same bytes, D^T = B^T A^T."""
    return replace(
        call, order={"row": "col", "col": "row"}[call.order], swapped=not call.swapped, m=call.n, n=call.m,
        trans_a=call.trans_b, trans_b=call.trans_a, lda=call.ldb, ldb=call.lda,
        bias_axis={"m": "n", "n": "m", None: None}[call.bias_axis],
        batch=tuple(replace(x, stride_a=x.stride_b, stride_b=x.stride_a) for x in call.batch),
    )  # fmt: skip


def equivalent_calls(problem: GemmProblem, order: str) -> tuple[BlasCall, ...] | Refusal:
    """Lower ``problem`` to every possible call in the storage ``order`` "col" or "row".

    There are two where the result has one row or one column; the leading dimension of the first is the longer
    dimension of the result.
    """
    shared = _shared_orders(problem)
    if isinstance(shared, Refusal):
        return shared
    preferred = ("row", "col") if problem.n > 1 else ("col", "row")
    return tuple(_call(problem, order, stored != order) for stored in preferred if stored in shared)


def with_bias(calls: Sequence[BlasCall], problem: GemmProblem, library: str) -> BlasCall | Refusal:
    """Return the first of ``calls`` whose bias, if any, runs along the contiguous dimension of the result.

    Such a bias has one element per row of a column-major result, per column of a row-major one. The refusal names
    ``library``.
    """
    for call in calls:
        if call.bias_axis != {"col": "n", "row": "m"}[call.order]:
            return call
    per, order = ("column", "row") if problem.bias and problem.bias.axis == "n" else ("row", "column")
    return Refusal(
        f"the bias has an element per {per} of the result: {library} adds it to {order}-major results only",
        f"pass a {order}-major out, or add the bias afterwards",
    )


def fold_batch(problem: GemmProblem) -> GemmProblem | None:
    """Fold a batch whose matrices are all multiplied by the same b into one GEMM of batch*m rows.

    This is possible where a, out (and c) have the same stride from matrix to matrix as from row to row, and b and
    the vectors of the epilogue are shared. Returns None where that does not hold, where nothing is batched, or
    where :func:`lower` takes ``problem`` but not its folded form. The pointers stay the same.
    """
    if problem.batch_count <= 1 or problem.per_row:
        return None
    if any(s != 0 for size, s in zip(problem.batch, strides_over(problem.b.layout, problem.batch)) if size > 1):
        return None
    count = problem.batch_count
    folded = {}
    for name, operand in (("a", problem.a), ("out", problem.out), *problem.matrices.items()):
        layout: MatrixLayout = operand.layout
        dims = collapse((*problem.batch, problem.m), (*strides_over(layout, problem.batch), layout.row_stride))
        if len(dims) != 1:
            return None
        rows = MatrixLayout(count * problem.m, layout.cols, dims[0][1][0], layout.col_stride)
        # Matrices of one row may be broadcast, overlap or run backwards; rows of one matrix may not.
        if rows.order is None and layout.order is not None:
            return None
        folded[name] = replace(operand, layout=rows)
    shared = replace(problem.b.layout, batch=(), batch_strides=())
    a, out = folded.pop("a"), folded.pop("out")
    result = replace(problem, m=count * problem.m, batch=(), b=replace(problem.b, layout=shared), a=a, out=out)
    result = result.having(**folded)
    if isinstance(lower(result), Refusal) and not isinstance(lower(problem), Refusal):
        return None
    return result


SINGLE = BatchDim(1, 0, 0, 0, 0)
"""The dimension of a call without a batch."""


def forwards(dim: BatchDim) -> bool:
    """Whether no batch stride is negative; libraries do not document negative ones."""
    return min(dim.strides) >= 0


def split(
    batch: tuple[BatchDim, ...], fits: Callable[[BatchDim], bool] = forwards
) -> tuple[BatchDim, tuple[BatchDim, ...]]:
    """Split batch dimensions into the one that a call steps through, the longest that ``fits``, and the others."""
    if not batch:
        return SINGLE, ()
    fitting = [i for i, dim in enumerate(batch) if fits(dim)]
    if not fitting:
        return SINGLE, batch
    inner = max(fitting, key=lambda i: batch[i].count)
    return batch[inner], batch[:inner] + batch[inner + 1 :]


def offsets(outer: tuple[BatchDim, ...], itemsizes: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield, for each call, the byte offsets of A, B, C and D, whose elements have ``itemsizes`` bytes."""
    if not outer:
        yield 0, 0, 0, 0
        return
    for index in product(*(range(dim.count) for dim in outer)):
        a, b, c, d = (
            size * sum(i * dim.strides[which] for i, dim in zip(index, outer)) for which, size in enumerate(itemsizes)
        )
        yield a, b, c, d


def alignment(operand: Operand, steps: Sequence[int]) -> int:
    """Return the alignment in bytes of every matrix of an operand that is repeated at these steps (in elements)."""
    common = operand.alignment
    for step in steps:
        nbytes = abs(step) * operand.dtype.itemsize
        if nbytes:
            common = min(common, nbytes & -nbytes)
    return common
