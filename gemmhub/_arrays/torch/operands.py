"""Operands of torch on a device of a registered type.

torch is never imported here: where a tensor exists, torch is loaded already. gemmhub reads a tensor's address and
geometry, gets memory and the current stream from torch, and moves no data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np

from gemmhub import dtypes, operands
from gemmhub._arrays.torch import calls, tensors
from gemmhub._base.device_clock import DeviceClock
from gemmhub._base.device_types import DeviceType, device_type
from gemmhub._base.geometry import MAX_ALIGNMENT, DeviceView, reach
from gemmhub.array_library import DeviceArrays, FastPath
from gemmhub.capability import Device
from gemmhub.dtypes import DType
from gemmhub.errors import DeviceError

Array = Any


class TorchArrays(DeviceArrays):
    """Dense ``torch.Tensor`` on a device of a registered type."""

    name = "torch"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.module = torch = sys.modules["torch"]
        known = device_type(device.type)
        self._runtime = getattr(torch, known.torch)
        self.torch_device = torch.device(known.torch, device.index)
        self._dtypes, self._to_torch = torch_dtypes()
        self.raw_stream = _raw_stream(torch, known)
        self.increment_version = tensors.increment_version()
        # torch before 2.5 has OutOfMemoryError in torch.cuda only.
        self._out_of_memory = getattr(torch, "OutOfMemoryError", None) or self._runtime.OutOfMemoryError

    def key(self, x: Any) -> Hashable:
        return tensors.key(x)

    def view(self, x: Any, argument: str) -> DeviceView:
        torch = self.module
        if not isinstance(x, torch.Tensor):
            raise self.foreign(x, argument)
        if x.device != self.torch_device:
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
            return self.module.empty(shape, dtype=self._to_torch[dtype], device=self.torch_device)
        except (MemoryError, self._out_of_memory) as error:
            raise self.no_memory(shape, dtype, error) from None
        except RuntimeError as error:
            raise self.lost(error) from error

    def empty_strided_like(self, x: DeviceView) -> Array:
        size, kind = x.dtype.itemsize, self._to_torch[x.dtype]
        steps = tuple(step // size for step in x.strides)
        try:
            array = self.module.empty_strided(x.shape, steps, dtype=kind, device=self.torch_device)
            if not x.size or (x.address - array.data_ptr()) % MAX_ALIGNMENT == 0:
                return array
            del array  # its memory can serve the next one
            memory = self.module.empty((reach(x)[1] + MAX_ALIGNMENT) // size, dtype=kind, device=self.torch_device)
            skew = (x.address - memory.data_ptr()) % MAX_ALIGNMENT  # aligned as x is
            return memory.as_strided(x.shape, steps, skew // size)
        except (MemoryError, self._out_of_memory) as error:
            raise self.no_memory(x.shape, x.dtype, error) from None

    def clone(self, x: Array) -> Array:
        native = x if isinstance(x, DeviceView) else self.view(x, "x")
        copy = self.empty_strided_like(native)
        copy.copy_(native.owner)
        return copy

    def from_host(self, x: Array) -> Array:
        bits = self.module.from_numpy(x.flatten().view(np.uint8))
        return bits.to(self.torch_device).view(self._to_torch[x.dtype]).reshape(x.shape)

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
        test = getattr(self._runtime, "is_current_stream_capturing", None)  # torch_musa may lack it
        return test is not None and bool(test())

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        """Make the device, and ``stream`` unless it is None, current for a block."""
        runtime = self._runtime
        if stream is None or stream == self.current_stream():
            return runtime.device(self.device.index)  # type: ignore[no-any-return]
        if stream == 0:  # ExternalStream(0) would be a stream of torch's own pool
            return runtime.stream(runtime.default_stream(self.device.index))  # type: ignore[no-any-return]
        return runtime.stream(runtime.ExternalStream(stream, device=self.torch_device))  # type: ignore[no-any-return]

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
        flush = self.module.empty(2 * cache, dtype=self.module.uint8, device=self.torch_device)
        return DeviceClock(
            lambda: self._runtime.Event(enable_timing=True), lambda x, y: x.elapsed_time(y), flush.zero_, cache,
            lambda: self.on(None),
        )  # fmt: skip


def _raw_stream(torch: Any, known: DeviceType) -> Any:
    """``index -> handle`` of the current stream. torch's own fast path, where present, takes 0.1 us instead of 1 us."""
    raw = getattr(torch._C, f"_{known.torch}_getCurrentRawStream", None)
    if raw is not None:
        return raw
    runtime = getattr(torch, known.torch)
    return lambda index: getattr(runtime.current_stream(index), known.stream)


@cache
def torch_dtypes() -> tuple[dict[Any, DType], dict[DType, Any]]:
    """Maps from torch's dtypes to gemmhub's, and back."""
    torch = sys.modules["torch"]
    pairs = [(getattr(torch, name, None), dtypes.as_dtype(name)) for name in dtypes.SUPPORTED]
    known = [(torch_dtype, dtype) for torch_dtype, dtype in pairs if torch_dtype is not None]
    return dict(known), {dtype: torch_dtype for torch_dtype, dtype in known}


def output_dtype(a: Any, b: Any, wanted: Any) -> Any:
    """torch's dtype of the product of tensors of torch's dtypes ``a`` and ``b``, for the out_dtype ``wanted``."""
    to_ours, to_torch = torch_dtypes()
    for name, x in (("a", a), ("b", b), ("out_dtype", wanted)):
        if x is not None and x not in to_ours:
            raise dtypes.unsupported(name, x)
    return to_torch[dtypes.output_dtype(to_ours[a], to_ours[b], None if wanted is None else to_ours[wanted])]


def epilogue_dtype(a: Any, b: Any, out: Any) -> Any:
    """The dtype, as torch's, in which a product of these dtypes computes its epilogue."""
    to_ours, to_torch = torch_dtypes()
    accumulator = dtypes.compute_dtype(to_ours[a], to_ours[b], to_ours[out])
    return to_torch[dtypes.epilogue_dtype(accumulator, to_ours[out])]


def sums_dtype(a: Any, b: Any, out: Any) -> Any:
    """The dtype, as torch's, of a pre-activation that a call makes: :func:`gemmhub.operands.sums_dtype`."""
    to_ours, to_torch = torch_dtypes()
    return to_torch[operands.sums_dtype(to_ours[a], to_ours[b], to_ours[out])]


@cache
def torch_arrays(device_name: str, index: int) -> TorchArrays:
    """The array library torch on one device."""
    return TorchArrays(Device(device_name, index))
