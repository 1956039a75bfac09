"""What the backend answers to each of gemmhub's options: an offer, or a reason and a remedy."""

from __future__ import annotations

from gemmhub_musa.testing import answers
from gemmhub_musa_kernels.library import NAME
from gemmhub_musa_kernels.sources import activations


def test_answers(sim):
    found = answers(NAME)
    assert {option for option, reason in found.items() if not reason} == {
        "alpha", "c", "bias", "reproducible run", "reproducible batch", "reproducible mma.32x32x16.arow.brow.k32",
        "groups by ends on the host", *activations(),
    }  # fmt: skip
    assert found["swiglu"] == "it has no activation swiglu"
    assert found["scale_a per row"] == "it does not take quantization scales (scale_a=)"
    assert found["groups by ends on the device"] == "it has no grouped products whose offsets divide m"
