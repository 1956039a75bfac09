"""The conformance kit: tests of a backend against the contract of :mod:`gemmhub.backend`, and of any other library.

With pytest: subclass :class:`ConformanceSuite`. Without: call ``check(backend, case)`` for the cases of
:func:`matrix`, or for your own cases. :func:`audit` tests a library that is no backend, against what it claims.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gemmhub.testing.allocations import check_allocations
from gemmhub.testing.case import Case, taken
from gemmhub.testing.cases import draw, matrix
from gemmhub.testing.check import check
from gemmhub.testing.grouped_check import check_groups
from gemmhub.testing.groups import GroupedCase, grouped_cases
from gemmhub.testing.memory import Memory, Unrepresentable
from gemmhub.testing.results import Outcome

if TYPE_CHECKING:
    from gemmhub._audit.audit import audit
    from gemmhub._audit.claims import Claims, Note, products
    from gemmhub._audit.implementation import Implementation
    from gemmhub._audit.result import Audit, Fault
    from gemmhub.testing.suite import ConformanceSuite

__all__ = [
    "Case", "ConformanceSuite", "GroupedCase", "Memory", "Outcome", "Unrepresentable", "check",
    "check_allocations", "check_groups", "draw", "grouped_cases", "matrix", "taken", "Audit", "Claims", "Fault",
    "Implementation", "Note", "audit", "products",
]  # fmt: skip

_AUDIT = {
    "Audit": "result", "Claims": "claims", "Fault": "result", "Implementation": "implementation", "Note": "claims",
    "audit": "audit", "products": "claims",
}  # fmt: skip
"""Names of an audit, and the modules that have them; few authors of backends need them."""


def __getattr__(name: str) -> Any:
    # The suite imports pytest, which only authors of tests have installed.
    if name == "ConformanceSuite":
        from gemmhub.testing.suite import ConformanceSuite

        return ConformanceSuite
    if name in _AUDIT:
        return getattr(importlib.import_module(f"gemmhub._audit.{_AUDIT[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
