"""Kernels whose functions are decorated: with ranges of profilers, or with a count of their runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gemmhub.backend import Kernel

Function = Callable[..., Any]


def decorated(kernel: Kernel, decorate: Callable[[Function], Function]) -> Kernel:
    """``kernel`` with ``decorate`` applied to each function that computes a product."""

    def optional(function: Function | None) -> Function | None:
        return None if function is None else decorate(function)

    direct_epilogue, with_rows = kernel.direct_epilogue, kernel.with_rows
    return replace(
        kernel,
        run=decorate(kernel.run),
        direct=optional(kernel.direct),
        direct_epilogue=None if direct_epilogue is None else lambda size: optional(direct_epilogue(size)),
        with_rows=None if with_rows is None else lambda rows: optional(with_rows(rows)),
    )
