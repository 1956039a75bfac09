"""Arrays on devices: cupy arrays and torch tensors (CUDA; MUSA through torch_musa).

Neither library is ever imported here: who has such an array has its library in the process. gemmhub takes the
array's address and geometry, asks the library for memory and for its current stream, and moves no data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from math import prod
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays import torch_tensors
from gemmhub._arrays.device_clock import DeviceClock
from gemmhub._arrays.geometry import MOST_ALIGNED, DeviceView, distinct, meet, reach
from gemmhub.capability import Device
from gemmhub.dtypes import DType
from gemmhub.errors import AllocationError, DeviceError, InputError, OutputError

Array = Any


class DeviceFamily:
    """What the arrays of one library on one device have in common. See :class:`gemmhub._arrays.family.Family`."""

    name = ""

    def __init__(self, device: Device) -> None:
        self.device = device

    def view(self, x: Any, argument: str) -> DeviceView:
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

    def foreign(self, x: object, argument: str) -> InputError:
        """The error for an operand that is no array of this family."""
        return DeviceError(
            argument, f"a {type(x).__qualname__}", f"{self.name} arrays on {self.device}", "move or convert it first"
        )

    def check_size(self, shape: tuple[int, ...], dtype: DType) -> None:
        """AllocationError where the number of bytes overflows, which libraries have other words for."""
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

    # What subclasses add: current_stream() -> int, on(stream) -> context, copy(into, source), synchronize().


class CupyFamily(DeviceFamily):
    """``cupy.ndarray``."""

    name = "cupy"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.library = sys.modules["cupy"]

    def view(self, x: Any, argument: str) -> DeviceView:
        if not isinstance(x, self.library.ndarray):
            raise self.foreign(x, argument)
        if x.device.id != self.device.index:
            raise DeviceError(argument, f"on cuda:{x.device.id}", f"operands on {self.device}", "move it there")
        return DeviceView(x.data.ptr, x.dtype, x.shape, x.strides, x)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        self.check_size(shape, dtype)
        try:
            with self.library.cuda.Device(self.device.index):
                return self.library.empty(shape, dtype)
        except (MemoryError, self.library.cuda.memory.OutOfMemoryError) as error:
            raise self.no_memory(shape, dtype, error) from None
        except RuntimeError as error:
            raise self.lost(error) from error

    def twin(self, x: DeviceView) -> Array:
        first, span = reach(x)
        buffer = self.empty((span + MOST_ALIGNED,), np.dtype(np.uint8)).data
        first += (x.address - buffer.ptr - first) % MOST_ALIGNED  # aligned as x is
        return self.library.ndarray(x.shape, x.dtype, buffer + first, x.strides)

    def clone(self, x: Array) -> Array:
        native = x if isinstance(x, DeviceView) else self.view(x, "x")
        twin = self.twin(native)
        with self.on(None):
            twin[...] = native.owner
        return twin

    def from_host(self, x: Array) -> Array:
        with self.library.cuda.Device(self.device.index):
            return self.library.asarray(x)

    def to_host(self, x: Array) -> Array:
        return self.library.asnumpy(x)

    def copy(self, into: Array, source: Array) -> None:
        """On the current stream."""
        into[...] = source

    def current_stream(self) -> int:
        return int(self.library.cuda.get_current_stream(self.device.index).ptr)

    def capturing(self) -> bool:
        return bool(self.library.cuda.get_current_stream(self.device.index).is_capturing())

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        """Make the device, and ``stream`` where one is given, current for a block."""
        device = self.library.cuda.Device(self.device.index)
        return device if stream is None else self._on(device, stream)

    @contextmanager
    def _on(self, device: Any, stream: int) -> Iterator[None]:
        # A stream can be entered on its own device only.
        with device, self.library.cuda.ExternalStream(stream, self.device.index):
            yield

    def synchronize(self) -> None:
        self.library.cuda.Device(self.device.index).synchronize()

    def clock(self) -> DeviceClock:
        cuda = self.library.cuda
        with cuda.Device(self.device.index):
            cache = cuda.Device().attributes["L2CacheSize"]
            flush = self.library.zeros(2 * cache, np.uint8)
            return DeviceClock(cuda.Event, cuda.get_elapsed_time, lambda: flush.fill(1), cache, lambda: self.on(None))


class TorchFamily(DeviceFamily):
    """Dense ``torch.Tensor`` on a CUDA or MUSA device."""

    name = "torch"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.library = torch = sys.modules["torch"]
        self._runtime = getattr(torch, device.kind)
        self.place = torch.device(device.kind, device.index)
        self._dtypes, self._to_torch = torch_dtypes()
        self.raw_stream = _raw_stream(torch, device)
        self.increment_version = torch_tensors.increment_version()
        # torch before 2.5 has it in torch.cuda only.
        self._out_of_memory = getattr(torch, "OutOfMemoryError", None) or self._runtime.OutOfMemoryError

    def view(self, x: Any, argument: str) -> DeviceView:
        torch = self.library
        if not isinstance(x, torch.Tensor):
            raise self.foreign(x, argument)
        if x.device != self.place:
            raise DeviceError(argument, f"on {x.device}", f"operands on {self.device}", "move it there with .to()")
        address = torch_tensors.address(x, argument)
        dtype = self._dtypes.get(x.dtype)
        if dtype is None:
            raise dtypes.unsupported(argument, x.dtype)
        size = dtype.itemsize
        return DeviceView(address, dtype, tuple(x.shape), tuple(step * size for step in x.stride()), x)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        self.check_size(shape, dtype)
        try:
            return self.library.empty(shape, dtype=self._to_torch[dtype], device=self.place)
        except (MemoryError, self._out_of_memory) as error:
            raise self.no_memory(shape, dtype, error) from None
        except RuntimeError as error:
            raise self.lost(error) from error

    def twin(self, x: DeviceView) -> Array:
        size = x.dtype.itemsize
        steps = tuple(step // size for step in x.strides)
        try:
            return self.library.empty_strided(x.shape, steps, dtype=self._to_torch[x.dtype], device=self.place)
        except (MemoryError, self._out_of_memory) as error:
            raise self.no_memory(x.shape, x.dtype, error) from None

    def clone(self, x: Array) -> Array:
        native = x if isinstance(x, DeviceView) else self.view(x, "x")
        twin = self.twin(native)
        twin.copy_(native.owner)
        return twin

    def from_host(self, x: Array) -> Array:
        bits = self.library.from_numpy(x.flatten().view(np.uint8))
        return bits.to(self.place).view(self._to_torch[x.dtype]).reshape(x.shape)

    def to_host(self, x: Array) -> Array:
        dtype = self._dtypes.get(x.dtype)
        if dtype is None:
            raise dtypes.unsupported("x", x.dtype)
        plain = x.detach().resolve_conj().resolve_neg().contiguous()
        flat = plain.as_strided((plain.numel(),), (1,))  # reshape would leave a single element its stride
        return flat.view(self.library.uint8).cpu().numpy().view(dtype).reshape(tuple(x.shape))

    def copy(self, into: Array, source: Array) -> None:
        """On the current stream."""
        into.copy_(source)

    def current_stream(self) -> int:
        return int(self.raw_stream(self.device.index))

    def capturing(self) -> bool:
        asked = getattr(self._runtime, "is_current_stream_capturing", None)  # torch_musa may lack it
        return asked is not None and bool(asked())

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        """Make the device, and ``stream`` where one is given, current for a block."""
        runtime = self._runtime
        if stream is None or stream == self.current_stream():
            return runtime.device(self.device.index)  # type: ignore[no-any-return]
        if stream == 0:  # for which ExternalStream would take one of torch's own
            return runtime.stream(runtime.default_stream(self.device.index))  # type: ignore[no-any-return]
        return runtime.stream(runtime.ExternalStream(stream, device=self.place))  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        self._runtime.synchronize(self.device.index)

    def clock(self) -> DeviceClock:
        properties = self._runtime.get_device_properties(self.device.index)
        cache = getattr(properties, "L2_cache_size", 0) or 64 * 2**20
        flush = self.library.empty(2 * cache, dtype=self.library.uint8, device=self.place)
        return DeviceClock(
            lambda: self._runtime.Event(enable_timing=True), lambda x, y: x.elapsed_time(y), flush.zero_, cache,
            lambda: self.on(None),
        )  # fmt: skip


def _raw_stream(torch: Any, device: Device) -> Any:
    """``index -> handle`` of the current stream. torch's own short way, where it has it, takes 0.1 us and not 1."""
    raw = getattr(torch._C, f"_{device.kind}_getCurrentRawStream", None)
    if raw is not None:
        return raw
    runtime, attribute = getattr(torch, device.kind), f"{device.kind}_stream"
    return lambda index: getattr(runtime.current_stream(index), attribute)


