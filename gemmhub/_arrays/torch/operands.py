"""Operands of torch on a CUDA or MUSA device.

torch is never imported here: where a tensor exists, torch is loaded already. gemmhub reads a tensor's address and
geometry, gets memory and the current stream from torch, and moves no data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np

from gemmhub import dtypes
from gemmhub._arrays.torch import calls, tensors
from gemmhub._base.device_clock import DeviceClock
from gemmhub._base.geometry import DeviceView
from gemmhub.array_library import DeviceArrays, FastPath
from gemmhub.capability import Device
from gemmhub.dtypes import DType
from gemmhub.errors import DeviceError

Array = Any


class TorchArrays(DeviceArrays):
    """Dense ``torch.Tensor`` on a CUDA or MUSA device."""

    name = "torch"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.module = torch = sys.modules["torch"]
        self._runtime = getattr(torch, device.kind)
        self.place = torch.device(device.kind, device.index)
        self._dtypes, self._to_torch = torch_dtypes()
        self.raw_stream = _raw_stream(torch, device)
        self.increment_version = tensors.increment_version()
        # torch before 2.5 has OutOfMemoryError in torch.cuda only.
        self._out_of_memory = getattr(torch, "OutOfMemoryError", None) or self._runtime.OutOfMemoryError

    def view(self, x: Any, argument: str) -> DeviceView:
        torch = self.module
        if not isinstance(x, torch.Tensor):
            raise self.foreign(x, argument)
        if x.device != self.place:
            raise DeviceError(argument, f"on {x.device}", f"operands on {self.device}", "move it there with .to()")
        address = tensors.address(x, argument)
        dtype = self._dtypes.get(x.dtype)
        if dtype is None:
            raise dtypes.unsupported(argument, x.dtype)
        size = dtype.itemsize
        return DeviceView(address, dtype, tuple(x.shape), tuple(step * size for step in x.stride()), x)

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        self.check_size(shape, dtype)
        try:
            return self.module.empty(shape, dtype=self._to_torch[dtype], device=self.place)
        except (MemoryError, self._out_of_memory) as error:
            raise self.no_memory(shape, dtype, error) from None
        except RuntimeError as error:
            raise self.lost(error) from error

    def twin(self, x: DeviceView) -> Array:
        size = x.dtype.itemsize
        steps = tuple(step // size for step in x.strides)
        try:
            return self.module.empty_strided(x.shape, steps, dtype=self._to_torch[x.dtype], device=self.place)
        except (MemoryError, self._out_of_memory) as error:
            raise self.no_memory(x.shape, x.dtype, error) from None

    def clone(self, x: Array) -> Array:
        native = x if isinstance(x, DeviceView) else self.view(x, "x")
        twin = self.twin(native)
        twin.copy_(native.owner)
        return twin

    def from_host(self, x: Array) -> Array:
        bits = self.module.from_numpy(x.flatten().view(np.uint8))
        return bits.to(self.place).view(self._to_torch[x.dtype]).reshape(x.shape)

    def to_host(self, x: Array) -> Array:
        dtype = self._dtypes.get(x.dtype)
        if dtype is None:
            raise dtypes.unsupported("x", x.dtype)
        plain = x.detach().resolve_conj().resolve_neg().contiguous()
        flat = plain.as_strided((plain.numel(),), (1,))  # reshape would keep the stride of a single element
        return flat.view(self.module.uint8).cpu().numpy().view(dtype).reshape(tuple(x.shape))

    def copy(self, into: Array, source: Array) -> None:
        """Copy on the current stream."""
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
        if stream == 0:  # ExternalStream(0) would be a stream of torch's own pool
            return runtime.stream(runtime.default_stream(self.device.index))  # type: ignore[no-any-return]
        return runtime.stream(runtime.ExternalStream(stream, device=self.place))  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        self._runtime.synchronize(self.device.index)

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> FastPath:
        return calls.fast_path(self, settings, alpha, beta)

    def at_addresses(self, run: Callable[..., None], *call: Any) -> Callable[..., None]:
        """``run`` of a kernel, as a function of the operands' addresses: that is what it takes on devices."""
        return run

    def dtype_of(self, dtype: DType) -> Any:
        """torch's dtype for ``dtype``."""
        return self._to_torch[dtype]

    def clock(self) -> DeviceClock:
        properties = self._runtime.get_device_properties(self.device.index)
        cache = getattr(properties, "L2_cache_size", 0) or 64 * 2**20
        flush = self.module.empty(2 * cache, dtype=self.module.uint8, device=self.place)
        return DeviceClock(
            lambda: self._runtime.Event(enable_timing=True), lambda x, y: x.elapsed_time(y), flush.zero_, cache,
            lambda: self.on(None),
        )  # fmt: skip


def _raw_stream(torch: Any, device: Device) -> Any:
    """``index -> handle`` of the current stream. torch's own fast path, where present, takes 0.1 us instead of 1 us."""
    raw = getattr(torch._C, f"_{device.kind}_getCurrentRawStream", None)
    if raw is not None:
        return raw
    runtime, attribute = getattr(torch, device.kind), f"{device.kind}_stream"
    return lambda index: getattr(runtime.current_stream(index), attribute)


@cache
def torch_dtypes() -> tuple[dict[Any, DType], dict[DType, Any]]:
    """Maps from torch's dtypes to gemmhub's, and back."""
    torch = sys.modules["torch"]
    pairs = [(getattr(torch, name, None), dtypes.as_dtype(name)) for name in dtypes.SUPPORTED]
    known = [(theirs, ours) for theirs, ours in pairs if theirs is not None]
    return dict(known), {ours: theirs for theirs, ours in known}


def output_dtype(a: Any, b: Any, wanted: Any) -> Any:
    """The dtype, as torch's, of the product of tensors of torch's dtypes ``a`` and ``b``, given ``wanted``."""
    to_ours, to_torch = torch_dtypes()
    for name, x in (("a", a), ("b", b), ("out_dtype", wanted)):
        if x is not None and x not in to_ours:
            raise dtypes.unsupported(name, x)
    return to_torch[dtypes.output_dtype(to_ours[a], to_ours[b], None if wanted is None else to_ours[wanted])]


def epilogue_dtype(a: Any, b: Any, out: Any) -> Any:
    """The dtype, as torch's, in which a product of these dtypes computes its epilogue."""
    to_ours, to_torch = torch_dtypes()
    accumulator = dtypes.compute_dtype(to_ours[a], to_ours[b], to_ours[out])
    return to_torch[accumulator] if dtypes.info(accumulator).inexact else out


@cache
def torch_arrays(kind: str, index: int) -> TorchArrays:
    """The array library torch on one device."""
    return TorchArrays(Device(kind, index))
