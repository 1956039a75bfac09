"""Problems for tests: the sizes differ, so that no two of them are mistaken for each other."""

from __future__ import annotations

from gemmhub_musa import testing


def problem(m=16, n=24, k=8, dtype="float32", **changes):
    """A problem with dense operands; ``changes`` as gemmhub_musa.testing has them."""
    return testing.problem(m, n, k, dtype, **changes)
