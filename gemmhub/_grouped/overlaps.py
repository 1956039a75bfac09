"""The check that lists of results have memory of their own: no group writes what another one writes or reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from gemmhub._arrays.find import arrays_of
from gemmhub._arrays.torch import tensors
from gemmhub._base.geometry import reach
from gemmhub.array_library import DeviceView
from gemmhub.errors import GemmhubError, OutputError

_MAX_WORK = 10_000
"""Candidate solutions that NumPy tries for interleaved memory, before it counts as shared."""


class _Region(NamedTuple):
    """The memory of one operand or result."""

    start: int
    end: int
    group: int
    name: str
    device: str
    native: Any

    def meets(self, other: _Region) -> bool:
        """Whether one of the two is written, the other is of another group, and they share an element."""
        if self.group == other.group or self.device != other.device or "out" not in (self.name, other.name):
            return False
        try:
            return np.shares_memory(_Elements(self), _Elements(other), max_work=cast(Any, _MAX_WORK))
        except RuntimeError:  # numpy.exceptions.TooHardError
            return True


class _Elements:
    """The addresses of a region's elements as NumPy reads them; on a device, too, where nothing is read."""

    def __init__(self, region: _Region) -> None:
        x = region.native
        address = region.start + reach(x)[0]
        self.__array_interface__ = {
            "version": 3, "data": (address, True), "shape": x.shape, "strides": x.strides, "typestr": f"|V{x.itemsize}",
        }  # fmt: skip


def check(lists: Mapping[str, Sequence[Any]]) -> None:
    """Raise OutputError where a group's result shares memory with a result or an operand of another group.

    A result may share memory with the operands of its own group, as of :func:`gemmhub.matmul`.
    """
    found = (_region(name, i, x) for name, listed in lists.items() for i, x in enumerate(listed))
    active: list[_Region] = []
    for region in sorted((x for x in found if x is not None), key=lambda x: x.start):
        active = [x for x in active if x.end > region.start]
        for other in active:
            if region.meets(other):
                written, shared = (region, other) if region.name == "out" else (other, region)
                raise OutputError(
                    "out", f"group {written.group}: it shares memory with {shared.name} of group {shared.group}",
                    "memory of its own for each group", "pass a new array for each group in out=",
                )  # fmt: skip
        active.append(region)


def _region(name: str, group: int, x: Any) -> _Region | None:
    """The memory of an array; None for one without elements, and for what its product refuses."""
    if x is None:
        return None
    try:
        if tensors.is_tensor(x):
            x = x.detach()  # a pending conjugation or negation is undone: the memory is the same
            x = x.conj() if x.is_conj() else x
            x = x._neg_view() if x.is_neg() else x
        arrays = arrays_of(x, name)
        native = arrays.view(x, name)
    except GemmhubError:
        return None
    before, size = reach(native)
    address = native.address if isinstance(native, DeviceView) else native.__array_interface__["data"][0]
    start, device = address - before, str(arrays.device)
    return _Region(start, start + size, group, name, device, native) if size else None
