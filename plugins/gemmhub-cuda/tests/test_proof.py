"""The first products of 8-bit floats: they prove the kernels, or refuse them, once for each device and input."""

from __future__ import annotations

from dataclasses import replace

import emulated
import fake_cuda
import pytest
from fakes import Home
from gemmhub_cuda.proof import Proofs
from gemmhub_cuda.variants.form import FLOAT8
from problems import problem

from gemmhub.backend import Kernel, Offer
from gemmhub.capability import Refusal
from gemmhub.dtypes import as_dtype
from gemmhub.errors import AllocationError

pytestmark = pytest.mark.emulator


def proofs(backend):
    """Return a function that proves an input on the first device."""
    return lambda input_type: backend._proofs.of(0, backend.machine.gpus[0], input_type)


def mutated(monkeypatch, *changes):
    """Return a home whose kernels have replaced text."""
    emulated._KERNELS.changed(changes)  # fails here where a text is not there
    monkeypatch.setattr(fake_cuda, "CHANGES", changes)
    return Home()


@pytest.mark.parametrize("input_type", ["e4m3.e4m3", "e5m2.e4m3"])
def test_right_kernels_are_proven_once(input_type):
    home = Home()
    prove = proofs(home.backend())
    allocated = len(home.cuda.allocated)
    assert prove(input_type) is None
    assert len(home.cuda.launches) == 2
    assert prove(input_type) is None
    assert len(home.cuda.launches) == 2
    assert len(home.cuda.allocated) == allocated
    assert home.cuda.complaints == []
    assert home.cuda.stack == []


MUTATIONS = {
    "sums are never promoted": ("e4m3.e4m3", ("batch.cu", "(k + TILE_K) % PROMOTED == 0 || k", "k")),
    "formats are exchanged": ("e4m3.e5m2", ("batch.cu", "multiply_add<INPUT>(&", "multiply_add<FLOAT8 ? 6 : 0>(&")),
    "columns have rows' scales": ("e4m3.e4m3", ("epilogue.cuh", "factor(p.column_scales", "factor(p.row_scales")),
    "bytes are not paired": ("e4m3.e4m3", ("batch.cu", "PAIRED = SIZE == 1 && mn", "PAIRED = false && mn")),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_wrong_kernels_are_refused(monkeypatch, name):
    input_type, change = MUTATIONS[name]
    prove = proofs(mutated(monkeypatch, change).backend())
    refusal = prove(input_type)
    assert isinstance(refusal, Refusal)
    assert "elements differ, the first at" in refusal.reason
    assert "cuda:0, by float8." in refusal.reason
    assert prove(input_type) is refusal


def test_nothing_is_known_without_memory():
    home = Home()
    prove, memory = proofs(home.backend()), home.cuda.memory
    home.cuda.memory = 1000
    with pytest.raises(AllocationError):
        prove("e4m3.e4m3")
    home.cuda.memory = memory
    assert prove("e4m3.e4m3") is None


ADA = {75: 8, 76: 9, 97: 99 * 1024, 81: 100 * 1024, 39: 1536, 106: 24}
"""Attributes of a card of compute capability 8.9."""
OUTCOMES = [None, Refusal("the first product is wrong", "use another backend")]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_offer_proves_nothing_on_hopper(monkeypatch, outcome):
    """Other backends are chosen there; what is prepared is proven."""
    proven = []
    monkeypatch.setattr(Proofs, "of", lambda self, index, gpu, input_type: proven.append(input_type) or outcome)
    backend = Home().backend()
    asked = problem(64, 64, 64, "float8_e4m3fn", "bfloat16")
    offer = backend.offer(asked)
    assert isinstance(offer, Offer)
    assert proven == []
    prepared = backend.prepare(asked, offer.first.name, 2**26)
    assert proven == ["e4m3.e4m3"]
    assert isinstance(prepared, Kernel) if outcome is None else prepared is outcome


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_is_offered(monkeypatch, outcome):
    proven = []
    monkeypatch.setattr(Proofs, "of", lambda self, index, gpu, input_type: proven.append(input_type) or outcome)
    backend = Home(attributes=ADA).backend()
    asked = problem(64, 64, 64, "float8_e4m3fn", "bfloat16")
    if outcome is None:
        offer = backend.offer(asked)
        assert isinstance(offer, Offer)
        assert isinstance(backend.prepare(asked, offer.first.name, 2**26), Kernel)
        assert "not measured on this card" in offer.remark(offer.first.name)
        backend.offer(replace(asked, b=replace(asked.b, dtype=as_dtype("float8_e5m2"))))
        assert proven == ["e4m3.e4m3", "e4m3.e4m3", "e4m3.e5m2"]
    else:
        assert backend.offer(asked) == backend.prepare(asked, "float8.16x16x32x4w4", 2**26) == outcome
    assert set(proven) <= set(FLOAT8)
    proven.clear()
    for dtype, result in (("bfloat16", "bfloat16"), ("int8", "int32")):
        assert isinstance(backend.offer(problem(64, 64, 64, dtype, result)), Offer)
    assert proven == []
