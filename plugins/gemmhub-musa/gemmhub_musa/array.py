"""A minimal array on a MUSA device, for programs without torch_musa: owned memory, views of it, copies.

It is no array library: it slices, transposes, converts from and to NumPy, and gemmhub.matmul takes and returns it.
"""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmhub.array_library import DeviceArrays, DeviceClock, DeviceView, reach, register
from gemmhub.capability import Absent, Device
from gemmhub.dtypes import DType
from gemmhub.errors import AllocationError, DeviceError, InputError
from gemmhub_musa import dlpack, runtime
from gemmhub_musa.runtime import ON_DEVICE, TO_DEVICE, TO_HOST, MusaError, Runtime

HostArray = npt.NDArray[Any]
_USUAL_CACHE = 64 * 2**20
"""Bytes of L2 cache to flush before a measurement where the device does not report its size."""


class Memory:
    """Device memory, freed with the last reference (but not at exit, when the runtime may be unloaded already)."""

    def __init__(self, rt: Runtime, device: int, nbytes: int) -> None:
        """Allocate ``nbytes``. Raises AllocationError without memory."""
        self.runtime, self.device_id, self.nbytes = rt, device, nbytes
        with rt.device(device):
            self.address = rt.malloc(nbytes)
        if self.address:
            weakref.finalize(self, _free, rt, device, self.address).atexit = False


def _free(rt: Runtime, device: int, address: int) -> None:
    # A device that fails here has failed before, which was reported then; a finalizer can report nothing.
    with suppress(MusaError), rt.device(device):
        rt.synchronize()  # work that uses it may be pending; that musaFree waits for it is not documented
        rt.free(address)


class Pointer:
    """A place in device memory. ``ptr`` is its address."""

    __slots__ = ("device_id", "memory", "ptr")

    def __init__(self, memory: Memory, ptr: int) -> None:
        self.memory, self.ptr, self.device_id = memory, ptr, memory.device_id


class Array:
    """An array on a MUSA device. ``strides`` are in bytes; slices and ``T`` share its memory."""

    def __init__(self, data: Pointer, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.data, self.dtype, self.shape, self.strides = data, dtype, shape, strides

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def device(self) -> Device:
        return Device("musa", self.data.device_id)

    @property
    def T(self) -> Array:  # noqa: N802 - numpy's name
        """A view with the dimensions in reverse order."""
        return Array(self.data, self.dtype, self.shape[::-1], self.strides[::-1])

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array of 0 dimensions has no length")
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        """Return a view, by whole numbers, slices, ``...`` and None. IndexError for what is outside, else TypeError."""
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if part is not None and part is not Ellipsis and not isinstance(part, slice):
                if isinstance(part, (bool, np.bool_)):
                    raise TypeError("a boolean: only whole numbers, slices, ... and None select a view")
                operator.index(part)
        if not any(part is Ellipsis for part in parts):
            parts = (*parts, Ellipsis)  # so that numpy gives a view, and reads nothing
        # NumPy computes the view, of an array whose elements are never read.
        model = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, self.strides)
        view = model[parts]
        offset = view.__array_interface__["data"][0] - model.__array_interface__["data"][0]
        place = Pointer(self.data.memory, self.data.ptr + offset)
        return Array(place, self.dtype, view.shape, view.strides)

    def numpy(self) -> HostArray:
        """Return a copy on the host; waits for the device."""
        return self.library().to_host(self)

    def __repr__(self) -> str:
        return f"<gemmhub_musa.Array {self.dtype} {self.shape} on {self.device}>"

    def library(self) -> MusaArrays:
        """Return the array library of this array's device."""
        return _arrays_on(self.data.memory.runtime, self.data.device_id)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return kDLExtDev, as torch_musa's tensors do: DLPack has no number for MUSA."""
        return dlpack.DEVICE, self.data.device_id

    def __dlpack__(
        self, *, stream: int | None = None, max_version: object = None, dl_device: object = None, copy: object = None
    ) -> object:
        """Return a capsule that shares the memory; waits for pending work on the device.

        BufferError for another device, for a copy, and for dtypes that DLPack has no code for.
        """
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"this array is on {self.device}: it cannot be exported to another device")
        if copy:
            raise BufferError("no copy is made here")
        if stream != -1:
            self.library().synchronize()
        return dlpack.capsule(self, self.data.ptr, self.data.device_id, self.dtype, self.shape, self.strides)


