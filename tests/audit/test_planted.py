"""Each planted fault is found, reduced, and repeated by a script without gemmhub; correct code has none."""

from __future__ import annotations

import pytest
from planted import ALL, F32, PLANTED, C, correct, correct_with_everything, planted

from gemmhub.testing import Claims, Implementation, audit, products

WITHOUT_SCRIPT = {"shares_a_buffer_between_threads", "writes_past_the_result"}
"""Faults that need threads, or the memory around a result."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name):
    _, trial, kind = PLANTED[name]
    result = audit(planted(name), seconds=4.0)
    assert not result.ok
    assert not result
    found = [x for x in result.faults if (x.trial, x.kind) == (trial, kind)]
    assert found, [(x.trial, x.kind, x.text) for x in result.faults]
    fault = found[0]
    assert len(fault.smallest) <= len(fault.found) + 60
    if name in WITHOUT_SCRIPT:
        assert fault.script is None
    else:
        assert fault.script is not None
        assert fault.repeated, fault.script
        assert "gemmhub" not in fault.script


@pytest.mark.parametrize(
    "implementation",
    [
        Implementation.of(correct, Claims(products("f32 f64 int32 c64"), features=ALL, bits=frozenset({"run"}))),
        Implementation.of(
            correct_with_everything,
            Claims(
                products("f64"),
                takes={**C, "bias": frozenset({"n"})},
                features=frozenset({"out", "alpha", "zero alpha", "zero beta", "c and bias"}),
            ),
        ),
    ],
    ids=["correct", "correct_with_everything"],
)
def test_correct_code_has_no_fault(implementation):
    result = audit(implementation)
    assert result.ok, str(result)
    assert result.implementations[0].trials > 150
    assert not result.implementations[0].refused


def test_what_is_not_claimed_is_no_fault():
    """Bits that differ without a promise are counted; a NaN in c that beta = 0 does not exclude is not tested."""
    for name, claims in (("adds_in_any_order", Claims(F32)), ("reads_c_at_beta_zero", Claims(F32, takes=C))):
        implementation = Implementation.of(getattr(__import__("planted"), name), claims)
        result = audit(implementation)
        assert result.ok, str(result)
    bits = audit(planted("has_another_order_for_one_row")).implementations[0].bits["rows"]
    assert bits.claimed
    assert bits.differed > 0
