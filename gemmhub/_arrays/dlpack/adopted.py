"""Device arrays of other libraries (JAX, Numba, ...), through DLPack or the CUDA array interface.

gemmhub does not parse such arrays itself: cupy (or torch, where cupy is missing) imports them without a copy,
allocates results and provides the current stream. Results return through ``from_dlpack`` of the operands' own
library. Where the producer's work is on another stream, the device waits for it, never the host.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Hashable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from gemmhub._arrays.array_types import library_name
from gemmhub._arrays.cupy.operands import CupyArrays, cupy_arrays
from gemmhub._arrays.dlpack.operands import unconverted
from gemmhub._arrays.torch.operands import TorchArrays, torch_arrays
from gemmhub._base.geometry import DeviceView
from gemmhub._base.guard import words
from gemmhub._base.wording import instance
from gemmhub.capability import Device
from gemmhub.errors import DeviceError, InputError, OutputError
from gemmhub.packed import PackedB

Array = Any

_CUDA = (2, 13)
"""DLPack's numbers for CUDA memory and CUDA managed memory."""
_OTHER = {3: "CUDA host memory", 7: "vulkan", 8: "metal", 10: "rocm", 14: "oneapi", 15: "webgpu", 16: "hexagon"}
_ALLOWED = "arrays on cpu, or in CUDA memory"
_LEGACY = 1
"""The CUDA array interface's number for the default stream, whose handle is 0."""


def arrays(x: Any, argument: str) -> AdoptedArrays | None:
    """The arrays of an array on a CUDA device; None for arrays on the CPU.

    Raises DeviceError for arrays on other devices, and where neither cupy nor torch can import them.
    """
    array_type: Any = type(x)
    name = library_name(array_type)
    if hasattr(x, "__dlpack_device__"):
        try:
            device_code, index = (int(part) for part in x.__dlpack_device__())
        except Exception as error:  # foreign code
            raise DeviceError(argument, f"{instance(type(x))} on no device: {words(error)}", _ALLOWED) from error
        if device_code == 1:
            return None
        if device_code not in _CUDA:
            where = _OTHER.get(device_code, f"DLPack device type {device_code}")
            raise DeviceError(argument, f"an array on {where}", _ALLOWED, "copy it to the host")
    else:
        try:
            interface = x.__cuda_array_interface__
        except AttributeError:
            return None
        try:
            address = int(interface["data"][0])
            index = _device_of(address) if address else 0
            if index < 0:
                raise ValueError(f"{address:#x} is the host's")
        except Exception as error:  # foreign code
            raise DeviceError(
                argument,
                f"{instance(type(x))} whose address is not CUDA memory: {error}",
                _ALLOWED,
            ) from error
    library = _library()
    if library is None:
        raise DeviceError(
            argument, f"an array of {name} on cuda:{index}", "cupy installed, which imports it without a copy",
            "pip install cupy-cuda13x (or cupy-cuda12x)",
        )  # fmt: skip
    return adopted_arrays(name, index, library)


@cache
def adopted_arrays(name: str, index: int, library: str) -> AdoptedArrays:
    carrier: CupyArrays | TorchArrays
    carrier = cupy_arrays(index) if library == "cupy" else torch_arrays("cuda", index)
    return AdoptedArrays(name, carrier)


def _library() -> str | None:
    """The library that imports foreign arrays: cupy where installed (the faster import), else a loaded torch."""
    if "cupy" not in sys.modules and "torch" not in sys.modules and find_spec("cupy") is not None:
        try:
            importlib.import_module("cupy")
        except Exception:  # foreign code: perhaps built for another CUDA
            return None
    return next((name for name in ("cupy", "torch") if name in sys.modules), None)


def _device_of(address: int) -> int:
    """The device that an address belongs to, by cupy; without cupy, torch's current device."""
    library = _library()
    if library == "cupy":
        return int(sys.modules["cupy"].cuda.runtime.pointerGetAttributes(address).device)
    return int(sys.modules["torch"].cuda.current_device()) if library == "torch" else 0


