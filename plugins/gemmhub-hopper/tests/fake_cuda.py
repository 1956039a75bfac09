# ruff: noqa: N802 (methods are called as the C functions are)
"""A double of libcuda whose kernels are the real ones, compiled for the host and run by tests/emulator.

Every function is a real C function pointer (made by ctypes) with the types of cuda.h, so that calls go through
the plugin's own declarations. What a program must not do is refused and noted in ``complaints``.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from ctypes import c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from functools import cache
from pathlib import Path

import gemmhub_hopper
import numpy as np

INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, INVALID_CONTEXT, LAUNCH_FAILED, CAPTURE_UNSUPPORTED = 1, 2, 100, 201, 719, 900
RELAXED = 2
GEMM_BYTES, PREPASS_BYTES = 240, 216
"""Of Params and PrepassParams."""
CONTEXT = 0x1000
"""The primary context of device 0; that of device 1 is one more."""
NAMES = {
    0: (b"CUDA_SUCCESS", b"no error"),
    OUT_OF_MEMORY: (b"CUDA_ERROR_OUT_OF_MEMORY", b"out of memory"),
    NO_DEVICE: (b"CUDA_ERROR_NO_DEVICE", b"no CUDA-capable device is detected"),
    INVALID_CONTEXT: (b"CUDA_ERROR_INVALID_CONTEXT", b"invalid device context"),
    LAUNCH_FAILED: (b"CUDA_ERROR_LAUNCH_FAILED", b"unspecified launch failure"),
}
ATTRIBUTES = {16: 4, 75: 9, 76: 0, 13: 1_980_000, 36: 3_201_000, 37: 6144}
"""Few multiprocessors: the more blocks, the longer an emulated launch takes."""

_FOLDER = Path(tempfile.mkdtemp(prefix="gemmhub-hopper-tests-"))
_HERE = Path(__file__).parent
_COMPILER = ("g++", "-std=c++17", "-O1", "-fPIC", "-w")


def forget_folder():
    shutil.rmtree(_FOLDER, ignore_errors=True)


@cache
def _sources():
    """The kernel's files with the emulator's in place of those that hold PTX."""
    folder = _FOLDER / "sources"
    shutil.copytree(Path(gemmhub_hopper.__file__).parent / "kernels", folder)
    shutil.copytree(_HERE / "emulator", folder, dirs_exist_ok=True)
    subprocess.run([*_COMPILER, "-x", "c++-header", str(folder / "machine.hpp")], check=True)
    subprocess.run([*_COMPILER, "-c", str(folder / "machine.cpp"), "-o", str(folder / "machine.o")], check=True)
    return folder


_building = defaultdict(threading.Lock)
"""Locks by path: two variants may be compiled at a time, none twice."""


def emulator(macros):
    """The kernel with these macros as a library of the host."""
    given = [f"-D{name}={value}" for name, value in sorted(macros.items())]
    path = _FOLDER / f"{hashlib.sha256(' '.join(given).encode()).hexdigest()[:16]}.so"
    sources = _sources()
    with _building[path]:
        if not path.exists():
            files = [str(sources / name) for name in ("emulator.cpp", "machine.o")]
            command = [*_COMPILER, "-shared", *given, "-o", str(path), *files]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(path))


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
        "cuMemFree_v2": (c_uint64,),
        "cuCtxSynchronize": (),
        "cuStreamCreate": (c_void_p, c_uint),
        "cuStreamSynchronize": (c_void_p,),
        "cuStreamDestroy_v2": (c_void_p,),
        "cuStreamGetCaptureInfo_v2": (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        "cuThreadExchangeStreamCaptureMode": (c_void_p,),
        "cuModuleLoadData": (c_void_p, c_char_p),
        "cuModuleGetFunction": (c_void_p, c_void_p, c_char_p),
        "cuFuncSetAttribute": (c_void_p, c_int, c_int),
        "cuTensorMapEncodeTiled": (
            c_void_p, c_int, c_uint, c_uint64, c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int,
        ),
        "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    }.items()
}  # fmt: skip


class FakeCuda:
    """An object with the functions of libcuda."""

    failed = LAUNCH_FAILED

    def __init__(self, devices=1, version=13000, memory=2**40, attributes=None):
        self.devices, self.version, self.memory = devices, version, memory
        self.attributes = {**ATTRIBUTES, **(attributes or {})}
        self.faults, self.calls, self.complaints = {}, [], []
        self.freed, self.allocated = [], []
        """(address, bytes, device) of each cuMemAlloc."""
        self.captures = {}
        """Streams being captured: handle -> number."""
        self.seed = 0
        """Of the next launch's interleaving."""
        self.launches = []
        """(macros, grid, stream) of each."""
        self.lock = threading.Lock()
        self._kept, self._local, self._handles = [], threading.local(), itertools.count(0x7000)
        self._modules, self._functions = {}, {}
        exported(self, TYPES)

    def complain(self, text):
        self.complaints.append(text)
        print("fake:", text, file=sys.stderr)

    @property
    def stack(self):
        """This thread's contexts."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        return self._local.stack

    def _cuInit(self, flags):
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
        put(out, c_int, self.devices)

    def _cuDeviceGet(self, out, index):
        assert 0 <= index < self.devices
        put(out, c_int, index)

    def _cuDeviceGetName(self, out, size, device):
        ctypes.memmove(out, b"Fake H200\0", min(size, 10))

    def _cuDeviceGetAttribute(self, out, attribute, device):
        put(out, c_int, self.attributes[attribute])

    def _cuDevicePrimaryCtxRetain(self, out, device):
        put(out, c_void_p, CONTEXT + device)

    def _cuCtxPushCurrent_v2(self, context):
        self.stack.append(context)

    def _cuCtxPopCurrent_v2(self, out):
        put(out, c_void_p, self.stack.pop())

    def _cuCtxGetDevice(self, out):
        if not self.stack:
            return INVALID_CONTEXT
        put(out, c_int, self.stack[-1] - CONTEXT)

    def _unsafe(self):
        """A call that is forbidden while anything is captured, but in relaxed mode."""
        if self.captures and getattr(self._local, "mode", 0) != RELAXED:
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
        buffer = np.full(nbytes + 256, 0xA5, np.uint8)
        self._kept.append(buffer)
        address = buffer.ctypes.data + -buffer.ctypes.data % 256
        self.allocated.append((address, nbytes, self.stack[-1] - CONTEXT))
        put(out, c_uint64, address)
        return 0

    def _cuMemFree_v2(self, address):
        if self._unsafe():
            return CAPTURE_UNSUPPORTED
        assert self.stack
        index = next(i for i, (at, _, _) in enumerate(self.allocated) if at == address)
        self.memory += self.allocated.pop(index)[1]
        self.freed.append(address)

    def _cuCtxSynchronize(self):
        assert self.stack
        return CAPTURE_UNSUPPORTED if self._unsafe() else 0

    def _cuMemsetD8Async(self, address, value, nbytes, stream):
        assert self.stack
        assert stream not in self.captures
        ctypes.memset(address, value, nbytes)

    def _cuStreamCreate(self, out, flags):
        assert self.stack
        assert flags == 1, "a blocking stream waits for the legacy one"
        put(out, c_void_p, next(self._handles))

    def _cuStreamSynchronize(self, stream):
        return CAPTURE_UNSUPPORTED if self._unsafe() else 0

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

    def _cuModuleLoadData(self, out, image):
        if not self.stack:
            return INVALID_CONTEXT
        handle = next(self._handles)
        self._modules[handle] = json.loads(image)
        put(out, c_void_p, handle)
        return 0

    def _cuModuleGetFunction(self, out, module, name):
        assert name == (b"prepass" if "KIND" in self._modules[module] else b"gemm")
        buffer = np.zeros(16, np.uint8)
        self._kept.append(buffer)
        self._functions[buffer.ctypes.data] = {"macros": self._modules[module], "shared": 49152}
        put(out, c_void_p, buffer.ctypes.data)

    def _cuFuncSetAttribute(self, function, attribute, value):
        assert attribute == 8
        assert 0 <= value <= 232448
        self._functions[function]["shared"] = value

    def _cuTensorMapEncodeTiled(self, *given):
        return _encoder().encode(*given)

    def _cuLaunchKernelEx(self, config, function, parameters, extra):
        if not self.stack and self.devices > 1:
            return INVALID_CONTEXT
        assert parameters is None
        grid, block = (tuple((c_uint * 3).from_address(config + 12 * i)) for i in range(2))
        shared = c_uint.from_address(config + 24).value
        stream = c_uint64.from_address(config + 32).value
        assert c_uint.from_address(config + 48).value == 0, "no attributes"
        kernel = self._functions[function]
        macros = kernel["macros"]
        assert grid[1:] == (1, 1)
        assert grid[0] > 0
        if "KIND" in macros:
            assert (shared, block) == (0, (256, 1, 1))
        else:
            assert shared == macros["SHARED_BYTES"] <= kernel["shared"]
            assert block == (128 * (1 + macros["CONSUMERS"]), 1, 1)
            assert grid[0] % (macros["CLUSTER_M"] * macros["CLUSTER_N"]) == 0
            assert grid[0] <= self.attributes[16]
        words = (c_uint64 * 5).from_address(extra)
        assert (words[0], words[2], words[4]) == (1, 2, 0)
        buffer, nbytes = words[1], c_size_t.from_address(words[3]).value
        assert nbytes == (PREPASS_BYTES if "KIND" in macros else 3 * 128 + GEMM_BYTES)
        assert buffer % 64 == 0
        # A launch copies its parameters: others may be written over them at once.
        copy = np.empty(nbytes + 64, np.uint8)
        start = copy.ctypes.data + -copy.ctypes.data % 64
        ctypes.memmove(start, buffer, nbytes)
        self.launches.append((macros, grid[0], stream))
        with self.lock:  # one at a time: the emulator has one machine
            self.seed += 1
            complaint = run_emulator(macros, start, grid[0], self.seed)
        if complaint:
            self.complain(complaint)
            return LAUNCH_FAILED
        return 0


def run_emulator(macros, arguments, grid, seed):
    """Run the kernel on the parameters at that address; what went wrong, or an empty string."""
    library = emulator(macros)
    message = ctypes.create_string_buffer(2000)
    places = [c_void_p(arguments + 128 * i) for i in range(4)]
    if "KIND" in macros:
        places[3] = c_void_p(arguments)
    library.emulate(*places, c_uint(grid), c_uint64(seed), message, c_uint(len(message)))
    return message.value.decode()


@cache
def _encoder():
    """Any variant's library: they all have the encoder of tensor maps."""
    from gemmhub_hopper.config import Form, Shape, Variant

    library = emulator(Variant(Shape(64, 16, 2, consumers=1), Form(False, False, "bfloat16", "bfloat16")).macros)
    library.encode.argtypes = TYPES["cuTensorMapEncodeTiled"][1]
    return library
