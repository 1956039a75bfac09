"""Families of arrays: which library an operand comes from, and how to look at it natively.

A family views its arrays as ``numpy.ndarray`` on the CPU, never copying; what cannot be viewed is refused.
Results go back as arrays of the operands' own family.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from gemmhub.capability import CPU
from gemmhub.dtypes import DType
from gemmhub.errors import AllocationError, DeviceError, InputError, OutputError
from gemmhub.packed import PackedB

Array = Any

SEQUENCES = (int, float, complex, list, tuple)
"""What NumPy makes an array of; it takes the family of the array it meets."""


class NumpyFamily:
    """``numpy.ndarray`` and what NumPy makes one of: scalars and nested sequences (which are copied)."""

    name = "numpy"
    device = CPU

    def view(self, x: object, argument: str) -> Array:
        """``x`` as an ndarray; InputError for ragged sequences and for arrays that mean something else."""
        if type(x) is np.ndarray:
            return x
        if isinstance(x, (np.ma.MaskedArray, np.matrix)):
            raise InputError(
                argument, f"a {type(x).__name__}", "plain arrays", f"pass numpy.asarray({argument}) if that is meant"
            )
        try:
            return np.asarray(x)
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
            raise OutputError("out", f"shape {native.shape}", f"shape {shape}", "give it the shape of the result")
        flags = native.flags
        if not flags.writeable:
            raise OutputError("out", "a read-only array", "a writeable array")
        if not (flags.forc or _distinct(native)):
            raise OutputError(
                "out", f"several elements share memory (strides {native.strides})", "an array of its own memory"
            )
        return native

    def holds(self, out: object) -> bool:
        """Whether what is written into the view of ``out`` is written into ``out`` (and not into a copy)."""
        return isinstance(out, np.ndarray)

    def wrap(self, native: Array, operands: tuple[object, ...]) -> Array:
        """A native result in the family's own type: that of the first operand which has one."""
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

    def overlap(self, x: Array, y: Array) -> bool:
        """Whether the address ranges of two native arrays meet (never False where memory is shared)."""
        return bool(np.may_share_memory(x, y))


class DLPackFamily(NumpyFamily):
    """CPU arrays of other libraries, viewed through DLPack; results go back through their own namespace."""

    name = "dlpack"

    def view(self, x: Any, argument: str) -> Array:
        if isinstance(x, SEQUENCES):
            return super().view(x, argument)
        try:
            return np.from_dlpack(x)
        except Exception as error:  # __dlpack__ is foreign code
            raise InputError(
                argument, f"a {type(x).__qualname__} that NumPy cannot view: {error}", "CPU arrays that export DLPack"
            ) from error

    def holds(self, out: object) -> bool:
        return not isinstance(out, SEQUENCES)

    def wrap(self, native: Array, operands: tuple[Any, ...]) -> Array:
        like = next(x for x in operands if x is not None and not isinstance(x, (PackedB, *SEQUENCES)))
        if not isinstance(native, np.ndarray):
            native = np.asarray(native)
        namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else None
        if namespace is None:
            namespace = __import__(type(like).__module__.partition(".")[0])
        try:
            return namespace.from_dlpack(native)
        except (AttributeError, BufferError, RuntimeError) as error:
            raise InputError(
                "a, b",
                f"a result of {native.dtype} cannot become a {type(like).__qualname__}: {error}",
                "arrays whose library has from_dlpack",
                "pass numpy.from_dlpack(x) and convert the result",
            ) from None


Family = NumpyFamily
NUMPY = NumpyFamily()
DLPACK = DLPackFamily()
_DLPACK_DEVICES = {1: "cpu", 2: "cuda", 3: "cuda host memory", 13: "cuda managed memory", 10: "rocm", 8: "metal"}


def family_of(x: object, argument: str) -> Family:
    """The family of one operand; DeviceError for arrays on a device that nothing here can address."""
    if isinstance(x, (np.ndarray, np.generic, *SEQUENCES)):
        return NUMPY
    if hasattr(x, "__cuda_array_interface__"):
        raise DeviceError(
            argument, "an array on a CUDA device", "CPU arrays", "copy it to the host, for example with .get()"
        )
    if hasattr(x, "__dlpack_device__"):
        try:
            kind = int(x.__dlpack_device__()[0])
        except Exception as error:  # foreign code
            raise DeviceError(argument, f"a {type(x).__qualname__} on no device: {error}", "CPU arrays") from error
        if kind != 1:
            name = _DLPACK_DEVICES.get(kind, f"DLPack device type {kind}")
            raise DeviceError(argument, f"an array on {name}", "CPU arrays", "copy it to the host")
        return DLPACK
    if hasattr(x, "__array_interface__") or hasattr(x, "__array__") or _is_buffer(x):
        return NUMPY
    raise InputError(
        argument,
        f"a {type(x).__qualname__} is not an array",
        "numpy arrays, nested sequences of numbers, CPU arrays that export DLPack",
    )


def _is_buffer(x: Any) -> bool:
    try:
        memoryview(x).release()
    except (TypeError, ValueError, BufferError):
        return False
    return True


def _distinct(x: Array) -> bool:
    """Whether no two elements share memory, as it is for everything that slicing and transposing make.

    (Views made by hand may be distinct without satisfying this test; numpy.lib.stride_tricks warns of them.)
    """
    reached = int(x.itemsize)
    for stride, size in sorted((abs(stride), size) for stride, size in zip(x.strides, x.shape) if size > 1):
        if stride < reached:
            return False
        reached += stride * (size - 1)
    return True


def reach(x: Array) -> tuple[int, int]:
    """The memory that an ndarray lies in: (bytes before its first element, bytes in all)."""
    if x.size == 0:
        return 0, 0
    ends = [(size - 1) * stride for size, stride in zip(x.shape, x.strides)]
    first = -sum(end for end in ends if end < 0)
    return first, first + sum(end for end in ends if end > 0) + int(x.itemsize)
