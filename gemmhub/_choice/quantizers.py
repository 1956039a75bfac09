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
    q = arrays.empty_strided_like(DeviceView(0, target, viewed.shape, _dense(viewed, target.itemsize)))
    scales = arrays.empty(shape, np.dtype(np.float32)) if scale is None else scale.detach()
    kept: list[Array] = []

    def scratch(nbytes: int) -> int:
        kept.append(arrays.empty((nbytes,), np.dtype(np.uint8)))
        return arrays.view(kept[-1], "scratch").address

    task = Quantization(
        arrays.device, viewed, arrays.view(q, "q"), arrays.view(scales, "scale"), granularity,
        scale is not None, arrays.current_stream(), scratch,
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


def _dense(x: DeviceView, itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a dense array with the shape of ``x``, whose dimensions have the order of x in memory.

    Those that x repeats come first.
    """
    strides, step = [0] * x.ndim, itemsize
    for axis in sorted(range(x.ndim), key=lambda axis: (x.strides[axis] or inf, -axis)):
        strides[axis] = step
        step *= x.shape[axis]
    return tuple(strides)
