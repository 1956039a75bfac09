# ruff: noqa: N802 (methods are called as the C functions are)
"""A double of libcuda: devices, contexts, memory, streams and captures, on the host and strict about their rules.

Every function is a real C function pointer (made by ctypes) with the types of cuda.h, so that calls go through
the plugin's own declarations. What a program must not do is refused and noted in ``complaints``.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from ctypes import c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

import numpy as np

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_CONTEXT, CAPTURE_UNSUPPORTED = 1, 2, 100, 201, 900
RELAXED = 2
CONTEXT = 0x1000
"""The primary context of device 0; that of device 1 is one more."""

NAMES = {
    0: (b"CUDA_SUCCESS", b"no error"),
    OUT_OF_MEMORY: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    NO_DEVICE: (b"CUDA_ERROR_NO_DEVICE", b"no CUDA-capable device is detected"),
    INVALID_CONTEXT: (b"CUDA_ERROR_INVALID_CONTEXT", b"invalid device context"),
}
ATTRIBUTES = {16: 132, 75: 9, 76: 0, 13: 1_980_000, 36: 3_201_000, 37: 6144}


def exported(owner, types):
    """Put a C function on ``owner`` for each method called ``_<name>``; ``owner.faults`` may replace its result."""
    for name, (result, arguments) in types.items():
        method = getattr(owner, f"_{name}")

        def call(*given, name=name, method=method):
            owner.calls.append(name)
            if name in owner.faults:
                return owner.faults[name]
            try:
                return method(*given) or 0
            except Exception as error:
                owner.complain(f"{name}: {type(error).__name__}: {error}")
                return owner.failed

        setattr(owner, name, ctypes.CFUNCTYPE(result, *arguments)(call))


def put(address, kind, value):
    kind.from_address(address).value = value


TYPES = {
    name: (c_int, arguments)
    for name, arguments in {
        "cuInit": (c_uint,),
        "cuDriverGetVersion": (c_void_p,),
        "cuGetErrorName": (c_int, c_void_p),
        "cuGetErrorString": (c_int, c_void_p),
        "cuDeviceGetCount": (c_void_p,),
        "cuDeviceGet": (c_void_p, c_int),
        "cuDeviceGetName": (c_void_p, c_int, c_int),
        "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
        "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
        "cuCtxPushCurrent_v2": (c_void_p,),
        "cuCtxPopCurrent_v2": (c_void_p,),
        "cuCtxGetDevice": (c_void_p,),
        "cuMemAlloc_v2": (c_void_p, c_size_t),
        "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
        "cuStreamCreate": (c_void_p, c_uint),
        "cuStreamSynchronize": (c_void_p,),
        "cuStreamDestroy_v2": (c_void_p,),
        "cuStreamGetCaptureInfo_v2": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        "cuThreadExchangeStreamCaptureMode": (c_void_p,),
    }.items()
}


class FakeCuda:
    """An object with the functions of libcuda."""

    failed = 999
    types = TYPES

    def __init__(self, devices=1, version=13000, memory=2**40):
        self.devices, self.version, self.memory = devices, version, memory
        self.faults, self.calls, self.complaints = {}, [], []
        self.regions = {}
        """Known memory: address -> bytes."""
        self.allocated = []
        """(address, bytes, device) of each cuMemAlloc."""
        self.captures = {}
        """Streams being captured: handle -> number."""
        self.invalidated = set()
        """Captures spoilt by a forbidden call."""
        self._kept, self._local, self._handles = [], threading.local(), itertools.count(0x7000)
        self._initialised = False
        exported(self, self.types)

    def complain(self, text):
        self.complaints.append(text)
        print("fake:", text, file=sys.stderr)

    @property
    def stack(self):
        """This thread's contexts."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        return self._local.stack

    @property
    def current(self):
        """The device this thread is on, as the runtime sees it: without a context it is 0."""
        return self.stack[-1] - CONTEXT if self.stack else 0

    def inside(self, address, nbytes):
        """Whether these bytes are within one known piece of memory."""
        return any(start <= address and address + nbytes <= start + size for start, size in self.regions.items())

    def _cuInit(self, flags):
        self._initialised = True
        return 0 if self.devices else NO_DEVICE

    def _cuDriverGetVersion(self, out):
        put(out, c_int, self.version)

    def _cuGetErrorName(self, code, out):
        put(out, c_char_p, NAMES[code][0]) if code in NAMES else None
        return 0 if code in NAMES else INVALID_VALUE

    def _cuGetErrorString(self, code, out):
        put(out, c_char_p, NAMES[code][1]) if code in NAMES else None
        return 0 if code in NAMES else INVALID_VALUE

    def _cuDeviceGetCount(self, out):
        assert self._initialised
        put(out, c_int, self.devices)

    def _cuDeviceGet(self, out, index):
        assert 0 <= index < self.devices
        put(out, c_int, index)

    def _cuDeviceGetName(self, out, size, device):
        ctypes.memmove(out, b"Fake H200\0", min(size, 10))

    def _cuDeviceGetAttribute(self, out, attribute, device):
        put(out, c_int, ATTRIBUTES[attribute])

    def _cuDevicePrimaryCtxRetain(self, out, device):
        put(out, c_void_p, CONTEXT + device)

    def _cuCtxPushCurrent_v2(self, context):
        assert CONTEXT <= context < CONTEXT + self.devices
        self.stack.append(context)

    def _cuCtxPopCurrent_v2(self, out):
        put(out, c_void_p, self.stack.pop())

    def _cuCtxGetDevice(self, out):
        if not self.stack:
            return INVALID_CONTEXT
        put(out, c_int, self.current)
        return 0

    def _unsafe(self):
        """A call that is forbidden while anything is captured, but in relaxed mode: it spoils the captures."""
        if self.captures and getattr(self._local, "mode", 0) != RELAXED:
            self.invalidated.update(self.captures.values())
            self.complain("a forbidden call during capture")
            return True
        return False

    def _cuMemAlloc_v2(self, out, nbytes):
        if not self.stack:
            return INVALID_CONTEXT
        if self._unsafe():
            return CAPTURE_UNSUPPORTED
        assert nbytes > 0
        if nbytes > self.memory:
            return OUT_OF_MEMORY
        self.memory -= nbytes
        address = self.new(nbytes, np.random.default_rng(0).integers(0, 255, nbytes, np.uint8))
        self.allocated.append((address, nbytes, self.current))
        put(out, c_uint64, address)
        return 0

    def new(self, nbytes, content):
        """Memory at an address that 256 divides, for good."""
        buffer = np.empty(nbytes + 256, np.uint8)
        self._kept.append(buffer)
        address = buffer.ctypes.data + -buffer.ctypes.data % 256
        ctypes.memmove(address, content.ctypes.data, nbytes)
        self.regions[address] = nbytes
        return address

    def _cuMemsetD8Async(self, address, value, nbytes, stream):
        assert self.stack
        assert self.inside(address, nbytes)
        assert stream not in self.captures
        ctypes.memset(address, value, nbytes)

    def _cuStreamCreate(self, out, flags):
        assert self.stack
        assert flags == 1, "a blocking stream waits for the legacy one"
        put(out, c_void_p, next(self._handles))

    def _cuStreamSynchronize(self, stream):
        if self._unsafe():
            return CAPTURE_UNSUPPORTED
        assert stream not in self.captures
        return 0

    def _cuStreamDestroy_v2(self, stream):
        pass

    def _cuStreamGetCaptureInfo_v2(self, stream, status, number, graph, dependencies, count):
        assert graph is dependencies is count is None
        put(status, c_int, 1 if stream in self.captures else 0)
        put(number, c_uint64, self.captures.get(stream) or next(self._handles))

    def _cuThreadExchangeStreamCaptureMode(self, out):
        old = getattr(self._local, "mode", 0)
        self._local.mode = c_int.from_address(out).value
        put(out, c_int, old)
