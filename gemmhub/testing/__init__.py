"""The conformance kit: tests of a backend against the contract of :mod:`gemmhub.backend`.

With pytest: subclass :class:`ConformanceSuite`. Without: call ``check(backend, case)`` for the cases of
:func:`matrix`, or for your own cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmhub.testing.allocations import check_allocations
from gemmhub.testing.case import Case, taken
from gemmhub.testing.cases import draw, matrix
from gemmhub.testing.check import check
from gemmhub.testing.memory import Memory, Unrepresentable
from gemmhub.testing.results import Outcome

if TYPE_CHECKING:
    from gemmhub.testing.suite import ConformanceSuite

__all__ = [
    "Case", "ConformanceSuite", "Memory", "Outcome", "Unrepresentable", "check",
    "check_allocations", "draw", "matrix", "taken",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # The suite imports pytest, which only authors of tests have installed.
    if name == "ConformanceSuite":
        from gemmhub.testing.suite import ConformanceSuite

        return ConformanceSuite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
