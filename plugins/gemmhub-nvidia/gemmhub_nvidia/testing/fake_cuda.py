# ruff: noqa: N802 (methods are called as the C functions are)
"""A fake libcuda, for testing a CUDA plugin without a card: devices, contexts, memory, streams and captures.

It enforces the rules of the API. Forbidden calls are refused and noted in ``complaints``::

    cuda = FakeCuda(devices=2)
    backend = MyBackend(lambda: gemmhub_nvidia.driver.Driver(cuda))  # instead of gemmhub_nvidia.driver.load
    check(backend, case, FakeMemory(cuda))
    assert cuda.complaints == [] and cuda.stack == []

A test sets ``faults`` (``{"cuMemAlloc_v2": 2}``), ``captures`` (``{stream: 1}``) or ``memory``, and inspects ``calls``
and ``allocated``. A plugin that calls other functions of libcuda adds them in a subclass, as
:mod:`gemmhub.testing.fake_library` describes; :mod:`gemmhub_nvidia.testing.fake_kernels` has those for modules
and launches.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any, ClassVar

import numpy as np

from gemmhub.capability import Device
from gemmhub.dtypes import DType
from gemmhub.testing.fake_library import FakeLibrary, Types, put
from gemmhub.testing.memory import Array, Memory

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_CONTEXT, LAUNCH_FAILED, CAPTURE_UNSUPPORTED = 1, 2, 100, 201, 719, 900
UNKNOWN = 999
RELAXED = 2
"""Capture mode of a thread that may allocate while streams are captured."""
CONTEXT = 0x1000
"""Handle of the primary context of device 0; that of device 1 is one more."""
GRAPH = 0x9000000
"""Handle of the graph of capture 0; that of capture 1 is one more."""
NAMES = {
    0: (b"CUDA_SUCCESS", b"no error"),
    OUT_OF_MEMORY: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    NO_DEVICE: (b"CUDA_ERROR_NO_DEVICE", b"no CUDA-capable device is detected"),
    INVALID_CONTEXT: (b"CUDA_ERROR_INVALID_CONTEXT", b"invalid device context"),
    LAUNCH_FAILED: (b"CUDA_ERROR_LAUNCH_FAILED", b"unspecified launch failure"),
}
H200 = {16: 132, 75: 9, 76: 0, 13: 1_980_000, 36: 3_201_000, 37: 6144, 97: 232_448}
"""Attributes by CUdevice_attribute: multiprocessors, compute capability, clock, memory clock (kHz), width of the bus
(bits) and bytes of shared memory of a block."""

# Written from cuda.h, not from gemmhub_nvidia.driver: tests compare the two.
TYPES: Types = {
    name: (c_int, arguments)
    for name, arguments in {
        "cuCtxGetCurrent": (c_void_p,),
        "cuCtxGetDevice": (c_void_p,),
        "cuCtxPopCurrent_v2": (c_void_p,),
        "cuCtxPushCurrent_v2": (c_void_p,),
        "cuCtxSynchronize": (),
        "cuDeviceGet": (c_void_p, c_int),
        "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
        "cuDeviceGetCount": (c_void_p,),
        "cuDeviceGetName": (c_void_p, c_int, c_int),
        "cuDeviceTotalMem_v2": (c_void_p, c_int),
        "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
        "cuDriverGetVersion": (c_void_p,),
        "cuGetErrorName": (c_int, c_void_p),
        "cuGetErrorString": (c_int, c_void_p),
        "cuInit": (c_uint,),
        "cuMemAlloc_v2": (c_void_p, c_size_t),
        "cuMemFree_v2": (c_uint64,),
        "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
        "cuStreamCreate": (c_void_p, c_uint),
        "cuStreamDestroy_v2": (c_void_p,),
        "cuStreamGetId": (c_void_p, c_void_p),
        "cuStreamGetCaptureInfo_v2": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        "cuStreamSynchronize": (c_void_p,),
        "cuThreadExchangeStreamCaptureMode": (c_void_p,),
        "cuUserObjectCreate": (c_void_p, c_void_p, c_void_p, c_uint, c_uint),
        "cuGraphRetainUserObject": (c_void_p, c_void_p, c_uint, c_uint),
    }.items()
}


class FakeCuda(FakeLibrary):
    """An object with the functions of libcuda, and devices of one model."""

    failed = UNKNOWN
    types = TYPES
    card: ClassVar[Mapping[int, int]] = H200
    """Attributes of a device."""
    total_memory: ClassVar[int] = 143_771 * 2**20
    """Total memory of an H200 in bytes; ``memory`` limits allocations."""

    def __init__(
        self, devices: int = 1, version: int = 13000, memory: int = 2**40, attributes: Mapping[int, int] | None = None
    ) -> None:
        """``version`` is that of cuDriverGetVersion, ``memory`` the free bytes; ``attributes`` replace the card's."""
        super().__init__()
        self.devices, self.version, self.memory = devices, version, memory
        self.attributes = {**self.card, **(attributes or {})}
        self.regions: dict[int, int] = {}
        """Valid memory: address -> bytes."""
        self.allocated: list[tuple[int, int, int]] = []
        """Allocations that were not freed: (address, bytes, device)."""
        self.freed: list[int] = []
        """Addresses that were freed; they are not reused."""
        self.captures: dict[int, int] = {}
        """Streams being captured: handle -> number."""
        self.invalidated: set[int] = set()
        """Captures invalidated by a forbidden call."""
        self.identities: dict[int, int] = {}
        """Unique numbers of streams by handle. A missing stream has its handle as its number."""
        self.objects: dict[int, tuple[int, int]] = {}
        """User objects without a graph: handle -> (pointer, destructor)."""
        self.graphs: dict[int, list[tuple[int, int]]] = {}
        """User objects of existing graphs."""
        self._kept: list[Any] = []
        self._local, self._handles = threading.local(), itertools.count(0x7000)
        self._initialised = False
        self.runtime = {threading.get_ident()}
        """Threads in which the CUDA runtime has made device 0's primary context current: the creating thread."""

    @property
    def stack(self) -> list[int]:
        """The context stack of this thread."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[int] = self._local.stack
        return stack

    @property
    def context(self) -> int:
        """The current context of this thread; 0 where it has none."""
        return self.stack[-1] if self.stack else CONTEXT * (threading.get_ident() in self.runtime)

    @property
    def current(self) -> int:
        """The current device of this thread by the runtime: 0 without a context."""
        return self.stack[-1] - CONTEXT if self.stack else 0

    @property
    def mode(self) -> int:
        """The capture mode of this thread."""
        mode: int = getattr(self._local, "mode", 0)
        return mode

    def inside(self, address: int, nbytes: int) -> bool:
        """Whether these bytes are within one region of valid memory."""
        regions = tuple(self.regions.items())
        return any(start <= address and address + nbytes <= start + size for start, size in regions)

    # Devices and contexts

    def _cuInit(self, flags: int) -> int:
        self._initialised = True
        return 0 if self.devices else NO_DEVICE

    def _cuDriverGetVersion(self, out: int) -> None:
        put(out, c_int, self.version)

    def _cuGetErrorName(self, code: int, out: int) -> int:
        return self._word(code, out, 0)

    def _cuGetErrorString(self, code: int, out: int) -> int:
        return self._word(code, out, 1)

    def _word(self, code: int, out: int, which: int) -> int:
        if code not in NAMES:
            return INVALID_VALUE
        put(out, c_char_p, NAMES[code][which])
        return 0

    def _cuDeviceGetCount(self, out: int) -> None:
        assert self._initialised or "cuInit" in self.faults, "cuInit comes first"
        put(out, c_int, self.devices)

    def _cuDeviceGet(self, out: int, index: int) -> None:
        assert 0 <= index < self.devices
        put(out, c_int, index)

    def _cuDeviceGetName(self, out: int, size: int, device: int) -> None:
        ctypes.memmove(out, b"Fake H200\0", min(size, 10))

    def _cuDeviceGetAttribute(self, out: int, attribute: int, device: int) -> None:
        put(out, c_int, self.attributes[attribute])

    def _cuDeviceTotalMem_v2(self, out: int, device: int) -> None:
        put(out, c_size_t, self.total_memory)

    def _cuDevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        put(out, c_void_p, CONTEXT + device)

    def _cuCtxPushCurrent_v2(self, context: int) -> None:
        assert CONTEXT <= context < CONTEXT + self.devices
        self.stack.append(context)

    def _cuCtxPopCurrent_v2(self, out: int) -> None:
        put(out, c_void_p, self.stack.pop())

    def _cuCtxGetCurrent(self, out: int) -> None:
        put(out, c_void_p, self.context)

    def _cuCtxGetDevice(self, out: int) -> int:
        if not self.context:
            return INVALID_CONTEXT
        put(out, c_int, self.current)
        return 0

    def _cuCtxSynchronize(self) -> int:
        assert self.stack
        return CAPTURE_UNSUPPORTED if self._unsafe() else 0

    # Memory

    def _unsafe(self) -> bool:
        """Check a call that is forbidden during captures except in relaxed mode: it invalidates the captures."""
        if self.captures and self.mode != RELAXED:
            self.invalidated.update(self.captures.values())
            self.complain("a forbidden call during capture")
            return True
        return False

    def _cuMemAlloc_v2(self, out: int, nbytes: int) -> int:
        if not self.stack:
            return INVALID_CONTEXT
        if self._unsafe():
            return CAPTURE_UNSUPPORTED
        assert nbytes > 0
        if nbytes > self.memory:
            return OUT_OF_MEMORY
        self.memory -= nbytes
        buffer = _aligned(nbytes)
        buffer[:] = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
        self._kept.append(buffer)
        address = buffer.ctypes.data
        self.regions[address] = nbytes
        self.allocated.append((address, nbytes, self.current))
        put(out, c_uint64, address)
        return 0

    def _cuMemFree_v2(self, address: int) -> int:
        if self._unsafe():
            return CAPTURE_UNSUPPORTED
        assert self.stack
        index = next(i for i, (at, _, _) in enumerate(self.allocated) if at == address)
        self.memory += self.allocated.pop(index)[1]
        del self.regions[address]
        self.freed.append(address)
        return 0

    def _cuMemsetD8Async(self, address: int, value: int, nbytes: int, stream: int) -> None:
        assert self.stack
        assert self.inside(address, nbytes)
        ctypes.memset(address, value, nbytes)  # captured, it is a node of the graph

    # Streams

    def _cuStreamCreate(self, out: int, flags: int) -> None:
        assert self.stack
        assert flags == 1, "a blocking stream waits for the legacy one"
        put(out, c_void_p, next(self._handles))

    def _cuStreamSynchronize(self, stream: int) -> int:
        if self._unsafe():
            return CAPTURE_UNSUPPORTED
        assert stream not in self.captures
        return 0

    def _cuStreamDestroy_v2(self, stream: int) -> None:
        pass

    def _cuStreamGetCaptureInfo_v2(
        self, stream: int, status: int, number: int, graph: int, dependencies: None, count: None
    ) -> int:
        assert dependencies is count is None
        if not self.context:
            return INVALID_CONTEXT
        put(status, c_int, 1 if stream in self.captures else 0)
        put(number, c_uint64, self.captures.get(stream) or next(self._handles))
        put(graph, c_void_p, self.graph(stream) if stream in self.captures else next(self._handles))
        return 0

    def _cuStreamGetId(self, stream: int | None, out: int) -> int:
        if not self.context:
            return INVALID_CONTEXT
        if stream in self.captures:  # observed on an H100, driver 580.159: it invalidates the capture
            self.invalidated.add(self.captures[stream])
            return CAPTURE_UNSUPPORTED
        put(out, c_uint64, self.identities.get(stream or 0, stream or 0))
        return 0

    # Graphs

    def graph(self, stream: int) -> int:
        """The graph that ``stream`` is captured into."""
        return GRAPH + self.captures[stream]

    def destroy(self, graph: int) -> None:
        """Destroy the graph and its executable graphs."""
        for pointer, destroy in self.graphs.pop(graph, ()):
            ctypes.CFUNCTYPE(None, c_void_p)(destroy)(pointer)

    def _cuUserObjectCreate(self, out: int, pointer: int, destroy: int, count: int, flags: int) -> None:
        assert pointer
        assert destroy
        assert (count, flags) == (1, 1)
        handle = next(self._handles)
        self.objects[handle] = pointer, destroy
        put(out, c_void_p, handle)

    def _cuGraphRetainUserObject(self, graph: int, user_object: int, count: int, flags: int) -> None:
        assert graph in {self.graph(stream) for stream in self.captures}
        assert (count, flags) == (1, 1), "the graph takes the caller's reference"
        self.graphs.setdefault(graph, []).append(self.objects.pop(user_object))

    def _cuThreadExchangeStreamCaptureMode(self, out: int) -> None:
        old = self.mode
        self._local.mode = c_int.from_address(out).value
        put(out, c_int, old)


def _aligned(nbytes: int) -> Array:
    """New memory at an address that is a multiple of 256."""
    padded = np.empty(nbytes + 256, np.uint8)
    start = -padded.ctypes.data % 256
    return padded[start : start + nbytes]


class FakeMemory(Memory):
    """Host memory that counts as memory of a device of ``cuda`` while it is referenced."""

    stream = 0x5EA

    def __init__(self, cuda: FakeCuda, index: int = 0) -> None:
        self.cuda = cuda
        self.device = Device("cuda", index)

    def empty(self, nbytes: int) -> Array:
        buffer = _aligned(nbytes)
        regions, address = self.cuda.regions, buffer.ctypes.data
        regions[address] = nbytes
        # Views of the buffer keep alive the array that owns its memory, not the buffer.
        weakref.finalize(buffer.base, regions.pop, address, None)
        return buffer

    def view(self, buffer: Array, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> int:
        """The address, which kernels receive."""
        address: int = buffer.ctypes.data + offset
        return address
