"""The offsets of a grouped product: cumulative ends of its groups, read on the host and checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemmhub._arrays.find import arrays_of
from gemmhub.errors import DTypeError, InputError, NoBackendError, ShapeError

DTYPES = (np.dtype(np.int32), np.dtype(np.int64))
"""Dtypes of offsets."""
_REMEDY = "pass cumulative ends: numpy.cumsum of the sizes of the groups, as int32"


def read(offsets: Any, groups: int | None, extent: int, noun: str) -> list[int]:
    """The ends of the groups as numbers, checked: from 0 to ``extent``, in order, one for each group.

    ``noun`` is what they count. NoBackendError for offsets on a device: no number is copied from there.
    """
    if isinstance(offsets, (list, tuple)):
        native = _from_sequence(offsets)
    else:
        arrays = arrays_of(offsets, "offsets")
        if arrays.device.type != "cpu":
            raise NoBackendError(
                f"no backend multiplies groups by offsets on the device yet ({arrays.name} on {arrays.device}), and "
                "gemmhub copies none to the host, which would wait for the device; pass offsets on the host "
                "(offsets.cpu() in torch, offsets.get() in CuPy), and the groups are multiplied one after the other"
            )
        native = arrays.view(offsets, "offsets")
    if native.dtype not in DTYPES:
        raise DTypeError("offsets", f"dtype {native.dtype}", "int32, int64", _REMEDY)
    if native.ndim != 1:
        raise ShapeError("offsets", f"shape {native.shape}", "one dimension: an end for each group", _REMEDY)
    ends: list[int] = native.tolist()
    if groups is not None and len(ends) != groups:
        zero = len(ends) == groups + 1 and ends[0] == 0
        raise ShapeError(
            "offsets", f"{len(ends)} ends for {groups} groups", f"{groups} ends, one for each group",
            "drop the leading zero: offsets[1:]" if zero else _REMEDY,
        )  # fmt: skip
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
