"""Families of arrays: which library an operand comes from, and how to look at it natively.

A family views its arrays without copying: as ``numpy.ndarray`` on the CPU, as
:class:`~gemmhub._arrays.geometry.DeviceView` on devices (:mod:`gemmhub._arrays.on_device`); what cannot be viewed is
refused. Results go back as arrays of the operands' own family.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from math import prod
from typing import Any, Protocol

import numpy as np

from gemmhub._arrays import array_types, on_device, torch_tensors
from gemmhub._arrays.array_types import library_name
from gemmhub._arrays.geometry import MOST_ALIGNED, distinct, reach
from gemmhub._arrays.timing import CLOCK, Clock
from gemmhub.capability import CPU, Device
from gemmhub.dtypes import ML_DTYPES, DType
from gemmhub.errors import AllocationError, InputError, OutputError
from gemmhub.packed import PackedB

Array = Any

SEQUENCES = (int, float, complex, list, tuple)
"""What NumPy makes an array of; it takes the family of the array it meets."""
_WITHOUT_LIBRARY = (PackedB, *SEQUENCES)


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

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph, where nothing can be timed."""


class NumpyFamily:
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

    def capturing(self) -> bool:
        """There are no streams."""
        return False


class DLPackFamily(NumpyFamily):
    """CPU arrays of one other library, viewed through DLPack; results go back through their own namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def view(self, x: Any, argument: str) -> Array:
        try:
            tensor = hasattr(x, "data_ptr")
            if tensor:
                if getattr(x, "is_neg", bool)():  # DLPack says nothing of it
                    raise torch_tensors.lazy(argument)
            elif isinstance(x, SEQUENCES):
                return super().view(x, argument)
            native = np.from_dlpack(x)
            if tensor and native.size and not x.data_ptr():  # a fake tensor: NumPy made up memory
                raise ValueError("it has no memory")
        except (InputError, MemoryError):
            raise
        except Exception as error:  # __dlpack__ is foreign code
            raise InputError(
                argument, f"a {type(x).__qualname__} that NumPy cannot view: {error}", "CPU arrays that export DLPack",
                _viewable(x),
            ) from error  # fmt: skip
        return native

    def holds(self, out: object) -> bool:
        return not isinstance(out, SEQUENCES)

    def wrap(self, native: Array, operands: tuple[Any, ...]) -> Array:
        for like in operands:
            if like is not None and not isinstance(like, _WITHOUT_LIBRARY):
                break
        if not isinstance(native, np.ndarray):
            native = np.asarray(native)
        try:
            made = (_from_dlpack(like.__class__) or like.__array_namespace__().from_dlpack)(native)
        except (AttributeError, BufferError, RuntimeError) as error:
            raise InputError(
                "a, b",
                f"a result of {native.dtype} cannot become a {type(like).__qualname__}: {error}",
                "arrays whose library has from_dlpack",
                "pass numpy.from_dlpack(x) and convert the result",
            ) from None
        return unconverted(made, native)


class TorchHostFamily(DLPackFamily):
    """Dense ``torch.Tensor`` on the CPU."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.increment_version = torch_tensors.increment_version()

    def view(self, x: Any, argument: str) -> Array:
        if not torch_tensors.is_tensor(x):
            return super().view(x, argument)
        torch_tensors.address(x, argument)
        try:
            return x.detach().numpy()  # NumPy before 2.1 imports DLPack read-only
        except (RuntimeError, TypeError) as error:
            raise InputError(
                argument, f"a tensor of {x.dtype} that NumPy cannot view: {error}", "dtypes that NumPy has",
                _viewable(x),
            ) from error  # fmt: skip

    def wrap(self, native: Array, operands: tuple[Any, ...]) -> Array:
        name = native.dtype.name
        if name not in ML_DTYPES:
            return super().wrap(native, operands)
        torch: Any = sys.modules["torch"]  # which takes these dtypes from NumPy as bits only
        bits = np.asarray(native).view(np.int16 if native.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(getattr(torch, name))


def _viewable(x: Any) -> str:
    """What to do with an array that NumPy cannot view."""
    if _has(x, "is_conj") and x.is_conj():
        return "pass x.resolve_conj()"
    name = str(getattr(x, "dtype", "")).rpartition(".")[2]
    if name not in ML_DTYPES:  # which NumPy's DLPack does not know
        return ""
    if not _has(x, "data_ptr"):
        return "pass numpy.asarray(x)"
    bits = "int16" if name == "bfloat16" else "uint8"
    return f"pass x.view(torch.{bits}).numpy().view(ml_dtypes.{name})"


@lru_cache(maxsize=64)
def _from_dlpack(kind: type) -> Any:
    """``from_dlpack`` of the library of a type of array, or of one that it is a subclass of; None where its arrays tell
    their namespace.
    """
    if hasattr(kind, "__array_namespace__"):
        return None
    for base in kind.__mro__:
        library: Any = sys.modules.get(base.__module__.partition(".")[0])
        if hasattr(library, "from_dlpack"):
            return library.from_dlpack
    raise AttributeError("its library has no from_dlpack")


def unconverted(made: Array, native: Array) -> Array:
    """``made``, which a library made of a result; InputError where it converted it, as JAX does with 64 bits."""
    kind: Any = type(made)
    try:
        if made.dtype.itemsize == native.dtype.itemsize:
            return made
    except AttributeError:  # dtypes that do not say
        return made
    raise InputError(
        "out_dtype", f"{native.dtype}, of which {library_name(kind)} makes {made.dtype}",
        "dtypes that the operands' library has",
        "give out_dtype= another; JAX has 64 bits after jax.config.update('jax_enable_x64', True)",
    )  # fmt: skip


NUMPY = NumpyFamily()


@cache
def dlpack_family(name: str) -> DLPackFamily:
    """The family of a library's arrays on the CPU."""
    return DLPackFamily(name)


@cache
def torch_host_family() -> TorchHostFamily:
    """The family of torch tensors on the CPU."""
    return TorchHostFamily()


def family_of(x: object, argument: str) -> Family:
    """The family of one operand; DeviceError for arrays on a device that nothing here can address.

    An array type may bring its own: ``__gemmhub_family__()``, asked of an array, returns it.
    """
    if isinstance(x, (np.ndarray, np.generic, *SEQUENCES)):
        return NUMPY
    kind: Any = type(x)
    own = getattr(kind, "__gemmhub_family__", None)
    if own is not None:
        return own(x)  # type: ignore[no-any-return]
    if array_types.is_symbol(kind):
        raise array_types.traced(x, argument)
    if torch_tensors.is_tensor(x):
        torch_tensors.require_version(argument)
        torch_tensors.memory(x, argument)
        return on_device.native_family(x, argument) or torch_host_family()
    if _may_be_on_a_device(x):
        from gemmhub._arrays import adopted

        found = on_device.native_family(x, argument) or adopted.family(x, argument)
        if found is not None:
            return found
    if _has(x, "__dlpack_device__"):
        return dlpack_family(library_name(kind))
    if _has(x, "__array_interface__") or _has(x, "__array__") or _is_buffer(x):
        return NUMPY
    raise InputError(
        argument,
        f"a {kind.__qualname__} is not an array",
        "arrays of numpy, cupy, torch; nested sequences of numbers; arrays that export DLPack or the CUDA array "
        "interface",
    )


def _has(x: object, name: str) -> bool:
    """hasattr, also of objects whose ``__getattr__`` raises what it likes."""
    try:
        return hasattr(x, name)
    except Exception:
        return False


def _may_be_on_a_device(x: object) -> bool:
    # Torch tensors have __cuda_array_interface__ on any device: it raises AttributeError where it is none.
    return _has(x, "__dlpack_device__") or _has(x, "__cuda_array_interface__")


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