@cache
def torch_dtypes() -> tuple[dict[Any, DType], dict[DType, Any]]:
    """torch's dtypes as ours, and the other way around."""
    torch = sys.modules["torch"]
    pairs = [(getattr(torch, name, None), dtypes.as_dtype(name)) for name in dtypes.SUPPORTED]
    known = [(theirs, ours) for theirs, ours in pairs if theirs is not None]
    return dict(known), {ours: theirs for theirs, ours in known}


@cache
def cupy_family(index: int) -> CupyFamily:
    """The family of cupy arrays on one device."""
    return CupyFamily(Device("cuda", index))


@cache
def torch_family(kind: str, index: int) -> TorchFamily:
    """The family of torch tensors on one device."""
    return TorchFamily(Device(kind, index))


TORCH_KINDS = ("cuda", "musa")
"""Device types of torch that gemmhub knows; "cpu" is left to DLPack."""


def native_family(x: Any, argument: str) -> CupyFamily | TorchFamily | None:
    """The family of a cupy array or a torch tensor on a device; None for anything else.

    Raises DeviceError for tensors on devices that gemmhub does not know.
    """
    if torch_tensors.is_tensor(x):
        kind = x.device.type
        if kind == "cpu":
            return None
        if kind not in TORCH_KINDS or (kind == "cuda" and sys.modules["torch"].version.hip):
            raise DeviceError(
                argument, f"a tensor on {x.device}", "tensors on cpu, cuda and musa", "copy it to the host"
            )
        return torch_family(kind, x.device.index)
    cupy = getattr(sys.modules.get("cupy"), "ndarray", None)  # None while cupy is still being imported
    if cupy is not None and isinstance(x, cupy):
        return cupy_family(x.device.id)
    return None
