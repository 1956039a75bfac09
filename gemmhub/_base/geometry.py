"""Geometry of operands: shapes, strides and alignment of a numpy.ndarray or an array on a device.

On devices gemmhub never touches data, so all it keeps of an operand is a :class:`DeviceView`: the address of the
first element, the shape and the strides. The functions below turn vectors into matrices, broadcast, and measure
both; on ndarrays they return views that share memory.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gemmhub.dtypes import DType

Array = Any
"""A numpy.ndarray or a :class:`DeviceView`."""

MAX_ALIGNMENT = 256
"""The largest alignment, in bytes, that is distinguished."""


class DeviceView:
    """An operand on a device: address of element [0, ...], dtype, shape, strides in bytes.

    ``owner`` is kept alive as long as the view.
    """

    __slots__ = ("address", "dtype", "owner", "shape", "strides")

    def __init__(
        self, address: int, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], owner: object = None
    ) -> None:
        self.address = address
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.owner = owner

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def inserted(self, axis: int) -> DeviceView:
        """This view with a dimension of size 1 in front of ``axis`` (0 to ndim)."""
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        return DeviceView(self.address, self.dtype, shape, (*self.strides[:axis], 0, *self.strides[axis:]), self.owner)

    def broadcast(self, shape: tuple[int, ...]) -> DeviceView:
        """Broadcast like numpy.broadcast_to; ValueError where the shape does not fit."""
        if broadcast_shapes(self.shape, shape) != shape:
            raise ValueError(f"{self.shape} does not broadcast to {shape}")
        own = (*(1,) * (len(shape) - self.ndim), *self.shape)
        steps = (*(0,) * (len(shape) - self.ndim), *self.strides)
        strides = tuple(0 if x == 1 else step for x, step in zip(own, steps))
        return DeviceView(self.address, self.dtype, shape, strides, self.owner)

    def __repr__(self) -> str:
        return f"<DeviceView {self.dtype} {self.shape} strides {self.strides} at {self.address:#x}>"


def as_matrix(x: Array, argument: str) -> Array:
    """``x`` with at least two dimensions: a vector becomes the row or column that numpy.matmul makes of it."""
    if x.ndim > 1:
        return x
    return inserted(x, 0 if argument == "a" else 1)


def expand(x: Array, a_ndim: int, b_ndim: int) -> Array:
    """A view of a result-shaped array with the dimensions that vectors dropped."""
    if b_ndim == 1:
        x = inserted(x, x.ndim)
    return inserted(x, x.ndim - 1) if a_ndim == 1 else x


def inserted(x: Array, axis: int) -> Array:
    """``x`` with a dimension of size 1 in front of ``axis``."""
    return x.inserted(axis) if isinstance(x, DeviceView) else np.expand_dims(x, axis)


def broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast like numpy.broadcast_to, but ``x`` of this shape keeps its strides; ValueError for misfits."""
    if x.shape == shape:
        return x
    return x.broadcast(shape) if isinstance(x, DeviceView) else np.broadcast_to(x, shape)


def broadcast_shapes(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast two shapes, of more than numpy.broadcast_shapes's 32 dimensions too; ValueError for misfits."""
    if len(x) < len(y):
        x, y = y, x
    sizes = list(x)
    for axis, size in enumerate(y, len(x) - len(y)):
        if sizes[axis] == 1:
            sizes[axis] = size
        elif size not in (1, sizes[axis]):
            raise ValueError(f"{x} and {y} do not broadcast")
    return tuple(sizes)


def whole_strides(x: Array) -> bool:
    """Whether all strides are multiples of the element size."""
    return not any(stride % x.itemsize for stride in x.strides)


def address_of(x: Array) -> int:
    """The address of element [0, ...]; that of a packed or described operand, which has none, is 0."""
    return int(x.ctypes.data) if isinstance(x, np.ndarray) else int(getattr(x, "address", 0))


def alignment(x: Array) -> int:
    """The alignment in bytes, as :class:`~gemmhub.problem.Operand` defines it."""
    if isinstance(x, DeviceView):
        if x.size == 0:
            return MAX_ALIGNMENT  # no element is at its address
        low = x.address % MAX_ALIGNMENT
        return (low & -low or MAX_ALIGNMENT) if whole_strides(x) else 1
    return int(x.itemsize) if x.flags.aligned and whole_strides(x) else 1


def distinct(x: Array) -> bool:
    """Whether no two elements share memory, as in all results of slicing and transposing.

    (Views with manual strides may be distinct without satisfying this test; numpy.lib.stride_tricks warns of them.)
    """
    if x.size == 0:
        return True
    reached = int(x.itemsize)
    for stride, size in sorted((abs(stride), size) for stride, size in zip(x.strides, x.shape) if size > 1):
        if stride < reached:
            return False
        reached += stride * (size - 1)
    return True


def reach(x: Array) -> tuple[int, int]:
    """The memory that an array spans: (bytes before its first element, bytes in all)."""
    if x.size == 0:
        return 0, 0
    ends = [(size - 1) * stride for size, stride in zip(x.shape, x.strides)]
    first = -sum(end for end in ends if end < 0)
    return first, first + sum(end for end in ends if end > 0) + int(x.itemsize)


def meet(x: DeviceView, y: DeviceView) -> bool:
    """Whether the address ranges of two operands on a device share a byte."""
    (before_x, span_x), (before_y, span_y) = reach(x), reach(y)
    first_x, first_y = x.address - before_x, y.address - before_y
    return first_x < first_y + span_y and first_y < first_x + span_x and span_x > 0 and span_y > 0


def same_memory(x: Array, y: Array) -> bool:
    """Whether two arrays have the same elements at the same addresses."""
    return bool(_address(x) == _address(y) and x.strides == y.strides and x.dtype == y.dtype and x.shape == y.shape)


def _address(x: Array) -> int:
    return int(x.address if isinstance(x, DeviceView) else x.__array_interface__["data"][0])