def from_numpy(x: npt.ArrayLike, device: int = 0) -> Array:
    """Return a new C-ordered array on a device, with the contents of ``x``.

    Raises DeviceError where there is no such device, AllocationError where it is full.
    """
    return arrays(device).from_host(np.asarray(x))


def empty(shape: tuple[int, ...], dtype: DType, device: int = 0) -> Array:
    """Return a new C-ordered array with undefined contents. Raises as :func:`from_numpy` does."""
    return arrays(device).empty(shape, dtype)


class MusaArrays(DeviceArrays):
    """:class:`Array` on one device. See :class:`gemmhub.array_library.ArrayLibrary`."""

    name = "gemmhub_musa"

    def __init__(self, device: Device, rt: Runtime) -> None:
        super().__init__(device)
        self.runtime = rt
        self._streams = threading.local()

    def view(self, x: object, argument: str) -> DeviceView:
        if not isinstance(x, Array):
            raise self.foreign(x, argument)
        if x.data.device_id != self.device.index:
            raise DeviceError(argument, f"on {x.device}", f"operands on {self.device}", "copy it there")
        return DeviceView(x.data.ptr, x.dtype, x.shape, x.strides, x)

    def _memory(self, nbytes: int, shape: tuple[int, ...], dtype: DType) -> Memory:
        try:
            return Memory(self.runtime, self.device.index, nbytes)
        except AllocationError as error:
            raise self.no_memory(shape, dtype, error) from None

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        self.check_size(shape, dtype)
        memory = self._memory(prod(shape) * dtype.itemsize, shape, dtype)
        return Array(Pointer(memory, memory.address), dtype, tuple(shape), dense_strides(shape, dtype.itemsize))

    def empty_strided_like(self, x: DeviceView) -> Array:
        first, span = reach(x)
        skew = (x.address - first) % 256  # aligned as x is
        memory = self._memory(span + skew, x.shape, x.dtype)
        return Array(Pointer(memory, memory.address + skew + first), x.dtype, x.shape, x.strides)

    def clone(self, x: Array | DeviceView) -> Array:
        native = x if isinstance(x, DeviceView) else self.view(x, "x")
        twin = self.empty_strided_like(native)
        first, span = reach(native)
        with self.runtime.device(self.device.index):
            self.runtime.memcpy_async(
                twin.data.ptr - first, native.address - first, span, ON_DEVICE, self.current_stream()
            )
        return twin

    def from_host(self, x: HostArray) -> Array:
        made = self.empty(x.shape, x.dtype)
        source = np.ascontiguousarray(x)
        with self.runtime.device(self.device.index):
            self.runtime.memcpy(made.data.ptr, source.ctypes.data, source.nbytes, TO_DEVICE)
        return made

    def to_host(self, x: Array) -> HostArray:
        native = self.view(x, "x")
        first, span = reach(native)
        memory: HostArray = np.empty(span, np.uint8)
        with self.runtime.device(self.device.index):
            self.runtime.synchronize()
            self.runtime.memcpy(memory.ctypes.data, native.address - first, span, TO_HOST)
        if not native.size:
            return np.empty(native.shape, native.dtype)
        return np.ndarray(native.shape, native.dtype, memory, first, native.strides).copy()

    def copy(self, into: Array, source: Array) -> None:
        """Copy on the current stream, between arrays of one dtype, shape and strides; else raises ValueError."""
        if (into.shape, into.strides, into.dtype) != (source.shape, source.strides, source.dtype):
            raise ValueError(f"{source!r} and {into!r} differ in dtype, shape or strides")
        stream = self.current_stream()
        with self.runtime.device(self.device.index):
            for offset, width, pitch, height in rows_of(into.shape, into.strides, into.itemsize):
                to, origin = into.data.ptr + offset, source.data.ptr + offset
                if height == 1:
                    self.runtime.memcpy_async(to, origin, width, ON_DEVICE, stream)
                else:
                    self.runtime.memcpy_2d_async(to, pitch, origin, pitch, width, height, stream)

    def current_stream(self) -> int:
        """Return the stream of the innermost :meth:`on` of this thread; the default one outside of any."""
        return getattr(self._streams, "current", 0)

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        return self._on(self.current_stream() if stream is None else stream)

    @contextmanager
    def _on(self, stream: int) -> Iterator[None]:
        before, self._streams.current = self.current_stream(), stream
        try:
            with self.runtime.device(self.device.index):
                yield
        finally:
            self._streams.current = before

    def synchronize(self) -> None:
        with self.runtime.device(self.device.index):
            self.runtime.synchronize()

    def clock(self) -> DeviceClock:
        with self.runtime.device(self.device.index):
            try:
                cache_bytes = self.runtime.attribute(runtime.L2_CACHE, self.device.index) or _USUAL_CACHE
            except MusaError:
                cache_bytes = _USUAL_CACHE
            flush = Memory(self.runtime, self.device.index, 2 * cache_bytes)
            return DeviceClock(
                lambda: Event(self), lambda x, y: self.runtime.event_elapsed(x.handle, y.handle),
                lambda: self.runtime.memset_async(flush.address, 1, flush.nbytes, self.current_stream()),
                cache_bytes, lambda: self.on(None),
            )  # fmt: skip


