"""The NVIDIA driver (libcuda) by ctypes: devices, contexts, memory, kernels.

It serves plugins that depend neither on a CUDA toolkit nor on a Python package that wraps one.

A thread has a current context, or none. The CUDA runtime creates one at its first use in a thread; neither a launch
through the driver nor cuBLASLt does. So every kernel's ``run`` makes the device's primary context current:
``with gpu:`` where :meth:`Gpu.is_current` is false. A launch by cuLaunchKernelEx needs no such test on a machine with
one device: without the right context it fails before anything starts, and is repeated ``with gpu:``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from gemmhub.backend import WORKSPACE
from gemmhub.errors import AllocationError
from gemmhub.kit import locks

FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (c_void_p,),
    "cuGetErrorName": (c_int, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuCtxGetCurrent": (c_void_p,),
    "cuCtxGetDevice": (c_void_p,),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamGetCaptureInfo_v2": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    "cuThreadExchangeStreamCaptureMode": (c_void_p,),
    "cuUserObjectCreate": (c_void_p, c_void_p, c_void_p, c_uint, c_uint),
    "cuGraphRetainUserObject": (c_void_p, c_void_p, c_uint, c_uint),
}
"""Functions that :class:`Driver` and :class:`Gpu` call, by the names libcuda exports, with their argument types; each
returns a CUresult."""

_STREAM_ID = "cuStreamGetId"
"""Functions that are called where libcuda has them: since CUDA 12.0."""

KERNELS: dict[str, tuple[Any, ...]] = {
    "cuModuleLoadData": (c_void_p, c_void_p),
    "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
}
"""Functions for plugins with kernels, which load and launch them."""

_OUT_OF_MEMORY = 2
_SMS, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 16, 75, 76
_CLOCK_KHZ, _MEMORY_CLOCK_KHZ, _BUS_BITS = 13, 36, 37
_WORKSPACE_SHARE = 256
"""Divisor of a device's memory for the default workspace: 4096 x 4096 float32 split into bf16 planes takes 96 MiB."""
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_NON_BLOCKING = 1
_RELAXED = 2
_CAPTURING = 1


class DriverError(RuntimeError):
    """A driver call failed; ``code`` is its CUresult."""

    def __init__(self, function: str, code: int, words: str) -> None:
        super().__init__(f"{function}: {words} ({code})")
        self.code = code


class _Answers:
    """Memory for the driver's answers about a stream, used by one call at a time."""

    def __init__(self) -> None:
        self.status, self.number, self.graph, self.identity = c_int(), c_uint64(), c_void_p(), c_uint64()
        self.capture = byref(self.status), byref(self.number), byref(self.graph), None, None
        self.at_identity = byref(self.identity)


