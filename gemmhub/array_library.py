"""The contract of an array library: what gemmhub asks of the arrays that it multiplies.

A *direct* library gives access to memory: :class:`ArrayLibrary` views an operand natively (a ``numpy.ndarray`` on the
CPU, a :class:`DeviceView` on devices), makes results, and knows the current stream and a clock. A *deferring* library
takes the entire call and returns its own result, as gradients, compilers, clusters and subclasses need. Both are
registered by the type of their arrays: :func:`register` and :func:`register_deferring`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Set
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gemmhub._base.device_clock import DeviceClock as DeviceClock
from gemmhub._base.device_types import DeviceType as DeviceType
from gemmhub._base.device_types import register_device_type as register_device_type
from gemmhub._base.geometry import MAX_ALIGNMENT, address_of, distinct, meet
from gemmhub._base.geometry import DeviceView as DeviceView
from gemmhub._base.geometry import reach as reach
from gemmhub._base.registered import Deferred as Deferred
from gemmhub._base.registered import Replay as Replay
from gemmhub._base.registered import register as register
from gemmhub._base.registered import register_deferring as register_deferring
from gemmhub._base.registered import unregister as unregister
from gemmhub._base.timing import CLOCK, Clock
from gemmhub._base.wording import instance
from gemmhub.backend import WithRows
from gemmhub.capability import CPU, Device
from gemmhub.dtypes import DType
from gemmhub.errors import AllocationError, DeviceError, InputError, OutputError

if TYPE_CHECKING:
    from gemmhub.problem import GemmProblem

Array = Any


LearnRows = Callable[[Any, "GemmProblem", WithRows, Set[tuple[int, ...]], Any, Any, Mapping[str, Any]], None]


class FastPath(NamedTuple):
    """The functions by which a library runs repeated calls: one look-up, and the kernel."""

    call: Callable[[Any, Any, Any, Mapping[str, Any]], Any]
    """``(a, b, out, options) -> result``; None where the call's signature was not learned, and nothing was done.
    For tensors of torch whose product autograd records, its :class:`Replay`, and nothing was done.

    It may raise any exception: nothing was done then, too, and gemmhub checks the call itself.
    """
    learn: Callable[[Any, GemmProblem, tuple[int, ...], Callable[..., None], Any, Any, Any, Mapping[str, Any]], None]
    """``(library, problem, shape of the result, a kernel's run, a, b, out, options)``: remember the call's signature.

    One fast path serves all devices of a library: ``library`` is that of the call's own device.
    """
    planned: Callable[[Any, Any, Any, Mapping[str, Any]], Any] | None = None
    """A ``call`` for a plan, where that differs: it returns None for operands whose product would be recorded."""
    learn_rows: LearnRows | None = None
    """``(library, problem, a kernel's with_rows, sizes that have records, a, b, options)``: remember a call without
    ``out`` for those that differ from it in the rows of a alone. None where the library has no such calls.
    """
    linear: Callable[[Any, Any, Any, Mapping[str, Any]], Any] | None = None
    """A ``call`` that takes the transpose of b, as linear layers keep their weights, without a view of it."""


class ArrayLibrary(Protocol):
    """The functions that gemmhub needs for a type of arrays. A native array is one that :meth:`view` returns."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> Device: ...

    def view(self, x: object, argument: str) -> Array:
        """``x`` natively, sharing its memory. Raises InputError, DTypeError or DeviceError."""

    def target(self, out: object, shape: tuple[int, ...]) -> Array:
        """``out`` natively, of ``shape`` and such that each element can be written; OutputError if it is not."""

    def wrap(self, result: Array, operands: tuple[object, ...]) -> Array:
        """A native array that a kernel filled, as the operands' own type."""

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """A new C-ordered array; AllocationError when there is no memory for it."""

    def empty_strided_like(self, x: Array) -> Array:
        """A new array with the shape, dtype and strides of a native one, and aligned as well as that; its contents
        are undefined.
        """

    def clone(self, x: Array) -> Array:
        """A copy of an array (native or not) with the same strides."""

    def from_host(self, x: Array) -> Array:
        """A new array with the contents of an ndarray."""

    def to_host(self, x: Array) -> Array:
        """The contents as an ndarray; waits for the device."""

    def overlap(self, x: Array, y: Array) -> bool:
        """Whether the address ranges of two native arrays meet (never False where memory is shared)."""

    def key(self, x: Any) -> Hashable:
        """The part of a call's cache key for ``x``: everything but its type that a decision or a check depends
        on. That is its dtype, shape, strides, alignment, device, and whether it can be written.

        Any exception means that ``x`` has no key: the call is analysed each time.
        """

    def clock(self) -> Clock:
        """The clock that times calls on such arrays."""

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        """Make the device, and ``stream`` where it is not None, current for a block."""

    def synchronize(self) -> None:
        """Wait for all work on the device."""

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph, where nothing can be timed."""

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> FastPath | None:
        """A new fast path for calls that were seen before, or None where the library has none.

        A learned call may be repeated while ``settings()`` returns the same object as then; ``alpha`` and
        ``beta`` are the values where a call omits these options.
        """


class HostArrays:
    """A base for libraries on the CPU, whose arrays are viewed as ``numpy.ndarray``. A subclass adds ``name``, ``view``
    and ``holds``, and ``wrap`` where results are not ndarrays.
    """

    name = ""
    device = CPU

    def view(self, x: Any, argument: str) -> Array:
        """``x`` as an ndarray, sharing its memory. InputError for what is none of this library's arrays."""
        raise NotImplementedError(f"{type(self).__qualname__} has no method view(x, argument)")

    def holds(self, out: object) -> bool:
        """Whether what is written into the view of ``out`` is written into ``out`` (and not into a copy)."""
        raise NotImplementedError(f"{type(self).__qualname__} has no method holds(out)")

    def target(self, out: object, shape: tuple[int, ...]) -> Array:
        """``out`` as an ndarray of ``shape`` that can be written element by element; OutputError if it cannot."""
        if not self.holds(out):
            raise OutputError("out", instance(type(out)), "an array")
        native = self.view(out, "out")
        if native.shape != shape:
            actual = f"shape {native.shape} (NumPy: non-broadcastable output operand)"
            raise OutputError("out", actual, f"shape {shape}", "give it the shape of the result")
        flags = native.flags
        if not flags.writeable:
            raise OutputError("out", "a read-only array", "a writeable array")
        if not (flags.forc or distinct(native)):
            raise OutputError(
                "out", f"several elements share memory (strides {native.strides})", "an array of its own memory"
            )
        return native

    def wrap(self, native: Array, operands: tuple[object, ...]) -> Array:
        """A native result in the library's own type: that of the first operand which has one."""
        return native

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """A new C-ordered array; AllocationError when there is no memory for it."""
        try:
            return np.empty(shape, dtype)
        except (MemoryError, ValueError):  # NumPy's text has the size again, in another unit
            size = prod(shape) * dtype.itemsize
            raise AllocationError(
                f"the result, {dtype} of shape {shape}, needs {size / 2**30:.4g} GiB, and there is no memory for it"
            ) from None

    def empty_strided_like(self, x: Array) -> Array:
        """A new array with the shape, dtype and strides of a native one, and aligned as that; its contents are
        undefined.
        """
        first, span = reach(x)
        memory = self.empty((span + MAX_ALIGNMENT,), np.dtype(np.uint8))
        first += (address_of(x) - memory.ctypes.data - first) % MAX_ALIGNMENT
        return np.ndarray(x.shape, x.dtype, memory, first, x.strides)

    def clone(self, x: Array) -> Array:
        """A copy, as an ndarray, with the strides of the view of ``x``."""
        native = x if isinstance(x, np.ndarray) else self.view(x, "x")
        copy = self.empty_strided_like(native)
        distinct_elements = tuple(slice(0, 1) if step == 0 else slice(None) for step in native.strides)
        copy[distinct_elements] = native[distinct_elements]  # one write to an element that a broadcast repeats
        return copy

    def from_host(self, x: Array) -> Array:
        """``x`` itself."""
        return x

    def to_host(self, x: Array) -> Array:
        """A view: it is on the host already."""
        return self.view(x, "x")

    def overlap(self, x: Array, y: Array) -> bool:
        """Whether the address ranges of two native arrays meet (never False where memory is shared)."""
        return bool(np.may_share_memory(x, y))

    def key(self, x: Any) -> Hashable:
        """The facts of the view of ``x``. A library that reads them faster overrides this."""
        native = self.view(x, "x")
        return native.dtype, native.shape, native.strides, native.flags.num

    def clock(self) -> Clock:
        """The process's own."""
        return CLOCK

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        """There is nothing to make current."""
        return nullcontext()

    def synchronize(self) -> None:
        """Calls return when their work is done."""

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> None:
        """None: :func:`gemmhub.matmul` itself looks calls up."""

    def capturing(self) -> bool:
        """There are no streams."""
        return False


class DeviceArrays:
    """A base for libraries on devices: the parts of :class:`ArrayLibrary` that are the same in all of them.

    A subclass adds ``empty``, ``empty_strided_like``, ``clone``, ``from_host``, ``to_host``, ``on``, ``synchronize``,
    ``clock``, ``current_stream() -> int`` (a native handle) and ``copy(into, source)`` (on the current stream).
    """

    name = ""

    def __init__(self, device: Device) -> None:
        self.device = device

    def view(self, x: Any, argument: str) -> DeviceView:
        """``x`` natively: its address, dtype, shape and strides in bytes. InputError or DeviceError for others."""
        raise NotImplementedError

    def target(self, out: object, shape: tuple[int, ...]) -> DeviceView:
        native = self.view(out, "out")
        if native.shape != shape:
            actual = f"shape {native.shape} (NumPy: non-broadcastable output operand)"
            raise OutputError("out", actual, f"shape {shape}", "give it the shape of the result")
        if not distinct(native):
            raise OutputError(
                "out", f"several elements share memory (strides {native.strides})", "an array of its own memory"
            )
        return native

    def wrap(self, result: Array, operands: tuple[object, ...]) -> Array:
        return result

    def overlap(self, x: DeviceView, y: DeviceView) -> bool:
        return meet(x, y)

    def key(self, x: Any) -> Hashable:
        """The facts of the view of ``x``. A library that reads them faster overrides this."""
        native = self.view(x, "x")
        return native.dtype, native.shape, native.strides, native.address % MAX_ALIGNMENT, self.device

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        return False

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> FastPath | None:
        """None: a library that has a fast path overrides this."""
        return None

    def foreign(self, x: object, argument: str) -> InputError:
        """The error for an operand that is no array of this library."""
        return DeviceError(
            argument, instance(type(x)), f"{self.name} arrays on {self.device}", "move or convert it first"
        )

    def check_size(self, shape: tuple[int, ...], dtype: DType) -> None:
        """Raise AllocationError where the number of bytes overflows, for which libraries have other words."""
        if prod(shape) * dtype.itemsize >= 2**63:
            raise self.no_memory(shape, dtype, "no machine has as much")

    def no_memory(self, shape: tuple[int, ...], dtype: DType, error: object) -> AllocationError:
        size = prod(shape) * dtype.itemsize / 2**30
        return AllocationError(f"{dtype} of shape {shape} needs {size:.4g} GiB on {self.device}: {error}")

    def lost(self, error: RuntimeError) -> DeviceError:
        """The error for a device that no longer answers."""
        return DeviceError(
            "a, b", f"arrays on {self.device}, which gives no memory: {error}", "a device that works",
            "if a kernel failed before, its context is lost: restart the process",
        )  # fmt: skip
