"""Launches by cuLaunchKernelEx, with arguments that stay in memory between calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import addressof, byref, c_char, c_int, c_uint, c_uint64, c_void_p
from typing import Any, Generic, TypeVar

from gemmhub.errors import KernelError
from gemmhub_nvidia.driver import Gpu

WORD = 8
"""Size in bytes of the words that parameters are written by."""
STREAM_WORD = 4
"""Index of the word of the stream in a LaunchConfig."""


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute. The value is a union, as bytes without trailing zeros."""

    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_char * 64))


_PDL = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""


class Slot:
    """The memory of one launch: configuration, parameters, and the pointers to them.

    Each parameter has its own pointer (``kernelParams``), so the driver determines the offsets. In one buffer
    (``extra``) they would need the compiler's offsets, and tensor maps do not begin at its start.
    """

    def __init__(
        self, template: ctypes.Structure, grid: tuple[int, int, int], threads: int, shared: int, early: bool = False
    ) -> None:
        """Copy ``template``, a structure whose fields are the kernel's parameters with their initial values.

        ``early`` is programmatic dependent launch (PDL): the kernel may start while the previous kernel of the stream
        ends, and waits for its results (``griddepcontrol.wait``) before it accesses memory that other kernels use. It
        needs compute capability 9.0.
        """
        structure = type(template)
        self.arguments: Any = structure.from_buffer_copy(template)
        self.words = (c_uint64 * (ctypes.sizeof(structure) // WORD)).from_buffer(self.arguments)
        start = addressof(self.arguments)
        pointers = [start + getattr(structure, field[0]).offset for field in structure._fields_]
        self._pointers = (c_void_p * len(pointers))(*pointers)
        self._attribute = LaunchAttribute(_PDL, 0, b"\x01")
        self._config = LaunchConfig(
            (c_uint * 3)(*grid), (c_uint * 3)(threads, 1, 1), shared, None, addressof(self._attribute), int(early)
        )
        self.config, self.places = byref(self._config), byref(self._pointers)
        self.launch = (c_uint64 * (ctypes.sizeof(LaunchConfig) // WORD)).from_buffer(self._config)
        self.grid = self._config.grid


S = TypeVar("S", bound=Slot)


class Function(Generic[S]):
    """A kernel on a device, launched by cuLaunchKernelEx; its calls share nothing but a pool of slots.

    The driver's function has no declared types, and pointers are computed in advance: less conversion a call. Fast
    paths use ``free``, ``slot`` and ``launch(slot.config, function, slot.places, None)`` themselves, which returns the
    driver's status.
    """

    def __init__(self, gpu: Gpu, backend: str, function: int, slot: Callable[[], S]) -> None:
        """``function``: the handle of the kernel. ``slot`` returns a fresh slot. Errors name ``backend``."""
        self._gpu, self._backend = gpu, backend
        self.launch = gpu.driver.untyped("cuLaunchKernelEx")
        self.function = byref(c_char.from_address(function))
        self.slot = slot
        self.free: list[S] = []

    def take(self) -> S:
        """Return a slot that no other call uses; the caller puts it back into ``free``.

        Where a call fails it is not put back: it may be half written.
        """
        try:
            return self.free.pop()
        except IndexError:
            return self.slot()

    def start(self, slot: S, stream: int) -> int:
        """Launch on ``stream``; return the driver's status. Needs a context."""
        slot.launch[STREAM_WORD] = stream
        return int(self.launch(slot.config, self.function, slot.places, None))

    def started(self, slot: S, stream: int) -> bool:
        """Launch without setting a context; return False where the context of this thread is not the device's."""
        status = self.start(slot, stream)
        if status and not self._gpu.is_current():
            return False
        self.check(status)
        return True

    def check(self, status: int) -> None:
        """Raise KernelError unless ``status`` is success."""
        if status:
            raise KernelError(self._backend, f"cuLaunchKernelEx: {self._gpu.driver.words(status)} ({status})")
