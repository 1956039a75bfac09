"""Ranges of profilers around kernels, in calls under the setting ``profile``.

Settings are part of the key of each decided call. So a call under the setting runs another function than one without
it, which costs nothing: no warm call tests the setting.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from gemmhub._call.decorated import Function, decorated
from gemmhub.backend import Kernel
from gemmhub.verdict import Decision

Opener = Callable[[str], AbstractContextManager[Any]]
"""A function that opens a range of this name for a block."""


def ranged(kernel: Kernel, decision: Decision) -> Kernel:
    """``kernel`` with functions that open a range for each run, named after the decision."""
    nvtx, name = _nvtx(), range_name(decision)

    def within(function: Function) -> Function:
        def run(*arguments: Any, **operands: Any) -> Any:
            with ExitStack() as stack:
                for opener in _openers(nvtx):
                    stack.enter_context(opener(name))
                return function(*arguments, **operands)

        return run

    return decorated(kernel, within)


def range_name(decision: Decision) -> str:
    """The name of the ranges of a decision: its backend, its candidate, and the order of its sums."""
    verdict = decision[decision.chosen or ""]
    return f"gemmhub {verdict.backend}/{verdict.candidate} order={verdict.order or 'unknown'}"


def _nvtx() -> Opener | None:
    """Ranges of NVTX by the package nvtx, where it is installed."""
    try:
        nvtx: Any = importlib.import_module("nvtx")
    except ImportError:
        return None
    return lambda name: nvtx.annotate(name, domain="gemmhub")


def _openers(nvtx: Opener | None) -> list[Opener]:
    """Ranges of torch's profiler, where torch is loaded by now; those of ``nvtx``, else of a torch that has a device of
    CUDA.
    """
    torch: Any = sys.modules.get("torch")
    openers: list[Opener] = [torch.profiler.record_function] if hasattr(torch, "profiler") else []
    cuda: Any = getattr(torch, "cuda", None)
    if nvtx is not None:
        openers.append(nvtx)
    elif hasattr(cuda, "nvtx") and cuda.is_available():
        openers.append(cuda.nvtx.range)
    return openers
