"""Quantization by a backend: a tensor on a device goes to the first backend that has a kernel for it."""

from __future__ import annotations

import logging
from math import inf
from typing import Any

import numpy as np

from gemmhub import config
from gemmhub._arrays import find
from gemmhub._arrays.torch import tensors
from gemmhub._base.geometry import DeviceView
from gemmhub._base.guard import guarded
from gemmhub._choice import registry
from gemmhub.array_library import DeviceArrays
from gemmhub.backend import Backend, Quantization
from gemmhub.capability import Refusal
from gemmhub.dtypes import DType
from gemmhub.errors import DeviceError

_log = logging.getLogger("gemmhub")

Array = Any
_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)


def quantized(
    x: Array, scale: Array | None, target: DType, granularity: str, shape: tuple[int, ...]
) -> tuple[Array, Array] | None:  # fmt: skip
    """The elements and scales of a tensor by a backend; None where none quantizes it.

    ``granularity`` is a word of :attr:`~gemmhub.backend.Quantization.granularity`, ``shape`` that of the scales. A
    tensor under a tracer, a transform or a dispatch mode is left to torch's operations.
    """
    operands = (x,) if scale is None else (x, scale)
    if tensors.traced(operands) or any(y.is_conj() or y.is_neg() for y in operands):
        return None
    try:
        arrays = find.native_arrays(x, "x")
    except DeviceError:
        return None
    if arrays is None:
        return None
    backends = _backends(arrays)
    if not backends:
        return None
    viewed = arrays.view(x.detach(), "x")
    of_q, of_scale = _dense(viewed.shape, viewed.strides, target.itemsize), _dense(shape, (0,) * len(shape), 4)
    q = arrays.empty_strided_like(DeviceView(0, target, viewed.shape, of_q))
    scales = arrays.empty(shape, _FLOAT32) if scale is None else scale.detach()
    kept: list[Array] = []

    def scratch(nbytes: int) -> int:
        kept.append(arrays.empty((nbytes,), _UINT8))
        return int(kept[-1].data_ptr())

    # What was made here needs none of the checks of view().
    task = Quantization(
        arrays.device, viewed, DeviceView(int(q.data_ptr()), target, viewed.shape, of_q, q),
        DeviceView(int(scales.data_ptr()), _FLOAT32, shape, of_scale, scales) if scale is None
        else arrays.view(scales, "scale"),
        granularity, scale is not None, arrays.current_stream(), scratch,
    )  # fmt: skip
    for entry, backend in backends:
        refusal = guarded(lambda: backend.quantize(task), "quantize()", "torch's operations quantize")  # noqa: B023
        if refusal is None:
            return q, scales
        level = logging.WARNING if refusal.traceback is not None else logging.DEBUG
        _log.log(level, "backend %s does not quantize: %s", entry, refusal.reason)
    return None


def _backends(arrays: DeviceArrays) -> list[tuple[str, Backend]]:
    """The backends with a method for the device, with their names."""
    settings, found = config.current(), []
    for entry in registry.registry():
        if settings.forced and entry.name != settings.backend[0]:
            continue
        if entry.device_types and arrays.device.type not in entry.device_types:
            continue
        answer = entry.get()
        if isinstance(answer, Refusal):
            continue
        backend, ready = answer
        if type(backend).quantize is not Backend.quantize and arrays.device in ready.devices:
            found.append((entry.name, backend))
    return found


def _dense(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a dense array of this shape, whose dimensions have the order in memory that ``strides`` have.

    Those with a stride of 0 come first.
    """
    dense, step = [0] * len(shape), itemsize
    for axis in sorted(range(len(shape)), key=lambda axis: (strides[axis] or inf, -axis)):
        dense[axis] = step
        step *= shape[axis]
    return tuple(dense)
