"""A kernel of grouped products as a device would run it, in NumPy: offsets are read when it runs, not before.

Operands are addresses of host memory, or arrays. ``fault`` is one of :data:`FAULTS`, which tests must find.
"""

from __future__ import annotations

import numpy as np

from gemmhub import accuracy
from gemmhub.operands import BLOCK

FAULTS = (
    "an end is one too large", "an end is one too small", "no zeros beyond the end", "the epilogue beyond the end",
    "sums beyond the end", "an empty group keeps what it had", "a start is rounded down to 8", "two groups exchanged",
    "the first bias for all groups", "the first scale for all groups", "ends are not clamped",
    "the first ends for ever", "a tile of 16 rows is stored whole", "the first c for all groups", "c beyond the end",
)  # fmt: skip
"""Mistakes of a kernel."""


class _At:
    def __init__(self, address, dtype, shape, strides):
        kind = {"shape": tuple(shape), "strides": tuple(strides), "typestr": f"|V{dtype.itemsize}", "version": 3}
        self.__array_interface__ = {**kind, "data": (int(address), False)}


def at(place, dtype, shape, strides):
    """The array of this geometry at an address, or where an array begins; strides in elements."""
    dtype = np.dtype(dtype)
    if 0 in shape:
        return np.empty(shape, dtype)
    address = place if isinstance(place, int) else place.__array_interface__["data"][0]
    steps = [x * dtype.itemsize for x in strides]
    return np.asarray(_At(address, dtype, shape, steps)).view(dtype)


def _matrix(operand, place):
    x = operand.layout
    shape, strides = (*x.batch, x.rows, x.cols), (*x.batch_strides, x.row_stride, x.col_stride)
    return at(place, operand.dtype, shape, strides)


def _factors(scale, place, group, own, terms):
    """The factors of rows or columns ``own`` (numbers in the whole array) by terms, as float64."""
    along = {"m": own, "n": own, "n blocks": own // BLOCK, None: 0 * own}[scale.axis]
    deep = terms // BLOCK if scale.depth else 0 * terms
    index = sum(scale.batch_strides) * group + along[:, None] * scale.stride + deep * scale.depth_stride
    whole = at(place, np.float32, (int(index.max(initial=0)) + 1,), (1,))
    return whole[index].astype(np.float64)


def product(x, y):
    """x @ y, of stacks too, with the terms of each sum added one after the other: bits depend on nothing else."""
    total = np.zeros(np.broadcast_shapes(x.shape[:-1] + (1,), y.shape[:-2] + (1, y.shape[-1])), np.result_type(x, y))
    for i in range(x.shape[-1]):
        total += x[..., i, np.newaxis] * y[..., i, np.newaxis, :]
    return total


class GroupedKernel:
    """``run`` of one problem."""

    def __init__(self, problem, fault=None):
        assert problem.groups.count >= 1  # a call without groups needs no kernel
        self.problem, self.fault, self.kept = problem, fault, None

    def ends(self, offsets, extent):
        groups = self.problem.groups.count
        ends = at(offsets, np.int32, (groups,), (1,)).tolist()
        if self.fault == "the first ends for ever":
            self.kept = ends = self.kept or ends
        if self.fault != "ends are not clamped":
            ends = [min(max(0, *ends[: i + 1]), extent) for i in range(groups)]
        if self.fault in ("an end is one too large", "an end is one too small"):
            step = 1 if self.fault.endswith("large") else -1
            ends = [min(max(0, end + step), extent) for end in ends]
        return ends

    def run(self, a, b, out, alpha, beta, stream, *, offsets, c=None, bias=None, scale_a=None, scale_b=None):
        problem, fault = self.problem, self.fault
        assert (beta == 0) == (c is None)
        divides = problem.groups.divides
        extent = {"m": problem.m, "n": problem.n, "k": problem.k}[divides]
        ends = self.ends(offsets, extent)
        starts = [0, *ends[:-1]]
        if fault == "a start is rounded down to 8":
            starts = [start // 8 * 8 for start in starts]
        spans = [(max(0, x), min(max(x, y), extent)) for x, y in zip(starts, ends)]
        if fault == "sums beyond the end" and divides == "k":
            spans[-1] = (spans[-1][0], extent)
        if fault == "two groups exchanged" and len(spans) > 1:
            spans[:2] = spans[1::-1]
        left, right, target = _matrix(problem.a, a), _matrix(problem.b, b), _matrix(problem.out, out)
        addend = None if c is None else _matrix(problem.operands["c"], c).copy()  # it may be the result
        numbered = [*enumerate(spans)]  # on a device in any order
        for i, (start, end) in numbered[::-1] if fault == "a tile of 16 rows is stored whole" else numbered:
            if start == end and (divides != "k" or fault == "an empty group keeps what it had"):
                continue
            span = np.arange(start, end)
            rows = span if divides == "m" else np.arange(problem.m)
            columns = span if divides == "n" else np.arange(problem.n)
            terms = span if divides == "k" else np.arange(problem.k)
            wide = np.float64 if problem.compute_dtype.kind != "c" else np.complex128
            x = (left[i] if left.ndim == 3 else left)[np.ix_(rows, terms)].astype(wide)
            y = (right[i] if right.ndim == 3 else right)[np.ix_(terms, columns)].astype(wide)
            own = 0 if fault == "the first scale for all groups" else i
            if scale_a is not None:
                x *= _factors(problem.operands["scale_a"], scale_a, own, rows, terms)
            if scale_b is not None:
                y *= _factors(problem.operands["scale_b"], scale_b, own, columns, terms).T
            with np.errstate(all="ignore"):
                values = alpha * product(x, y) if alpha else np.zeros((len(rows), len(columns)))
                if addend is not None:
                    first = start if fault == "the first c for all groups" else 0
                    own = addend[0 if first or not i else i] if addend.ndim == 3 else addend
                    along = rows - first * (divides == "m"), columns - first * (divides == "n")
                    values = values + beta * own[np.ix_(*along)].astype(np.float64)
                values = self._epilogue(values, bias, i, columns)
            into = target[i] if target.ndim == 3 else target
            if divides == "m":
                into[start:end] = values
                if fault == "a tile of 16 rows is stored whole":
                    into[end : start + -(-(end - start) // 16) * 16] = 0
            elif divides == "n":
                into[:, start:end] = values
            else:
                into[...] = values
        if fault != "no zeros beyond the end" and divides != "k":
            last = max(0, min(max(ends, default=0), extent))
            rest = target[last:] if divides == "m" else target[:, last:]
            rest[...] = 0
            if fault == "c beyond the end" and addend is not None:
                rest[...] = addend[last:] if divides == "m" else addend[:, last:]
            if fault == "the epilogue beyond the end" and divides == "m":
                columns = np.arange(problem.n)
                rest[...] = self._epilogue(np.zeros((len(rest), problem.n)), bias, 0, columns)

    def _epilogue(self, values, bias, group, columns):
        if bias is not None:
            facts = self.problem.bias
            group = 0 if self.fault == "the first bias for all groups" else group
            index = sum(facts.batch_strides) * group + columns * facts.stride
            whole = at(bias, facts.dtype, (int(index.max(initial=0)) + 1,), (1,))
            values = values + whole[index].astype(np.float64)
        return accuracy.activate(values, self.problem.activation)
