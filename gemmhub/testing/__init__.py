"""The conformance kit: holds a backend to the contract of :mod:`gemmhub.backend`.

With pytest: subclass :class:`ConformanceSuite`. Without: ``check(backend, case)`` for the cases of
:func:`matrix`, or for one of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmhub.testing.cases import Case, draw, matrix
from gemmhub.testing.check import Outcome, check
from gemmhub.testing.operands import Memory, Unrepresentable

if TYPE_CHECKING:
    from gemmhub.testing.suite import ConformanceSuite
    from gemmhub.testing.torch_cuda import TorchMemory

__all__ = [
    "Case", "ConformanceSuite", "Memory", "Outcome", "TorchMemory", "Unrepresentable", "check", "draw", "matrix",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # The suite imports pytest, which only authors of tests have; the other needs torch once it is used.
    if name == "ConformanceSuite":
        from gemmhub.testing.suite import ConformanceSuite

        return ConformanceSuite
    if name == "TorchMemory":
        from gemmhub.testing.torch_cuda import TorchMemory

        return TorchMemory
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
