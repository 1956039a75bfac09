"""Operands of NumPy: ``numpy.ndarray``, and the scalars and nested sequences that NumPy makes one of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import numpy as np

from gemmhub._arrays import array_types
from gemmhub._base.geometry import distinct, reach
from gemmhub._base.timing import CLOCK, Clock
from gemmhub.capability import CPU
from gemmhub.dtypes import DType
from gemmhub.errors import AllocationError, InputError, OutputError

Array = Any

SEQUENCES = (int, float, complex, list, tuple)
"""What NumPy makes an array of; it takes the arrays of the array it meets."""


class NumpyArrays:
    """``numpy.ndarray`` and what NumPy makes one of: scalars and nested sequences (which are copied)."""

    name = "numpy"
    device = CPU

    def view(self, x: object, argument: str) -> Array:
        """``x`` as an ndarray; InputError for ragged sequences and for arrays that mean something else."""
        kind: Any = type(x)
        if kind is np.ndarray:
            return x
        if not array_types.numbers_alone(kind, argument == "out"):
            raise array_types.refusal(x, argument)
        try:
            return np.asarray(x)
        except MemoryError:
            raise
        except Exception as error:  # __array__ is foreign code
            raise InputError(
                argument, f"not an array: {error}", "arrays, or nested sequences of equal lengths of numbers"
            ) from error

    def target(self, out: object, shape: tuple[int, ...]) -> Array:
        """``out`` as an ndarray of ``shape`` that can be written element by element; OutputError if it cannot."""
        if not self.holds(out):
            raise OutputError("out", f"a {type(out).__qualname__}", "an array")
        native = self.view(out, "out")
        if native.shape != shape:
            given = f"shape {native.shape} (NumPy: non-broadcastable output operand)"
            raise OutputError("out", given, f"shape {shape}", "give it the shape of the result")
        flags = native.flags
        if not flags.writeable:
            raise OutputError("out", "a read-only array", "a writeable array")
        if not (flags.forc or distinct(native)):
            raise OutputError(
                "out", f"several elements share memory (strides {native.strides})", "an array of its own memory"
            )
        return native

    def holds(self, out: object) -> bool:
        """Whether what is written into the view of ``out`` is written into ``out`` (and not into a copy)."""
        return isinstance(out, np.ndarray)

    def wrap(self, native: Array, operands: tuple[object, ...]) -> Array:
        """A native result in the arrays's own type: that of the first operand which has one."""
        return native

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """A new C-ordered array; AllocationError when there is no memory for it."""
        try:
            return np.empty(shape, dtype)
        except (MemoryError, ValueError) as error:
            size = prod(shape) * dtype.itemsize
            raise AllocationError(
                f"the result, {dtype} of shape {shape}, needs {size / 2**30:.4g} GiB: {error}"
            ) from None

    def twin(self, x: Array) -> Array:
        """A new array with the shape, dtype and strides of a native one; its contents are undefined."""
        first, span = reach(x)
        return np.ndarray(x.shape, x.dtype, self.empty((span,), np.dtype(np.uint8)), first, x.strides)

    def clone(self, x: Array) -> Array:
        """A copy that lies in memory as ``x`` does."""
        twin = self.twin(x)
        twin[...] = x
        return twin

    def from_host(self, x: Array) -> Array:
        """``x`` itself."""
        return x

    def to_host(self, x: Array) -> Array:
        """A view: it is on the host already."""
        return self.view(x, "x")

    def overlap(self, x: Array, y: Array) -> bool:
        """Whether the address ranges of two native arrays meet (never False where memory is shared)."""
        return bool(np.may_share_memory(x, y))

    def clock(self) -> Clock:
        """The process's own."""
        return CLOCK

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        """There is nothing to be made current."""
        return nullcontext()

    def synchronize(self) -> None:
        """Calls return when their work is done."""

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> None:
        """None: :func:`gemmhub.matmul` itself looks plain calls up."""

    def capturing(self) -> bool:
        """There are no streams."""
        return False


NUMPY = NumpyArrays()
