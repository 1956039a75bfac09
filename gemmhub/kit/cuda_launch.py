"""Arguments of cuLaunchKernelEx that plugins keep in memory between calls."""

from __future__ import annotations

import ctypes
from ctypes import addressof, byref, c_char, c_int, c_uint, c_uint64, c_void_p
from typing import Any

from gemmhub.kit.cuda import Driver

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
        kind = type(template)
        self.arguments: Any = kind.from_buffer_copy(template)
        self.words = (c_uint64 * (ctypes.sizeof(kind) // WORD)).from_buffer(self.arguments)
        start = addressof(self.arguments)
        places = [start + getattr(kind, field[0]).offset for field in kind._fields_]
        self._places = (c_void_p * len(places))(*places)
        self._attribute = LaunchAttribute(_PDL, 0, b"\x01")
        self._config = LaunchConfig(
            (c_uint * 3)(*grid), (c_uint * 3)(threads, 1, 1), shared, None, addressof(self._attribute), int(early)
        )
        self.config, self.places = byref(self._config), byref(self._places)
        self.launch = (c_uint64 * (ctypes.sizeof(LaunchConfig) // WORD)).from_buffer(self._config)
        self.grid = self._config.grid


class Starter:
    """A kernel and cuLaunchKernelEx, without declared types and with pointers made in advance: less conversion a call.

    ``launch(slot.config, function, slot.places, None)`` returns the driver's status.
    """

    def __init__(self, driver: Driver, function: int) -> None:
        self.launch = driver.untyped("cuLaunchKernelEx")
        self.function = byref(c_char.from_address(function))

    def start(self, slot: Slot, stream: int) -> int:
        """Launch on ``stream``; return the driver's status. Needs a context."""
        slot.launch[STREAM_WORD] = stream
        return int(self.launch(slot.config, self.function, slot.places, None))
