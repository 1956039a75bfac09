"""NumPy's own tests of matmul, with gemmhub.matmul in its place.

They are in NumPy's wheels. Left out are long double and objects, which gemmhub refuses, and of 8-bit integers the dtype
of the result, which is int32 by the table in :mod:`gemmhub.dtypes`.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import numpy as np
import pytest

import gemmhub


def replacement(a: Any, b: Any, out: Any = None) -> Any:
    """gemmhub.matmul with ``out`` by position, as numpy.matmul takes it."""
    return gemmhub.matmul(a, b, out=out)


class Replaced:
    """The module numpy, but for matmul: gemmhub itself needs NumPy's."""

    matmul = staticmethod(replacement)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def numpys_tests() -> Any:
    """A copy of NumPy's module of tests for which ``np.matmul`` is gemmhub's; None where NumPy ships no tests."""
    core = "numpy.core" if np.__version__.startswith("1.") else "numpy._core"
    try:
        spec = importlib.util.find_spec(f"{core}.tests.test_multiarray")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spec.loader.exec_module(module)
    except (ImportError, AssertionError):
        return None
    vars(module)["np"] = Replaced()
    return module


module = numpys_tests()
if module is None:
    pytest.skip(f"NumPy {np.__version__} is installed here without its tests", allow_module_level=True)

FLOATS_AND_INTEGERS = "?hilqHILQefdFD"
"""Type letters: NumPy's list without b and B, g and G, O."""


class TestMatmul(module.TestMatmul):  # type: ignore[misc, name-defined]
    types = FLOATS_AND_INTEGERS
    matmul = staticmethod(replacement)

    test_matmul_object = None
    test_matmul_object_type_scalar = None
    test_matmul_empty = None  # of objects


class TestMatmulOf8Bits(module.MatmulCommon):  # type: ignore[misc, name-defined]
    """Shapes, exceptions and values."""

    types = "?bB"
    matmul = staticmethod(replacement)

    test_result_types = None


def test_the_letters_are_numpys() -> None:
    """A type that NumPy's tests add is tested here, or named above."""
    assert set(module.MatmulCommon.types) == set(FLOATS_AND_INTEGERS) | set("bBgGO")


def test_it_is_gemmhub_that_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(gemmhub, "matmul", lambda a, b, **options: seen.append(options) or np.matmul(a, b, **options))
    tests = TestMatmul()
    tests.test_out_arg()
    tests.test_dot_equivalent((np.ones((2, 3)), np.ones((3, 2))))
    assert len(seen) == 6