class AdoptedArrays:
    """Arrays of the library ``name`` on one CUDA device."""

    def __init__(self, name: str, carrier: CupyArrays | TorchArrays) -> None:
        self.name = name
        self.device: Device = carrier.device
        self._carrier = carrier
        self.empty, self.empty_strided_like, self.copy, self.overlap = (
            carrier.empty,
            carrier.empty_strided_like,
            carrier.copy,
            carrier.overlap,
        )
        self.on, self.current_stream, self.clock = carrier.on, carrier.current_stream, carrier.clock
        self.from_host, self.synchronize, self.capturing = carrier.from_host, carrier.synchronize, carrier.capturing

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> None:
        """None: importing an array costs more than a look-up."""

    def view(self, x: Any, argument: str) -> DeviceView:
        return self._carrier.view(self._adopt(x, argument), argument)

    def key(self, x: Any) -> Hashable:
        raise TypeError("it is imported anew in each call")

    def target(self, out: Any, shape: tuple[int, ...]) -> DeviceView:
        interface = getattr(out, "__cuda_array_interface__", None)
        if _immutable(out) or (interface is not None and interface["data"][1]):
            raise OutputError("out", f"a read-only {type(out).__qualname__}", "an array that can be written")
        return self._carrier.target(self._adopt(out, "out"), shape)

    def clone(self, x: Array) -> Array:
        return self._carrier.clone(x if isinstance(x, DeviceView) else self.view(x, "x"))

    def to_host(self, x: Array) -> Array:
        return self._carrier.to_host(self._adopt(x, "x"))

    def wrap(self, result: Array, operands: tuple[object, ...]) -> Array:
        like: Any = next(x for x in operands if x is not None and not isinstance(x, PackedB))
        package = sys.modules.get(self.name)
        namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else None
        takers = (
            getattr(namespace, "from_dlpack", None),
            getattr(getattr(package, "dlpack", None), "from_dlpack", None),
            getattr(package, "from_dlpack", None),
            getattr(getattr(package, "cuda", None), "as_cuda_array", None),
        )
        take = next((taker for taker in takers if taker is not None), None)
        if take is None:
            raise InputError("a, b", f"{self.name} has no from_dlpack to take a result", "out= given", "pass out=")
        return unconverted(take(result), result)

    def _adopt(self, x: Any, argument: str) -> Array:
        """``x`` as the carrier's array, sharing its memory; the carrier's stream waits for the producer's."""
        library = self._carrier.module
        if isinstance(x, library.Tensor if isinstance(self._carrier, TorchArrays) else library.ndarray):
            return x
        if not (hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__")):
            raise DeviceError(argument, instance(type(x)), f"{self.name} arrays on {self.device}", "convert it first")
        try:
            with self._carrier.on(None):
                if hasattr(x, "__dlpack__"):
                    return library.from_dlpack(x)
                if isinstance(self._carrier, TorchArrays):
                    return _torch_view(library, x, argument)
                return _cupy_view(library, x)
        except DeviceError:
            raise
        except Exception as error:  # foreign code
            raise InputError(
                argument, f"{instance(type(x))} that {self._carrier.name} cannot import: {words(error)}",
                "arrays of one library that export DLPack or the CUDA array interface",
            ) from error  # fmt: skip


def _immutable(out: object) -> bool:
    return type(out).__module__.partition(".")[0] in ("jax", "jaxlib")


def _cupy_view(cupy: Any, x: Any) -> Array:
    """A cupy array over the memory that the CUDA array interface names (cupy.asarray would wait on the host)."""
    interface = x.__cuda_array_interface__
    address = int(interface["data"][0])
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    if interface.get("mask") is not None:
        raise ValueError("masked arrays are not supported")
    size = int(np.prod(shape)) * dtype.itemsize
    strides = interface.get("strides")
    reach = size if strides is None else sum((n - 1) * s for n, s in zip(shape, strides)) + dtype.itemsize
    memory = cupy.cuda.UnownedMemory(address, max(0, reach), x)
    producer = interface.get("stream")
    if producer is not None:
        handle = 0 if producer == _LEGACY else producer
        current = cupy.cuda.get_current_stream()
        if handle != current.ptr:
            current.wait_event(cupy.cuda.ExternalStream(handle).record())
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


def _torch_view(torch: Any, x: Any, argument: str) -> Array:
    """A tensor over the memory that the CUDA array interface names, on the current device."""
    interface = x.__cuda_array_interface__
    tensor = torch.as_tensor(x, device="cuda")
    if tensor.data_ptr() != int(interface["data"][0]) and tensor.numel():  # torch has copied it from another device
        raise DeviceError(
            argument, f"{instance(type(x))} on another device than the current one", "arrays on one device",
            "make their device current, or install cupy",
        )  # fmt: skip
    producer = interface.get("stream")
    if producer is not None:
        handle = 0 if producer == _LEGACY else producer
        current = torch.cuda.current_stream()
        if handle != current.cuda_stream:
            other = torch.cuda.ExternalStream(handle) if handle else torch.cuda.default_stream()
            current.wait_stream(other)
    return tensor
