"""Probing and refusals for the benchmarks of one backend, with stub backends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.lib import one_backend
from benchmarks.lib.drawn import DEVICE
from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Absent, Device, Ready, Refusal


def backend(found):
    return SimpleNamespace(name="mine", probe=lambda: found)


def test_a_backend_that_is_ready(capsys):
    found = Ready((DEVICE,), {})
    assert one_backend.opened(backend(found)) is found
    assert capsys.readouterr().out == ""


def test_an_absent_backend_has_its_reason_printed(capsys):
    assert one_backend.opened(backend(Absent("no driver", "install one"))) is None
    assert capsys.readouterr().out == "no driver; install one\n"


def test_a_backend_for_other_cards(capsys):
    assert one_backend.opened(backend(Ready((Device("cuda", 1),), {}))) is None
    assert capsys.readouterr().out == "mine does not run on cuda:0\n"


def test_a_refused_product_has_its_reason_printed(capsys):
    asked = SimpleNamespace(m=1, n=2, k=3)
    stub = SimpleNamespace(offer=lambda problem: Refusal("too odd", "pad it"))
    assert one_backend.offered(stub, asked, "nt") is None
    assert capsys.readouterr().out == "     1     2     3 nt  refused: too odd\n"
    offer = Offer()
    assert one_backend.offered(SimpleNamespace(offer=lambda problem: offer), asked, "nt") is offer
    assert capsys.readouterr().out == ""


def test_a_refused_candidate():
    kernel = Kernel(lambda *_: None, "does nothing")
    stub = SimpleNamespace(prepare=lambda *given: kernel if given[1:] == ("wide", 8) else Refusal("too odd", "pad it"))
    assert one_backend.prepared(stub, None, "wide", 8) is kernel
    with pytest.raises(ValueError, match="too odd; pad it"):
        one_backend.prepared(stub, None, "wide", 4)