class Driver:
    """libcuda, initialised."""

    def __init__(self, cuda: Any, more: Mapping[str, tuple[Any, ...]] | None = None) -> None:
        """Initialise the driver ``cuda``; ``more`` has functions besides :data:`FUNCTIONS`, with their argument types.

        Raises DriverError where cuInit fails, AttributeError where ``cuda`` lacks a function.
        """
        for name, arguments in {**FUNCTIONS, **(more or {})}.items():
            function = getattr(cuda, name)
            function.restype = c_int
            function.argtypes = arguments
        self.cuda = cuda
        self._untyped: dict[str, Callable[..., int]] = {}
        self._answers: list[_Answers] = []
        """Free memory for answers."""
        self._stream_id: Any = getattr(cuda, _STREAM_ID, None)
        if self._stream_id is not None:
            self._stream_id.restype, self._stream_id.argtypes = c_int, (c_void_p, c_void_p)
        self.call("cuInit", 0)
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        self.cuda_version = (version.value // 1000, version.value % 1000 // 10)
        """Newest CUDA version that the driver runs: (major, minor)."""

    def untyped(self, name: str) -> Callable[..., int]:
        """Return a function of the driver without declared types, which converts less at each call."""
        function = self._untyped.get(name)
        if function is None:
            address = ctypes.cast(getattr(self.cuda, name), c_void_p).value or 0
            function = self._untyped[name] = ctypes.CFUNCTYPE(c_int)(address)
        return function

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; DriverError with the driver's message where it fails."""
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise DriverError(name, code, self.words(code))

    def words(self, code: int) -> str:
        """The name and the message of a CUresult."""
        texts = []
        for function in (self.cuda.cuGetErrorName, self.cuda.cuGetErrorString):
            text = c_char_p()
            if function(code, byref(text)) == 0 and text.value:
                texts.append(text.value.decode())
        return ": ".join(texts) or "unknown error"

    def device_count(self) -> int:
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        return count.value

    def current_device(self) -> int | None:
        """The device of this thread's current context; None where there is none."""
        device = c_int()
        return None if self.cuda.cuCtxGetDevice(byref(device)) else device.value

    def stream(self, stream: int) -> tuple[int, int, int]:
        """Return the number of the capture of ``stream``, the captured graph, and the stream's unique number.

        The first two are 0 where the stream is not captured. The third differs between all streams of the process,
        while the driver reuses handles; it is 0 where the driver has no such number, and for a captured stream, because
        the query would end the capture. Needs a context.
        """
        try:
            answers = self._answers.pop()
        except IndexError:
            answers = _Answers()
        code = self.cuda.cuStreamGetCaptureInfo_v2(stream, *answers.capture)
        if code:
            raise DriverError("cuStreamGetCaptureInfo", code, self.words(code))
        if answers.status.value == _CAPTURING:
            capture = answers.number.value, answers.graph.value or 0, 0
        else:
            if self._stream_id is not None and self._stream_id(stream, answers.at_identity):
                answers.identity.value = 0
            capture = 0, 0, answers.identity.value
        self._answers.append(answers)
        return capture


def load(more: Mapping[str, tuple[Any, ...]] | None = None) -> Driver:
    """Load libcuda and initialise it; OSError without an NVIDIA driver, else errors as of :class:`Driver`."""
    return Driver(ctypes.CDLL("libcuda.so.1"), more)


class Gpu:
    """One device. ``with gpu:`` makes its primary context, the one torch and cupy use, that of this thread."""

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver = driver
        self.index = index
        device = c_int()
        driver.call("cuDeviceGet", byref(device), index)
        self._device = device.value
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", name, len(name), self._device)
        self.name = name.value.decode()
        self.sms = self.attribute(_SMS)
        self.capability = (self.attribute(_CAPABILITY_MAJOR), self.attribute(_CAPABILITY_MINOR))
        self.clock = 1e3 * self.attribute(_CLOCK_KHZ)
        """Hz."""
        # Two transfers a clock: all cards so far have double data rate memory.
        self.bandwidth = 2e3 * self.attribute(_MEMORY_CLOCK_KHZ) * self.attribute(_BUS_BITS) / 8
        """Memory bandwidth in bytes a second."""
        memory = c_size_t()
        driver.call("cuDeviceTotalMem_v2", byref(memory), self._device)
        self.default_workspace = max(WORKSPACE, memory.value // _WORKSPACE_SHARE)
        """A ``default_workspace`` in bytes for backends that copy operands."""
        self._context: int | None = None
        self._lock = locks.lock()
        # No declared types, and pointers computed in advance: each call converts less.
        self._get_current = driver.untyped("cuCtxGetCurrent")
        self._cells: list[tuple[c_void_p, Any]] = []
        """Free memory for a context, with a pointer to it."""

    def attribute(self, number: int) -> int:
        """The value of a CUdevice_attribute."""
        value = c_int()
        self.driver.call("cuDeviceGetAttribute", byref(value), number, self._device)
        return value.value

    def __enter__(self) -> Gpu:
        context = self._context
        if context is None:
            with self._lock:  # a nested call may do it twice and retain the context once more
                retained = c_void_p()
                if self._context is None:
                    self.driver.call("cuDevicePrimaryCtxRetain", byref(retained), self._device)
                    self._context = retained.value
                context = self._context
        self.driver.call("cuCtxPushCurrent_v2", context)
        return self

    def __exit__(self, *error: object) -> None:
        popped = c_void_p()
        self.driver.call("cuCtxPopCurrent_v2", byref(popped))

    def is_current(self) -> bool:
        """Whether the device's primary context is current in this thread.

        False for no context and for any other, of another device or of this one.
        """
        try:
            cell, reference = self._cells.pop()
        except IndexError:
            cell = c_void_p()
            reference = byref(cell)
        current = None if self._get_current(reference) else cell.value
        self._cells.append((cell, reference))
        return current is not None and current == self._context

    @contextmanager
    def outside_captures(self) -> Iterator[None]:
        """As ``with gpu:``, and permit calls that are forbidden during a capture, without effect on the capture."""
        mode = c_int(_RELAXED)
        with self:
            self.driver.call("cuThreadExchangeStreamCaptureMode", byref(mode))
            try:
                yield
            finally:
                self.driver.call("cuThreadExchangeStreamCaptureMode", byref(mode))

    def function(self, image: bytes, name: str, shared_bytes: int) -> int:
        """Load a compiled module; return the handle of its kernel, allowed ``shared_bytes`` of dynamic shared memory.

        The module stays loaded: captured graphs may refer to it. Works while streams are being captured.
        """
        module, function = c_void_p(), c_void_p()
        with self.outside_captures():
            self.driver.call("cuModuleLoadData", byref(module), image)
            self.driver.call("cuModuleGetFunction", byref(function), module, name.encode())
            self.driver.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared_bytes)
        return function.value or 0

    def allocate(self, nbytes: int, zeroed: bool = False) -> int:
        """Allocate device memory, with zero bytes where ``zeroed``; return its address. AllocationError where full.

        Works while streams are being captured, without effect on the captures.
        """
        address = c_uint64()
        with self.outside_captures():
            code = self.driver.cuda.cuMemAlloc_v2(byref(address), nbytes)
            if code == _OUT_OF_MEMORY:
                raise AllocationError(f"no {nbytes} bytes of workspace on cuda:{self.index} ({self.name})")
            if code:
                raise DriverError("cuMemAlloc", code, self.driver.words(code))
            if zeroed:
                try:
                    self._clear(address.value, nbytes)
                except DriverError:
                    self.driver.cuda.cuMemFree_v2(address.value)
                    raise
        return address.value

    def free(self, address: int) -> None:
        """Free memory of :meth:`allocate`; also while streams are being captured. DriverError where that fails."""
        with self.outside_captures():
            self.driver.call("cuMemFree_v2", address)

    def _clear(self, address: int, nbytes: int) -> None:
        """Zero the memory on a separate stream, so that no other stream waits, and wait for it."""
        stream = c_void_p()
        self.driver.call("cuStreamCreate", byref(stream), _NON_BLOCKING)
        try:
            self.driver.call("cuMemsetD8Async", address, 0, nbytes, stream)
            self.driver.call("cuStreamSynchronize", stream)
        finally:
            self.driver.call("cuStreamDestroy_v2", stream)
