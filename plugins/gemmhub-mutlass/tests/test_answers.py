"""What the backend answers to each of gemmhub's options: an offer, or a reason and a remedy."""

from __future__ import annotations

import pytest
from gemmhub_musa.testing import answers

from conftest import SDK


@pytest.mark.skipif(SDK == "installed", reason="needs the simulator, of which these answers are")
def test_answers(home):
    found = answers("mutlass")
    assert {option for option, reason in found.items() if not reason} == {
        "alpha", "c", "reproducible run", "groups by ends on the host",
    }  # fmt: skip
    assert found["bias"] == "it does not take a bias (bias=)"
    assert found["relu"] == "it has no activation relu"
