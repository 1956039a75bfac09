"""Memory of operands: arrays in the layouts of the kit, on the host or a device, with guard bytes around.

Everything outside a matrix (guards, padding between rows, gaps between elements) is filled with NaN bit
patterns or garbage: a kernel that reads it computes wrong results, one that writes it is caught by comparison.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gemmhub.capability import CPU, Device
from gemmhub.dtypes import DType

Array = Any
_GUARD = 256


class Unrepresentable(Exception):  # noqa: N818 - a limit of an array library, not an error
    """An array that the memory's array library cannot express."""


class Memory:
    """The memory of operands. This class is the host; subclass it for a device.

    ``device`` is part of the problem, and the kernel receives ``stream``. ``view`` may raise :class:`Unrepresentable`
    where the device's arrays cannot express something (a dtype, a negative stride): such cases are skipped.
    """

    device: Device = CPU
    stream: int | None = None

    def empty(self, nbytes: int) -> Array:
        """A new one-dimensional uint8 array; on devices at an address that is a multiple of 256."""
        return np.empty(nbytes, np.uint8)

    def write(self, buffer: Array, data: Array) -> None:
        """Copy ``data`` (host, uint8, of equal length) into ``buffer``."""
        buffer[:] = data

    def read(self, buffer: Array) -> Array:
        """The bytes of ``buffer`` as a new host array."""
        return buffer.copy()

    def view(self, buffer: Array, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
        """An array over ``buffer`` that shares its memory; ``strides`` and ``offset`` count bytes."""
        return np.ndarray(shape, dtype, buffer=buffer, offset=offset, strides=strides)

    def synchronize(self) -> None:
        """Wait for all work on ``stream`` and all copies."""

    def allocated(self, work: Callable[[], None]) -> int | None:
        """Call ``work``; return the most bytes of new memory that it holds at once, None where that is not observed.

        On the host these are the bytes that Python and NumPy allocate (:mod:`tracemalloc`), not those that native code
        allocates. The memory of a device observes nothing unless it overrides this method.
        """
        if self.device != CPU:
            work()
            return None
        traced = tracemalloc.is_tracing()
        if not traced:
            tracemalloc.start()
        try:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            work()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            if not traced:
                tracemalloc.stop()


HOST = Memory()


@dataclass(frozen=True)
class Strides:
    """The strides of a stack of matrices in its memory, in elements."""

    batch: tuple[int, ...]
    row: int
    col: int
    first: int
    """Index of element [0, ..., 0]."""
    size: int
    """Number of elements from the lowest to the highest address, inclusive."""


def _up(x: int) -> int:
    """The next multiple of 16 above ``x``, a leading dimension that tensor cores and TMA can use."""
    return (x // 16 + 1) * 16


def strides(layout: str, batch: tuple[int, ...], rows: int, cols: int) -> Strides:
    """Return the strides of a (*batch, rows, cols) stack in one of the layouts of the kit.

    "row", "col": dense. "row_padded", "col_padded": the leading dimension is the next multiple of 16, with gaps
    between matrices. "row_odd", "col_odd": the leading dimension is 3 more than the minimum.
    "interleaved": row-major, the batch between rows and columns, as a transposed (rows, *batch, cols) array.
    "strided": every second element of longer rows. "reversed": row-major with the rows in reverse order.
    "rows0": one row for all, with a stride of 0.
    """
    gap = 0
    dense_rows, dense_cols = max(1, rows), max(1, cols)  # no leading dimension is 0
    if layout == "interleaved":
        inner, total = dense_cols, max(1, prod(batch))
        row, col = inner * total, 1
        steps = tuple(inner * prod(batch[i + 1 :]) for i in range(len(batch)))
        return Strides(steps, row, col, 0, dense_rows * row)
    if layout in ("row", "row_padded", "row_odd"):
        lead = {"row": dense_cols, "row_padded": _up(cols), "row_odd": cols + 3}[layout]
        row, col, span = lead, 1, rows * lead
    elif layout in ("col", "col_padded", "col_odd"):
        lead = {"col": dense_rows, "col_padded": _up(rows), "col_odd": rows + 3}[layout]
        row, col, span = 1, lead, cols * lead
    elif layout == "strided":
        row, col, span = 2 * cols + 1, 2, rows * (2 * cols + 1)
    elif layout == "reversed":
        row, col, span = -dense_cols, 1, rows * cols
    elif layout == "rows0":
        row, col, span = 0, 1, cols
    else:
        raise ValueError(f"unknown layout {layout!r}")
    span = max(1, span)
    if layout.endswith("padded"):
        gap = 32
    steps = tuple((span + gap) * prod(batch[i + 1 :]) for i in range(len(batch)))
    first = (rows - 1) * cols if layout == "reversed" and rows else 0
    return Strides(steps, row, col, first, max(1, (span + gap) * prod(batch)))


class Placed:
    """One operand: its host image, and the array that a kernel receives."""

    def __init__(
        self, memory: Memory, dtype: DType, shape: tuple[int, ...], steps: tuple[int, ...], first: int, size: int
    ) -> None:
        self.memory, self.dtype, self.shape = memory, dtype, shape
        self.steps = steps
        """Strides in elements, one per dimension of ``shape``."""
        self.offset = _GUARD + first * dtype.itemsize
        self.strides = tuple(step * dtype.itemsize for step in steps)
        nbytes = (2 * _GUARD + (first + size) * dtype.itemsize + 255) // 256 * 256
        self.image = np.empty(nbytes, np.uint8)
        self.values = HOST.view(self.image, dtype, shape, self.strides, self.offset)
        self.buffer = memory.empty(nbytes)
        self.array = self.view(shape, self.strides)

    def view(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """The same memory in another shape."""
        return self.memory.view(self.buffer, self.dtype, shape, strides, self.offset)

    @property
    def alignment(self) -> int:
        """The alignment in bytes, as :class:`~gemmhub.problem.Operand` defines it."""
        if self.memory.device.type == "cpu":
            return self.dtype.itemsize
        return self.offset & -self.offset if self.offset % 256 else 256

    def fill(self, values: Array, garbage: np.random.Generator | None) -> None:
        """Write ``values``; everything around them becomes NaN bit patterns, or ``garbage``."""
        if garbage is None:
            self.image[:] = 0xFF
        else:
            self.image[:] = garbage.integers(0, 256, self.image.size, np.uint8)
        if values is not None:
            self.values[...] = values
        self.memory.write(self.buffer, self.image)

    def read(self) -> tuple[Array, Array]:
        """The current (values, all bytes)."""
        now = self.memory.read(self.buffer)
        return HOST.view(now, self.dtype, self.shape, self.strides, self.offset), now

    def outside(self) -> Array:
        """Mask of the bytes that belong to no element."""
        mask = np.ones(self.image.size, np.bool_)
        shape, strides = (*self.shape, self.dtype.itemsize), (*self.strides, 1)
        np.ndarray(shape, np.bool_, buffer=mask, offset=self.offset, strides=strides)[...] = False
        return mask
