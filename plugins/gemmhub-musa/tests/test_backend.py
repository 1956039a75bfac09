"""The base of MUSA backends: wrong devices, empty results, states of a device, workspace."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemmhub_musa import runtime, testing
from gemmhub_musa.backend import Analysis, CallError, MusaBackend, library_order
from gemmhub_musa.probe import Devices
from gemmhub_musa.runtime import MusaError

from gemmhub import Device, Kernel, Ready, Refusal
from gemmhub.backend import Candidate, Offer
from gemmhub.errors import AllocationError
from gemmhub.kit.machine import NOTHING_TO_DO


class Analysing(MusaBackend[Devices, str, int]):
    """Its candidates are the bytes of workspace that they need."""

    name = "analysing"

    def __init__(self, usable=None):
        super().__init__(lambda: Devices(runtime.machine(), usable))
        self.asked, self.error = [], None

    def _ready(self, machine):
        return Ready(machine.devices)

    def _analyse(self, problem):
        self.asked.append(problem)
        if self.error is not None:
            raise self.error
        return Refusal("odd", "even it out") if problem.m % 2 else Analysis("fine", {"small": 0, "large": 11})

    def _offered(self, problem, analysis):
        return Offer([Candidate(name, order=library_order(problem)) for name in analysis.candidates])

    def _prepared(self, problem, lowered, candidate, workspace_limit):
        return Kernel(NOTHING_TO_DO.run, lowered, candidate)


@pytest.fixture
def backend(rt):
    return Analysing()


def test_each_question_analyses_a_problem_once(backend):
    even, odd = testing.problem(4), testing.problem(5)
    assert backend.offer(even).names == ("small", "large")
    assert backend.prepare(even, "small", 0).description == "fine"
    for answer in (backend.offer(odd), backend.prepare(odd, "small", 0)):
        assert answer == Refusal("odd", "even it out")
    assert backend.asked == [even, even, odd, odd]


def test_results_without_elements_are_not_analysed(backend):
    nothing = testing.problem(0, 3, 4)
    assert backend.offer(nothing).names == ("nothing",)
    assert backend.prepare(nothing, "nothing", 0) is NOTHING_TO_DO
    assert backend.asked == []


def test_other_devices_are_refused(rt):
    backend = Analysing(usable=[1])
    assert backend.probe() == Ready((Device("musa", 1),))
    assert isinstance(backend.offer(testing.problem(index=1)), Offer)
    for device in (Device("musa", 0), Device("musa", 2), Device("cuda", 1), Device()):
        no = backend.offer(replace(testing.problem(0, 3, 4), device=device))
        assert (no.reason, no.remedy) == (f"the operands are on {device}", "copy them to musa:1")
        assert backend.prepare(replace(testing.problem(), device=device), "small", 0) == no
    assert "musa:0 or musa:1" in Analysing().offer(testing.problem(index=2)).remedy


@pytest.mark.parametrize(
    "error", [AllocationError("1 GiB"), CallError("status 7"), MusaError("musaMalloc", 700, "musaErrorIllegal", "lost")]
)
def test_a_state_of_the_device_decides_nothing_for_good(backend, error):
    backend.error = error
    no = backend.offer(testing.problem())
    assert no.reason.startswith("analysing could not be tried")
    assert str(error) in no.reason
    with pytest.raises(type(error)):
        backend.prepare(testing.problem(), "small", 0)
    backend.error = None
    assert isinstance(backend.offer(testing.problem()), Offer)


def test_what_prepare_refuses(backend):
    assert backend.prepare(testing.problem(), "large", 11).workspace_bytes == 11
    no = backend.prepare(testing.problem(), "large", 10)
    assert no.reason == "analysing's large needs 11 bytes of workspace: 10 are allowed"
    assert "raise the setting workspace_mib" in no.remedy
    no = backend.prepare(testing.problem(), "fast", 11)
    assert no.reason == "analysing has no candidate 'fast' here; allowed: small, large"
    assert "leave the candidate's name out" in no.remedy


def test_integers_have_an_order_of_addition_in_every_library(backend):
    assert {each.order for each in backend.offer(testing.problem()).candidates} == {None}
    whole = testing.problem(dtype="int8", out="int32")
    assert {each.order for each in backend.offer(whole).candidates} == {"exact"}


def test_the_current_device(rt, fake):
    devices = Devices(runtime.machine())
    with devices.current(1):
        assert rt.current_device == 1
    assert rt.current_device == 0
    fake.fake_devices(1)
    with Devices(runtime.machine()).current(0):
        assert rt.current_device == 0