class Event:
    """An event on the current stream of ``arrays``."""

    def __init__(self, of: MusaArrays) -> None:
        self._arrays_on = of
        with of.on(None):
            self.handle = of.runtime.event_create()
        weakref.finalize(self, _destroy, of.runtime, self.handle).atexit = False

    def record(self) -> None:
        with self._arrays_on.on(None):
            self._arrays_on.runtime.event_record(self.handle, self._arrays_on.current_stream())

    def synchronize(self) -> None:
        self._arrays_on.runtime.event_synchronize(self.handle)


def _destroy(rt: Runtime, event: int) -> None:
    with suppress(MusaError):
        rt.event_destroy(event)


def dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes of a C-ordered array."""
    return tuple(itemsize * prod(shape[i + 1 :]) for i in range(len(shape)))


def rows_of(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield an array's bytes as rows: (offset of the first from element [0, ...], width, pitch, how many rows).

    No byte between elements is part of a row. Elements must not share memory.
    """
    if 0 in shape:
        return
    low = sum((size - 1) * step for size, step in zip(shape, strides) if step < 0)
    steps = sorted((abs(step), size) for size, step in zip(shape, strides) if size > 1)
    width = itemsize
    while steps and steps[0][0] == width:
        width *= steps.pop(0)[1]
    pitch, height = steps.pop(0) if steps else (width, 1)
    for index in itertools.product(*(range(size) for _, size in steps)):
        yield low + sum(i * step for i, (step, _) in zip(index, steps)), width, pitch, height


def arrays(index: int) -> MusaArrays:
    """Return the library of the arrays on device ``index``; DeviceError where there is none."""
    found = runtime.machine()
    if isinstance(found, Absent):
        raise DeviceError("device", f"musa:{index}: {found.reason}", "a MUSA device that is here", found.remedy)
    if not 0 <= index < found.count:
        raise InputError("device", f"musa:{index}", f"musa:0 to musa:{found.count - 1}")
    return _arrays_on(found.runtime, index)


@cache
def _arrays_on(rt: Runtime, index: int) -> MusaArrays:
    return MusaArrays(Device("musa", index), rt)


register(Array, Array.library)
