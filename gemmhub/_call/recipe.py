"""The pickled form of a plan: its operands without data, and its options. It is decided anew where it is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from gemmhub._arrays.find import arrays_of
from gemmhub._arrays.spec.operands import ArraySpec
from gemmhub._call.options import ARRAYS
from gemmhub.packed import PackedB

_ARRAYS = ("out", *ARRAYS)


class Recipe:
    """The operands and options of a plan. A plan is pickled as its recipe, whose :attr:`plan` restores it."""

    def __init__(self, a: Any, b: Any, out: Any, options: Mapping[str, Any]) -> None:
        arguments = {"a": a, "b": b, "out": out, **options}
        self._why_not = ""
        self._specs: dict[str, ArraySpec] = {}
        self._options = {name: x for name, x in options.items() if name not in _ARRAYS}
        if options.get("stream") is not None:
            self._why_not = "a stream is of one process"
        for name in ("a", "b", *_ARRAYS):
            x = arguments.get(name)
            if isinstance(x, PackedB):
                self._why_not = "a packed operand is of one process"
            elif x is not None:
                arrays = arrays_of(x, name)
                view = arrays.view(x, name)
                self._specs[name] = ArraySpec(view.shape, view.dtype, strides=view.strides, device=arrays.device)

    def __getstate__(self) -> dict[str, Any]:
        if self._why_not:
            raise TypeError(f"this plan cannot be pickled: {self._why_not}; make it anew where it is needed")
        return {"_why_not": "", "_specs": self._specs, "_options": self._options}

    @cached_property
    def plan(self) -> Any:
        """The plan, decided in this process."""
        specs: dict[str, Any] = dict(self._specs)
        a, b = specs.pop("a"), specs.pop("b")
        return sys.modules["gemmhub"].plan(a, b, **specs, **self._options)
