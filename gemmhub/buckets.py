"""Buckets: ranges of sizes for which one candidate is chosen.

Real calls bring new sizes all the time. So candidates are not ranked at the sizes of a call, but at the end of the
bucket that these are in, which depends on nothing but them: a decision is the same whichever size is met first. Sizes
up to 32 have buckets of their own; above, each power of two is cut into 16 buckets of one width.

On the CPU every size is bucketed. On devices m alone is: n, k and strides other than m's are those of weights, which
repeat. So is the m of a grouped product that groups divide; the others stand for themselves.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from gemmhub.epilogues import columns
from gemmhub.layout import MatrixLayout
from gemmhub.operands import Described, Scale
from gemmhub.problem import GemmProblem, Operand

_EXACT = 32
"""The largest size that has a bucket of its own."""
_BITS = 5
"""Leading bits of a size, less one, that its bucket depends on."""
_LINE = 16
"""Bytes of the widest access: strides and sizes that are multiples of it are alike."""


def _end(size: int) -> int:
    width = 1 << ((size - 1).bit_length() - _BITS)
    return -(-size // width) * width


_TABLE = tuple(size if size <= _EXACT else _end(size) for size in range(4097))


def end(size: int) -> int:
    """Return the largest size of the bucket that ``size`` is in."""
    return _TABLE[size] if size < 4097 else _end(size)


def representative(problem: GemmProblem) -> GemmProblem:
    """Return the problem that candidates for ``problem`` are ranked at: sizes are the ends of their buckets.

    Storage orders, broadcast dimensions and alignment are those of ``problem``. Its batch is bucketed on the CPU only.
    A problem with a packed b, one without elements, and one whose groups divide n or k stand for themselves.
    """
    if problem.packed_by is not None or problem.empty:
        return problem
    if problem.groups is not None and problem.groups.divides != "m":
        return problem
    return _on_cpu(problem) if problem.device.type == "cpu" else _on_device(problem)


def _on_cpu(problem: GemmProblem) -> GemmProblem:
    m, n, k, batch = end(problem.m), end(problem.n), end(problem.k), tuple(map(end, problem.batch))

    def resized(x: Operand, rows: int, cols: int) -> Operand:
        old, order = x.layout, x.layout.order
        new = MatrixLayout.contiguous(rows, cols, batch, order or "row")
        if order is None:
            new = replace(new, row_stride=2 * cols, col_stride=2)
        strides = tuple(ours if theirs else 0 for ours, theirs in zip(new.batch_strides, old.batch_strides))
        return replace(x, layout=replace(new, batch_strides=strides))

    return replace(
        problem, m=m, n=n, k=k, batch=batch, a=resized(problem.a, m, k), b=resized(problem.b, k, n),
        out=resized(problem.out, m, columns(problem.activation, n)),
    ).having(**{name: resized(x, m, n) for name, x in problem.matrices.items()})  # fmt: skip


def _on_device(problem: GemmProblem) -> GemmProblem:
    """``problem`` with another m. Strides that m is part of keep what they share with 16 bytes.

    Where m is the contiguous dimension of an operand, so does m itself; where no size of the bucket does, or where m's
    strides are free, the problem stands for itself.
    """
    tall = [problem.a, problem.out, *problem.matrices.values()]
    orders = [x.layout.order for x in tall]
    if None in orders or problem.m <= _EXACT:
        return problem
    along = [x.dtype.itemsize for x, order in zip(tall, orders) if order == "col"]
    m = _alike(problem.m, end(problem.m), min(along, default=_LINE), -1)
    if m < problem.m:
        return problem

    def resized(x: Operand) -> Operand:
        old, size = x.layout, x.dtype.itemsize
        row, col = old.row_stride, old.col_stride
        if old.order == "col":
            col = _alike(col, max(m, col), size, 1)
        extent = old.rows * abs(old.row_stride) if old.order == "row" else old.cols * abs(old.col_stride)
        grown = m * row if old.order == "row" else old.cols * col
        strides = tuple(
            _alike(stride, stride * grown // max(1, extent), size, 1) if stride else 0 for stride in old.batch_strides
        )
        return replace(x, layout=replace(old, rows=m, row_stride=row, col_stride=col, batch_strides=strides))

    others: dict[str, Described] = {name: resized(x) for name, x in problem.matrices.items()}
    for name, scale in problem.operands.items():
        # Factors of rows that are contiguous along m are m elements apart along k.
        if isinstance(scale, Scale) and scale.axis == "m" and scale.depth_stride == problem.m:
            others[name] = replace(scale, depth_stride=m)
    return replace(problem, m=m, a=resized(problem.a), out=resized(problem.out)).having(**others)


def _alike(old: int, new: int, itemsize: int, step: int) -> int:
    """Return ``new``, or the next number in the direction of ``step`` that shares as much with 16 bytes as ``old``."""
    shared = gcd(old * itemsize, _LINE)
    while gcd(new * itemsize, _LINE) != shared:
        new += step
    return new
