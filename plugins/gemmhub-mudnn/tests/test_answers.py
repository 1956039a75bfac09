"""What the backend answers to each of gemmhub's options: an offer, or a reason and a remedy."""

from __future__ import annotations

from gemmhub_musa.testing import answers


def test_answers(home):
    found = answers("mudnn")
    offered = {option for option, reason in found.items() if not reason}
    assert offered - {"reproducible run"} == {"alpha", "c", "bias", "groups by ends on the host"}
    assert found["scales of float8"] == "it does not take quantization scales (scale_a=)"
    assert found["relu"] == "it has no activation relu"
    assert found["groups by ends on the device"] == "it has no grouped products whose offsets divide m"
