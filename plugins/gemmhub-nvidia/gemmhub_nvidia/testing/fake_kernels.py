# ruff: noqa: N802 (methods are called as the C functions are)
"""A fake NVRTC and a fake libcuda with kernels, for CUDA plugins that compile and launch their own.

A subclass of :class:`FakeKernels` defines what a launch does, such as running the kernel compiled for the host::

    class FakeCuda(FakeKernels):
        def check(self, kernel, launch):
            assert launch.block == (kernel.module["macros"]["THREADS"], 1, 1)

        def execute(self, kernel, launch):
            ...  # return an error message, or an empty string

    cuda = FakeCuda()
    MyBackend(lambda: gemmhub_nvidia.driver.Driver(cuda, gemmhub_nvidia.driver.KERNELS), FakeCompiler)
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar

from gemmhub.testing.fake_library import Types, put
from gemmhub_nvidia.launch import LaunchAttribute
from gemmhub_nvidia.nvrtc import Compiled, Source
from gemmhub_nvidia.testing.fake_cuda import CONTEXT, INVALID_CONTEXT, LAUNCH_FAILED, TYPES, FakeCuda

KERNEL_TYPES: Types = {
    "cuFuncSetAttribute": (c_int, (c_void_p, c_int, c_int)),
    "cuLaunchKernelEx": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "cuMemcpyDtoHAsync_v2": (c_int, (c_void_p, c_uint64, c_size_t, c_void_p)),
    "cuMemcpyHtoDAsync_v2": (c_int, (c_uint64, c_void_p, c_size_t, c_void_p)),
    "cuModuleGetFunction": (c_int, (c_void_p, c_void_p, c_char_p)),
    "cuModuleLoadData": (c_int, (c_void_p, c_char_p)),
    "cuOccupancyMaxActiveClusters": (c_int, (c_void_p, c_void_p, c_void_p)),
}
MAX_SHARED = 232448
"""Largest shared memory of a block, in bytes."""
_UNASKED_SHARED = 49152
"""Shared memory of a block without an attribute for more."""
_MAX_DYNAMIC_SHARED = 8
_NOT_SUPPORTED = 801
_CLUSTER_DIMENSION = 4
_PDL = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_: ClassVar = [
        ("gridDimX", c_uint), ("gridDimY", c_uint), ("gridDimZ", c_uint),
        ("blockDimX", c_uint), ("blockDimY", c_uint), ("blockDimZ", c_uint), ("sharedMemBytes", c_uint),
        ("hStream", c_uint64), ("attrs", c_uint64), ("numAttrs", c_uint),
    ]  # fmt: skip


@dataclass
class Kernel:
    """A function of a loaded module."""

    module: Any
    """Module that :meth:`FakeKernels.load` returned."""
    name: str
    shared: int = _UNASKED_SHARED
    """Limit of its dynamic shared memory in bytes."""


@dataclass(frozen=True)
class Launch:
    """One call of cuLaunchKernelEx."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    stream: int
    parameters: tuple[bytes, ...]
    """Copies of the parameters: a launch copies them, and the caller may overwrite them at once."""


class FakeCompiler:
    """A fake of :class:`gemmhub_nvidia.nvrtc.Compiler`, whose cubins :class:`FakeKernels` loads."""

    version = (13, 0)
    where = "libnvrtc.so"

    def compile(self, source: Source, verbose: bool = False) -> Compiled:
        """Return a JSON object with the macros (integers by name), the main file and the architecture ("sm_90")."""
        macros = dict(option[2:].split("=") for option in source.options if option.startswith("-D"))
        arch = next(option for option in source.options if option.startswith("--gpu-architecture="))
        module = {
            "macros": {name: int(value) for name, value in macros.items()},
            "main": source.main,
            "arch": arch.split("=")[1],
        }
        return Compiled(json.dumps(module).encode(), "")


