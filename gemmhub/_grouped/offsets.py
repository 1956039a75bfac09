"""The offsets of a grouped product: cumulative ends of its groups. On the host they are read and checked; on a device
they stay where they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmhub._arrays.find import arrays_of
from gemmhub.array_library import ArrayLibrary, DeviceView
from gemmhub.errors import DeviceError, DTypeError, InputError, ShapeError

DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
"""Dtypes of offsets on the host."""
_REMEDY = "pass cumulative ends: numpy.cumsum of the sizes of the groups, as int32"


def on_device(offsets: Any) -> bool:
    """Whether offsets are elements of an array on a device."""
    if offsets is None or isinstance(offsets, (list, tuple, np.ndarray)):
        return False
    arrays = arrays_of(offsets, "offsets")
    return arrays.device.type != "cpu" and tuple(offsets.shape) != (0,)


def count(offsets: Any, arrays: ArrayLibrary, groups: int | None) -> int:
    """The number of groups by offsets on the device of ``arrays``, of which no number is read: they are dense int32,
    one for each group.
    """
    own = arrays_of(offsets, "offsets")
    if (own.name, own.device) != (arrays.name, arrays.device):
        raise DeviceError(
            "offsets", f"{own.name} on {own.device} with operands of {arrays.name} on {arrays.device}",
            "offsets of the operands' library on their device, or on the host", "move or convert them",
        )  # fmt: skip
    native = arrays.view(offsets, "offsets")
    if native.dtype != np.int32:
        raise DTypeError(
            "offsets", f"dtype {native.dtype} on {arrays.device}", "int32 on devices",
            "convert them there: offsets.to(torch.int32) in torch, offsets.astype(numpy.int32) in CuPy",
        )  # fmt: skip
    _check_shape(native.shape, groups, "drop the leading zero if there is one: offsets[1:]")
    if native.shape[0] > 1 and native.strides[0] != native.itemsize:
        given = f"strides {native.strides} in bytes"
        raise InputError("offsets", given, "elements without gaps on devices", "pass a contiguous copy of them")
    return int(native.shape[0])


def _check_shape(shape: tuple[int, ...], groups: int | None, remedy: str) -> None:
    if len(shape) != 1:
        raise ShapeError("offsets", f"shape {shape}", "one dimension: an end for each group", _REMEDY)
    if groups is not None and shape[0] != groups:
        raise ShapeError(
            "offsets", f"{shape[0]} ends for {groups} groups", f"{groups} ends, one for each group", remedy
        )


def on_host(offsets: Any) -> Any:
    """Offsets on the host: a copy of those on a device, which waits for it."""
    return arrays_of(offsets, "offsets").to_host(offsets) if on_device(offsets) else offsets


def read(offsets: Any, groups: int | None, extent: int, noun: str) -> list[int]:
    """The ends of the groups as numbers, checked: from 0 to ``extent``, in order, one for each group.

    ``noun`` is what they count.
    """
    if isinstance(offsets, (list, tuple)):
        native = _from_sequence(offsets)
    else:
        native = arrays_of(offsets, "offsets").view(offsets, "offsets")
        if isinstance(native, DeviceView):  # without elements
            native = np.empty(native.shape, native.dtype)
    if native.dtype not in DTYPES:
        raise DTypeError("offsets", f"dtype {native.dtype}", "int32, int64", _REMEDY)
    zero = native.ndim == 1 and native.shape[0] - 1 == groups and native[0] == 0
    _check_shape(native.shape, groups, "drop the leading zero: offsets[1:]" if zero else _REMEDY)
    ends: list[int] = native.tolist()
    last, before = 0, "0"
    for i, end in enumerate(ends):
        if end < last or end > extent:
            beyond = f"beyond the {extent} {noun}" if end > extent else f"below {before}"
            raise InputError(
                "offsets", f"group {i}: offsets[{i}] = {end} is {beyond}", f"ends in order, from 0 to {extent}", _REMEDY
            )
        last, before = end, f"offsets[{i}] = {end}"
    return ends


def _from_sequence(offsets: Any) -> Any:
    try:
        native = np.asarray(offsets)
    except ValueError as error:
        raise InputError("offsets", f"no numbers: {error}", "integers, one for each group", _REMEDY) from None
    if native.size == 0 and native.ndim == 1:
        return native.astype(np.int64)
    return native.astype(np.int64) if native.dtype.kind == "i" else native


def spans(ends: list[int]) -> list[slice]:
    """The slices of the groups."""
    return [slice(start, end) for start, end in zip([0, *ends], ends)]
