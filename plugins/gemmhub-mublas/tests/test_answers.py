"""What the backends answer to each of gemmhub's options: an offer, or a reason and a remedy."""

from __future__ import annotations

import pytest
from gemmhub_musa.testing import answers

from conftest import SDK

pytestmark = pytest.mark.skipif(SDK == "installed", reason="needs the simulator, of which these answers are")
PLAIN = {"alpha", "c", "groups by ends on the host"}


def offered(found):
    return {option for option, reason in found.items() if not reason}


def test_mublas(home):
    found = answers("mublas")
    assert offered(found) == PLAIN
    assert found["reproducible run"].startswith("nothing is public about whether muBLAS gives the same bits")
    assert found["bias"] == "it does not take a bias (bias=)"


@pytest.mark.skipif(SDK == "3.1", reason="needs muBLASLt, which 3.1 lacks")
def test_mublaslt(home):
    """The simulated header of muBLASLt has no names of activations."""
    found = answers("mublaslt")
    assert offered(found) == PLAIN | {"bias"}
    assert found["relu"] == "the installed mublasLt.h has no MUBLASLT_EPILOGUE_RELU"
    assert found["gelu_tanh"] == "the installed mublasLt.h has no MUBLASLT_EPILOGUE_GELU"
    assert found["gelu"] == "it has no activation gelu"
    assert found["reproducible run"].startswith("nothing is public about whether muBLASLt gives the same bits")
