"""Batches, for libraries that step through one evenly spaced dimension of matrices in a call.

A lowered problem (:class:`gemmhub.layout.BlasCall`) may have several batch dimensions: :func:`split` picks the one
that the library gets, :func:`offsets` says where each of the calls for the others begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from gemmhub.layout import BatchDim
from gemmhub.problem import Operand

SINGLE = BatchDim(1, 0, 0, 0, 0)
"""No batch."""


def forwards(dim: BatchDim) -> bool:
    """Whether no operand's stack runs backwards, which libraries are not said to take."""
    return min(dim.strides) >= 0


def split(
    batch: tuple[BatchDim, ...], fits: Callable[[BatchDim], bool] = forwards
) -> tuple[BatchDim, tuple[BatchDim, ...]]:
    """(the dimension that a call steps through, those that take a call each): the longest that ``fits``."""
    fitting = [i for i, dim in enumerate(batch) if fits(dim)]
    if not fitting:
        return SINGLE, batch
    inner = max(fitting, key=lambda i: batch[i].count)
    return batch[inner], batch[:inner] + batch[inner + 1 :]


def offsets(outer: tuple[BatchDim, ...], itemsizes: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Bytes to add to the addresses of A, B, C and D, whose elements have ``itemsizes`` bytes, for each call."""
    for index in product(*(range(dim.count) for dim in outer)):
        a, b, c, d = (
            size * sum(i * dim.strides[which] for i, dim in zip(index, outer)) for which, size in enumerate(itemsizes)
        )
        yield a, b, c, d


def alignment(operand: Operand, steps: Sequence[int]) -> int:
    """Bytes that divide the address of every matrix of an operand that is repeated at these steps (in elements)."""
    found = operand.alignment
    for step in steps:
        nbytes = abs(step) * operand.dtype.itemsize
        if nbytes:
            found = min(found, nbytes & -nbytes)
    return found
