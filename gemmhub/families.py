"""Families of arrays: which library an operand comes from, and how to look at it natively.

A family views its arrays without copying: as ``numpy.ndarray`` on the CPU, as
:class:`~gemmhub.views.DeviceView` on devices (:mod:`gemmhub.device_families`); what cannot be viewed is refused.
Results go back as arrays of the operands' own family.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, Protocol

import numpy as np

from gemmhub.capability import CPU, Device
from gemmhub.dtypes import DType
from gemmhub.errors import AllocationError, InputError, OutputError
from gemmhub.packed import PackedB
from gemmhub.timing import CLOCK, Clock
from gemmhub.views import MOST_ALIGNED, distinct, reach

Array = Any

SEQUENCES = (int, float, complex, list, tuple)
"""What NumPy makes an array of; it takes the family of the array it meets."""


class Family(Protocol):
    """What gemmhub asks of a kind of array. "Native" is what :meth:`view` returns."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> Device: ...

    def view(self, x: object, argument: str) -> Array:
        """``x`` natively, sharing its memory. Raises InputError, DTypeError or DeviceError."""

    def target(self, out: object, shape: tuple[int, ...]) -> Array:
        """``out`` natively, of ``shape`` and such that each element can be written; OutputError if it is not."""

    def wrap(self, result: Array, operands: tuple[object, ...]) -> Array:
        """What :meth:`empty` made and a kernel filled, as the operands' own type."""

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """A new C-ordered array; AllocationError when there is no memory for it."""

    def twin(self, x: Array) -> Array:
        """A new array with the shape, dtype and strides of a native one, and aligned as well as that; its contents
        are undefined.
        """

    def clone(self, x: Array) -> Array:
        """A copy of an array (native or not) that lies in memory as it does."""

    def from_host(self, x: Array) -> Array:
        """A new array with the contents of an ndarray."""

    def to_host(self, x: Array) -> Array:
        """The contents as an ndarray; waits for the device."""

    def overlap(self, x: Array, y: Array) -> bool:
        """Whether the address ranges of two native arrays meet (never False where memory is shared)."""

    def clock(self) -> Clock:
        """How calls on such arrays are timed."""

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        """Make the device, and ``stream`` where one is given, current for a block."""

    def synchronize(self) -> None:
        """Wait for all work on the device."""


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
        if not (flags.forc or distinct(native)):
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


class DLPackFamily(NumpyFamily):
    """CPU arrays of other libraries, viewed through DLPack; results go back through their own namespace."""

    name = "dlpack"

    def view(self, x: Any, argument: str) -> Array:
        if isinstance(x, SEQUENCES):
            return super().view(x, argument)
        try:
            native = np.from_dlpack(x)
            if native.size and hasattr(x, "data_ptr") and not x.data_ptr():  # a fake tensor: NumPy made up memory
                raise ValueError("it has no memory")
        except Exception as error:  # __dlpack__ is foreign code
            raise InputError(
                argument, f"a {type(x).__qualname__} that NumPy cannot view: {error}", "CPU arrays that export DLPack"
            ) from error
        return native

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


NUMPY = NumpyFamily()
DLPACK = DLPackFamily()


def family_of(x: object, argument: str) -> Family:
    """The family of one operand; DeviceError for arrays on a device that nothing here can address.

    An array type may bring its own: ``__gemmhub_family__()``, asked of an array, returns it.
    """
    if isinstance(x, (np.ndarray, np.generic, *SEQUENCES)):
        return NUMPY
    own = getattr(type(x), "__gemmhub_family__", None)
    if own is not None:
        return own(x)  # type: ignore[no-any-return]
    if _may_be_on_a_device(x):
        from gemmhub import device_families, foreign

        found = device_families.native_family(x, argument) or foreign.family(x, argument)
        if found is not None:
            return found
    if hasattr(x, "__dlpack_device__"):
        return DLPACK
    if hasattr(x, "__array_interface__") or hasattr(x, "__array__") or _is_buffer(x):
        return NUMPY
    raise InputError(
        argument,
        f"a {type(x).__qualname__} is not an array",
        "arrays of numpy, cupy, torch; nested sequences of numbers; arrays that export DLPack or the CUDA array "
        "interface",
    )


def _may_be_on_a_device(x: object) -> bool:
    # Torch tensors have __cuda_array_interface__ on any device: it raises AttributeError where it is none.
    return hasattr(x, "__dlpack_device__") or hasattr(x, "__cuda_array_interface__")


def _is_buffer(x: Any) -> bool:
    try:
        memoryview(x).release()
    except (TypeError, ValueError, BufferError):
        return False
    return True


def layout_key(x: Any) -> tuple[Any, ...]:
    """What a decision may depend on besides type, dtype and shape: strides, alignment, device.

    AttributeError for what says too little of itself to be known again.
    """
    if isinstance(x, np.ndarray):
        return x.strides, x.flags.aligned
    if hasattr(x, "data_ptr"):  # a torch tensor
        return x.stride(), x.device, x.data_ptr() % MOST_ALIGNED
    if _may_be_on_a_device(x):
        return x.strides, x.data.device_id, x.data.ptr % MOST_ALIGNED  # a cupy array
    return x.strides, False
