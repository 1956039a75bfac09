"""Specs: operands that have a shape, a dtype, strides and a device, and no data.

:func:`gemmhub.explain` and :func:`gemmhub.plan` take them in place of arrays. Every function that reads or writes data
refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import index
from typing import Any, NoReturn

import numpy as np

from gemmhub._arrays.named_device import parse_device
from gemmhub._base.geometry import DeviceView, distinct
from gemmhub._base.wording import instance
from gemmhub.array_library import FastPath
from gemmhub.capability import CPU, Device
from gemmhub.dtypes import DType, as_dtype, name_of
from gemmhub.errors import DeviceError, InputError, OutputError, ShapeError

Array = Any

_KEPT = 64
"""Devices whose specs' library is kept."""
_MAX_BYTES = 2**47
"""The addresses of a process on x86-64."""


@dataclass(frozen=True, init=False, repr=False)
class ArraySpec:
    """An operand without data, for :func:`gemmhub.explain` and :func:`gemmhub.plan`.

    It describes a new array of any library: of NumPy, or a tensor of torch on ``device``. Memory is not allocated, and
    the device need not be there to be explained.

    Parameters
    ----------
    shape : sizes, as of the array.
    dtype : dtype of NumPy, torch or ml_dtypes, or a name.
    order : "C" for matrices whose rows are contiguous, "F" for those whose columns are. Batch dimensions come first in
        memory with either.
    device : name of a device, such as "cpu" or "cuda:1", a torch.device, or a :class:`gemmhub.Device`.
    strides : in bytes, as NumPy's, in place of ``order``.

    Raises
    ------
    ShapeError, DTypeError, InputError : a shape, a dtype, an order or a device that no array has.

    Examples
    --------
    >>> a, b = gemmhub.ArraySpec((512, 1024), "float32"), gemmhub.ArraySpec((1024, 256), "float32", order="F")
    >>> gemmhub.explain(a, b, backend="numpy").chosen
    'numpy'
    >>> gemmhub.plan(a, b)(np.ones((512, 1024), np.float32), np.ones((256, 1024), np.float32).T).shape
    (512, 256)
    """

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...]
    """In bytes."""
    device: Device

    def __init__(
        self, shape: Sequence[int], dtype: Any = "float32", *, order: str = "C", device: Any = "cpu",
        strides: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        sizes, element = _whole(shape, "shape"), as_dtype(dtype, "dtype")
        if any(size < 0 for size in sizes):
            raise ShapeError("shape", f"{sizes}", "sizes of 0 or more")
        if order not in ("C", "F"):
            raise InputError("order", f"{order!r}", "C, F", "pass strides= for other layouts")
        size = prod(sizes) * element.itemsize
        if max(0 if strides is not None else size, *sizes, 0) > _MAX_BYTES:
            raise ShapeError(
                "shape", f"{' x '.join(map(str, sizes))} {element}: {size / 2**40:.4g} TiB",
                "at most 128 TiB, the addresses of a process",
            )  # fmt: skip
        steps = _strides(sizes, element.itemsize, order) if strides is None else _whole(strides, "strides")
        if len(steps) != len(sizes):
            raise InputError("strides", f"{steps} for the shape {sizes}", "one for each dimension")
        if any(abs(step) > _MAX_BYTES for step in steps):
            raise InputError("strides", f"{steps}", "at most 128 TiB, the addresses of a process")
        on = device if isinstance(device, Device) else parse_device(str(device))
        for name, value in (("shape", sizes), ("dtype", element), ("strides", steps), ("device", on)):
            object.__setattr__(self, name, value)

    def __getitem__(self, key: Any) -> ArraySpec:
        """The spec of a part, which indices and slices name as those of an array."""
        element = np.empty((), f"V{self.dtype.itemsize}")
        part = np.lib.stride_tricks.as_strided(element, self.shape, self.strides)[key]  # no element is read
        return ArraySpec(part.shape, self.dtype, strides=part.strides, device=self.device)

    def __repr__(self) -> str:
        layouts = {_strides(self.shape, self.dtype.itemsize, order): f"order={order!r}" for order in "FC"}
        layout = layouts.get(self.strides, f"strides={self.strides}")
        return f"ArraySpec({self.shape}, {name_of(self.dtype)!r}, {layout}, device='{self.device}')"


def _whole(values: Any, argument: str) -> tuple[int, ...]:
    """The ints of a sequence."""
    try:
        return tuple(map(index, values))
    except TypeError:
        raise InputError(argument, f"{values!r:.80}", "a sequence of ints") from None


def _strides(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    """The strides in bytes of dense matrices whose rows ("C") or columns ("F") are contiguous."""
    axes = [*range(len(shape))]
    if order == "F":
        axes[-2:] = axes[-2:][::-1]
    strides, step = [0] * len(shape), itemsize
    for axis in reversed(axes):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


class SpecArrays:
    """The library of specs on one device: it views them, and has no memory."""

    name = "a spec"

    def __init__(self, device: Device) -> None:
        self.device = device

    def view(self, x: object, argument: str) -> Array:
        if not isinstance(x, ArraySpec):
            raise DeviceError(argument, instance(type(x)), "specs alone, or arrays alone", "pass a spec")
        if self.device != CPU:
            return DeviceView(0, x.dtype, x.shape, x.strides, x)
        element = np.empty((), x.dtype).view(f"V{x.dtype.itemsize}")  # NumPy's function knows no float8
        return np.lib.stride_tricks.as_strided(element, x.shape, x.strides).view(x.dtype)  # no element is read

    def target(self, out: object, shape: tuple[int, ...]) -> Array:
        native = self.view(out, "out")
        if native.shape != shape:
            raise OutputError("out", f"shape {native.shape}", f"shape {shape}", "give it the shape of the result")
        if not distinct(native):
            raise OutputError("out", f"several elements share memory (strides {native.strides})", "other strides")
        return native

    def overlap(self, x: Array, y: Array) -> bool:
        """False: each is described as an array of its own memory."""
        return False

    def key(self, x: Any) -> NoReturn:
        """A call with specs is analysed each time."""
        raise without_data()

    def on(self, stream: int | None) -> AbstractContextManager[object]:
        return nullcontext()

    def capturing(self) -> bool:
        return False

    def fast_path(self, settings: Any, alpha: Any = 1, beta: Any = 0) -> FastPath | None:
        return None

    def synchronize(self) -> None:
        """Nothing runs."""

    def clock(self) -> NoReturn:
        raise without_data()

    def empty(self, shape: tuple[int, ...], dtype: DType) -> NoReturn:
        raise without_data()

    def wrap(self, result: Array, operands: tuple[object, ...]) -> NoReturn:
        raise without_data()

    def empty_strided_like(self, x: Array) -> NoReturn:
        raise without_data()

    def clone(self, x: Array) -> NoReturn:
        raise without_data()

    def from_host(self, x: Array) -> NoReturn:
        raise without_data()

    def to_host(self, x: Array) -> NoReturn:
        raise without_data()


def without_data() -> InputError:
    """The error of a function that reads or writes the data of an operand."""
    return InputError(
        "a, b", "gemmhub.ArraySpec, which has no data", "arrays", "gemmhub.explain and gemmhub.plan take specs"
    )


@lru_cache(maxsize=_KEPT)
def spec_arrays(device: Device) -> SpecArrays:
    """The library of the specs of arrays on a device."""
    return SpecArrays(device)
