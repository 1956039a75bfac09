"""Operands of cupy on a CUDA device.

cupy is never imported here: where one of its arrays exists, cupy is loaded already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np

from gemmhub._arrays.cupy import calls
from gemmhub._base.device_clock import DeviceClock
from gemmhub._base.geometry import MAX_ALIGNMENT, DeviceView, reach
from gemmhub.array_library import DeviceArrays, FastPath
from gemmhub.capability import Device
from gemmhub.dtypes import DType
from gemmhub.errors import DeviceError

Array = Any


class CupyArrays(DeviceArrays):
    """``cupy.ndarray``."""

    name = "cupy"

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.module = sys.modules["cupy"]

    def view(self, x: Any, argument: str) -> DeviceView:
        if not isinstance(x, self.module.ndarray):
            raise self.foreign(x, argument)
        if x.device.id != self.device.index:
            raise DeviceError(argument, f"on cuda:{x.device.id}", f"operands on {self.device}", "move it there")
        return DeviceView(x.data.ptr, x.dtype, x.shape, x.strides, x)

    def key(self, x: Any) -> Hashable:
        return x.dtype, x.shape, x.strides, x.data.device_id, x.data.ptr % MAX_ALIGNMENT

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Array:
        self.check_size(shape, dtype)
        try:
            with self.module.cuda.Device(self.device.index):
                return self.module.empty(shape, dtype)
        except (MemoryError, self.module.cuda.memory.OutOfMemoryError) as error:
            raise self.no_memory(shape, dtype, error) from None
        except RuntimeError as error:
            raise self.lost(error) from error

    def empty_strided_like(self, x: DeviceView) -> Array:
        first, span = reach(x)
        buffer = self.empty((span + MAX_ALIGNMENT,), np.dtype(np.uint8)).data
        first += (x.address - buffer.ptr - first) % MAX_ALIGNMENT  # aligned as x is
        return self.module.ndarray(x.shape, x.dtype, buffer + first, x.strides)

    def clone(self, x: Array) -> Array:
        native = x if isinstance(x, DeviceView) else self.view(x, "x")
        copy = self.empty_strided_like(native)
        with self.on(None):
            copy[...] = native.owner
        return copy

    def from_host(self, x: Array) -> Array:
        with self.module.cuda.Device(self.device.index):
            return self.module.asarray(x)

    def to_host(self, x: Array) -> Array:
        return self.module.asnumpy(x)

    def copy(self, into: Array, source: Array) -> None:
        """Copy on the current stream."""
        into[...] = source

    def current_stream(self) -> int:
        return int(self.module.cuda.get_current_stream(self.device.index).ptr)

    def capturing(self) -> bool:
        return bool(self.module.cuda.get_current_stream(self.device.index).is_capturing())

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        """Make the device, and ``stream`` unless it is None, current for a block."""
        device = self.module.cuda.Device(self.device.index)
        return device if stream is None else self._on(device, stream)

    @contextmanager
    def _on(self, device: Any, stream: int) -> Iterator[None]:
        # A stream can be entered on its own device only.
        with device, self.module.cuda.ExternalStream(stream, self.device.index):
            yield

    def synchronize(self) -> None:
        self.module.cuda.Device(self.device.index).synchronize()

    def fast_path(self, settings: Callable[[], object], alpha: Any = 1, beta: Any = 0) -> FastPath:
        return calls.fast_path(self, settings, alpha, beta)

    def clock(self) -> DeviceClock:
        cuda = self.module.cuda
        with cuda.Device(self.device.index):
            cache = cuda.Device().attributes["L2CacheSize"]
            flush = self.module.zeros(2 * cache, np.uint8)
            return DeviceClock(cuda.Event, cuda.get_elapsed_time, lambda: flush.fill(1), cache, lambda: self.on(None))


@cache
def cupy_arrays(index: int) -> CupyArrays:
    """The array library cupy on one device."""
    return CupyArrays(Device("cuda", index))
