"""The pickled form of a plan: its operands without data, and its options. It is decided anew where it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

from gemmhub import dtypes
from gemmhub._arrays.cupy.operands import cupy_arrays
from gemmhub._arrays.find import arrays_of
from gemmhub._arrays.host.operands import NUMPY
from gemmhub._arrays.torch.operands import torch_arrays, torch_dtypes
from gemmhub._base.geometry import DeviceView
from gemmhub._call.options import ARRAYS
from gemmhub.packed import PackedB

_ARRAYS = ("out", *ARRAYS)


class Example(NamedTuple):
    """An operand without its data."""

    library: str
    device_type: str
    number: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""

    def array(self) -> Any:
        """A new array of that library, on that device, whose contents are undefined."""
        view = DeviceView(0, dtypes.as_dtype(self.dtype), self.shape, self.strides)
        if self.library == "numpy":
            return NUMPY.empty_strided_like(view)
        module = import_module(self.library)
        if self.device_type == "cpu":
            steps = tuple(step // view.itemsize for step in self.strides)
            return module.empty_strided(self.shape, steps, dtype=torch_dtypes()[1][view.dtype])
        arrays = torch_arrays(self.device_type, self.number) if self.library == "torch" else cupy_arrays(self.number)
        return arrays.empty_strided_like(view)


class Recipe:
    """The operands and options of a plan. A plan is pickled as its recipe, whose :attr:`plan` restores it."""

    def __init__(self, a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> None:
        arguments = {"a": a, "b": b, "out": out, **options}
        self._why_not = ""
        self._examples: dict[str, Example] = {}
        self._options = {name: x for name, x in options.items() if name not in _ARRAYS}
        if options.get("stream") is not None:
            self._why_not = "a stream is of one process"
        for name in ("a", "b", *_ARRAYS):
            if arguments.get(name) is not None and not self._why_not:
                self._add(name, arguments[name])

    def _add(self, name: str, x: Any) -> None:
        if isinstance(x, PackedB):
            self._why_not = "a packed operand is of one process"
            return
        arrays = arrays_of(x, name)
        if arrays.name not in ("numpy", "torch", "cupy"):
            self._why_not = f"arrays of {arrays.name} cannot be made without an array"
            return
        view, device = arrays.view(x, name), arrays.device
        facts = arrays.name, device.type, device.index, view.dtype.name, tuple(view.shape), tuple(view.strides)
        self._examples[name] = Example(*facts)

    def __getstate__(self) -> dict[str, Any]:
        if self._why_not:
            raise TypeError(f"this plan cannot be pickled: {self._why_not}; make it anew where it is needed")
        return {"_why_not": "", "_examples": self._examples, "_options": self._options}

    @cached_property
    def plan(self) -> Any:
        """The plan, decided in this process."""
        arrays = {name: example.array() for name, example in self._examples.items()}
        a, b = arrays.pop("a"), arrays.pop("b")
        return sys.modules["gemmhub"].plan(a, b, **arrays, **self._options)