class FakeKernels(FakeCuda):
    """A libcuda that loads modules and launches kernels, one at a time; each parameter has a pointer."""

    failed = LAUNCH_FAILED
    types: ClassVar[Types] = {**TYPES, **KERNEL_TYPES}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.launches: list[tuple[Any, tuple[int, int, int], int]] = []
        """Launches that passed :meth:`check`: (module, grid, stream)."""
        self.seed = 0
        """Seed for random orders in :meth:`execute`; another one in every launch."""
        self.clusters: dict[int, int] = {}
        """Numbers of resident clusters by cluster size; for other sizes the driver has no answer."""
        self.interrupt: Callable[[], None] | None = None
        """Function called before each launch, after its parameters are written, as a signal handler might be."""
        self._turn = threading.Lock()
        self._modules: dict[int, Any] = {}
        self._functions: dict[int, Kernel] = {}

    def load(self, image: bytes) -> Any:
        """Load a module from its image, which ends at the first zero byte."""
        return json.loads(image)

    def entry_points(self, module: Any) -> tuple[str, ...]:
        """Return the names of a module's kernels."""
        return ("gemm",)

    def sizes(self, kernel: Kernel) -> tuple[int, ...]:
        """Return the sizes, in bytes, of a kernel's parameters."""
        raise NotImplementedError

    def check(self, kernel: Kernel, launch: Launch) -> None:
        """Raise AssertionError for a launch that no card accepts, or that does not suit the kernel."""

    def execute(self, kernel: Kernel, launch: Launch) -> str:
        """Run the kernel; return an error message, or an empty string."""
        raise NotImplementedError

    def _cuModuleLoadData(self, out: int, image: bytes) -> int:
        if not self.stack:
            return INVALID_CONTEXT
        handle = next(self._handles)
        self._modules[handle] = image if image.startswith(b".version") else self.load(image)
        put(out, c_void_p, handle)
        return 0

    def _cuMemcpyHtoDAsync_v2(self, to: int, source: int, nbytes: int, stream: int) -> None:
        assert self.inside(to, nbytes)
        assert stream not in self.captures
        ctypes.memmove(to, source, nbytes)

    def _cuMemcpyDtoHAsync_v2(self, to: int, source: int, nbytes: int, stream: int) -> None:
        assert self.inside(source, nbytes)
        assert stream not in self.captures
        ctypes.memmove(to, source, nbytes)

    def _cuModuleGetFunction(self, out: int, module: int, name: bytes) -> None:
        loaded = self._modules[module]
        if isinstance(loaded, bytes):
            assert b".entry %s()" % name in loaded
        else:
            assert name.decode() in self.entry_points(loaded)
        handle = next(self._handles)
        self._functions[handle] = Kernel(self._modules[module], name.decode())
        put(out, c_void_p, handle)

    def _cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        assert attribute == _MAX_DYNAMIC_SHARED
        assert 0 <= value <= MAX_SHARED
        self._functions[function].shared = value

    def _cuOccupancyMaxActiveClusters(self, out: int, function: int, config: int) -> int:
        if not self.stack:
            return INVALID_CONTEXT
        launched = LaunchConfig.from_address(config)
        (attribute,) = (LaunchAttribute * launched.numAttrs).from_address(launched.attrs)
        assert attribute.id == _CLUSTER_DIMENSION
        size, *others = (c_uint * 3).from_address(ctypes.addressof(attribute) + 8)
        assert others == [1, 1]
        assert launched.gridDimX % size == 0
        assert launched.sharedMemBytes == self._functions[function].shared == self.attributes[97]
        if size not in self.clusters:
            return _NOT_SUPPORTED
        put(out, c_int, self.clusters[size])
        return 0

    def _cuLaunchKernelEx(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        if self.interrupt is not None:
            self.interrupt()
        if self.context not in range(CONTEXT, CONTEXT + self.devices):
            return INVALID_CONTEXT
        assert extra is None
        launched = LaunchConfig.from_address(config)
        attributes = (LaunchAttribute * launched.numAttrs).from_address(launched.attrs) if launched.numAttrs else ()
        assert [(x.id, x.value) for x in attributes] in ([], [(_PDL, b"\x01")]), (
            "attributes that this fake does not support"
        )
        kernel = self._functions[function]
        sizes = self.sizes(kernel)
        addresses = (c_uint64 * len(sizes)).from_address(parameters)
        launch = Launch(
            (launched.gridDimX, launched.gridDimY, launched.gridDimZ),
            (launched.blockDimX, launched.blockDimY, launched.blockDimZ),
            launched.sharedMemBytes, launched.hStream,
            tuple(ctypes.string_at(address, size) for address, size in zip(addresses, sizes)),
        )  # fmt: skip
        assert min(launch.grid) > 0
        assert launch.shared <= kernel.shared
        self.check(kernel, launch)
        self.launches.append((kernel.module, launch.grid, launch.stream))
        with self._turn:
            self.seed += 1
            complaint = self.execute(kernel, launch)
        if complaint:
            self.complain(complaint)
            return LAUNCH_FAILED
        return 0
