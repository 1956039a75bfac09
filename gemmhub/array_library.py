"""The contract of an array library: what gemmhub asks of the arrays that it multiplies.

A *direct* library gives access to memory: :class:`ArrayLibrary` views an operand natively (a ``numpy.ndarray`` on the
CPU, a :class:`DeviceView` on devices), makes results, and knows the current stream and a clock. A *deferring* library
takes a whole call and returns its own result: what gradients, compilers, clusters and subclasses need. Both are
registered by the type of their arrays: :func:`register` and :func:`register_deferring`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gemmhub._base.device_clock import DeviceClock as DeviceClock
from gemmhub._base.geometry import DeviceView as DeviceView
from gemmhub._base.geometry import distinct, meet
from gemmhub._base.geometry import reach as reach
from gemmhub._base.registered import Deferred as Deferred
from gemmhub._base.registered import register as register
from gemmhub._base.registered import register_deferring as register_deferring
from gemmhub._base.registered import unregister as unregister
from gemmhub._base.timing import CLOCK, Clock
from gemmhub.backend import WithRows
from gemmhub.capability import CPU, Device
from gemmhub.dtypes import DType
from gemmhub.errors import AllocationError, DeviceError, InputError, OutputError

if TYPE_CHECKING:
    from gemmhub.problem import GemmProblem

Array = Any


LearnRows = Callable[[Any, "GemmProblem", WithRows, Set[tuple[int, ...]], Any, Any, Mapping[str, Any]], None]


class FastPath(NamedTuple):
    """How a library runs calls that it has seen before: one look-up, and the kernel."""

    call: Callable[[Any, Any, Any, Mapping[str, Any]], Any]
    """``(a, b, out, options) -> result``; None where the call is of no kind that was learned, and nothing was done.
    For tensors of torch whose product autograd records, a function that computes it, and nothing was done.

    It may raise any exception: nothing was done then, too, and gemmhub checks the call itself.
    """
    learn: Callable[[Any, GemmProblem, tuple[int, ...], Callable[..., None], Any, Any, Any, Mapping[str, Any]], None]
    """``(library, problem, shape of the result, a kernel's run, a, b, out, options)``: remember this kind of call.

    One fast path serves all devices of a library: ``library`` is that of the call's own device.
    """
    planned: Callable[[Any, Any, Any, Mapping[str, Any]], Any] | None = None
    """A ``call`` for a plan, where that differs: it returns None for operands whose product would be recorded."""
    learn_rows: LearnRows | None = None
    """``(library, problem, a kernel's with_rows, sizes that have records, a, b, options)``: remember a call without
    ``out`` for those that differ from it in the rows of a alone. None where the library has no such calls.
    """
    linear: Callable[[Any, Any, Any, Mapping[str, Any]], Any] | None = None
    """A ``call`` that is given the transpose of b, as linear layers keep their weights: no view is made of it."""


class ArrayLibrary(Protocol):
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
        """A copy of an array (native or not) with the same strides."""

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

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> FastPath | None:
        """A new fast path for calls that were seen before, or None where the library has none.

        A call is of a kind that was learned while ``settings()`` returns what it returned then; ``alpha`` and
        ``beta`` are the values of options that are not given.
        """


class HostArrays:
    """A base for libraries on the CPU, whose arrays are viewed as ``numpy.ndarray``. A subclass adds ``name``, ``view``
    and ``holds``, and ``wrap`` where results are not ndarrays.
    """

    name = ""
    device = CPU

    def view(self, x: Any, argument: str) -> Array:
        """``x`` as an ndarray, sharing its memory. InputError for what is none of this library's arrays."""
        raise NotImplementedError

    def holds(self, out: object) -> bool:
        """Whether what is written into the view of ``out`` is written into ``out`` (and not into a copy)."""
        raise NotImplementedError

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

    def wrap(self, native: Array, operands: tuple[object, ...]) -> Array:
        """A native result in the library's own type: that of the first operand which has one."""
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
        """A copy with the strides of ``x``."""
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
        """None: :func:`gemmhub.matmul` itself looks calls up."""

    def capturing(self) -> bool:
        """There are no streams."""
        return False


class DeviceArrays:
    """A base for libraries on devices: the parts of :class:`ArrayLibrary` that are the same in all of them.

    A subclass adds ``empty``, ``twin``, ``clone``, ``from_host``, ``to_host``, ``on``, ``synchronize``, ``clock``,
    ``current_stream() -> int`` (a native handle) and ``copy(into, source)`` (on the current stream).
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
            given = f"shape {native.shape} (NumPy: non-broadcastable output operand)"
            raise OutputError("out", given, f"shape {shape}", "give it the shape of the result")
        if not distinct(native):
            raise OutputError(
                "out", f"several elements share memory (strides {native.strides})", "an array of its own memory"
            )
        return native

    def wrap(self, result: Array, operands: tuple[object, ...]) -> Array:
        return result

    def overlap(self, x: DeviceView, y: DeviceView) -> bool:
        return meet(x, y)

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        return False

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> FastPath | None:
        """None: a library that has a fast path overrides this."""
        return None

    def foreign(self, x: object, argument: str) -> InputError:
        """The error for an operand that is no array of this library."""
        return DeviceError(
            argument, f"a {type(x).__qualname__}", f"{self.name} arrays on {self.device}", "move or convert it first"
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
