"""The base of MUSA backends: wrong devices, empty results, analyses that are kept and those that are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gemmhub_musa import runtime, testing
from gemmhub_musa.backend import CallError, MusaBackend
from gemmhub_musa.probe import Devices
from gemmhub_musa.runtime import MusaError

from gemmhub import Device, Ready, Refusal
from gemmhub.errors import AllocationError
from gemmhub.kit.machine import NOTHING_TO_DO


class Analysing(MusaBackend[Devices, str]):
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
        return Refusal("odd", "even it out") if problem.m % 2 else "fine"

    def prepare(self, problem, candidate, workspace_limit):
        return NOTHING_TO_DO


@pytest.fixture
def backend(rt):
    return Analysing()


def test_each_problem_is_analysed_once(backend):
    even, odd = testing.problem(4), testing.problem(5)
    for _ in range(2):
        assert backend.analysis(even) == backend.runnable(even) == "fine"
        assert backend.supports(even) is None
        assert backend.supports(odd).reason == "odd"
        with pytest.raises(ValueError, match="odd; even it out"):
            backend.runnable(odd)
    assert backend.asked == [even, odd]


def test_results_without_elements_are_not_analysed(backend):
    assert backend.analysis(testing.problem(0, 3, 4)) is None
    assert backend.supports(testing.problem(0, 3, 4)) is None
    assert backend.asked == []


def test_other_devices_are_refused(rt):
    backend = Analysing(usable=[1])
    assert backend.probe() == Ready((Device("musa", 1),))
    assert backend.supports(testing.problem(index=1)) is None
    for device in (Device("musa", 0), Device("musa", 2), Device("cuda", 1), Device()):
        no = backend.supports(replace(testing.problem(0, 3, 4), device=device))
        assert (no.reason, no.remedy) == (f"the operands are on {device}", "copy them to musa:1")
    assert "musa:0 or musa:1" in Analysing().supports(testing.problem(index=2)).remedy


@pytest.mark.parametrize(
    "error", [AllocationError("1 GiB"), CallError("status 7"), MusaError("musaMalloc", 700, "musaErrorIllegal", "lost")]
)
def test_a_state_of_the_device_decides_nothing_for_good(backend, error):
    backend.error = error
    no = backend.supports(testing.problem())
    assert no.reason.startswith("analysing could not be tried")
    assert str(error) in no.reason
    backend.error = None
    assert backend.supports(testing.problem()) is None


def test_the_workspace_limit(backend):
    backend.check_workspace(10, 10, testing.problem())
    with pytest.raises(ValueError, match=r"needs 11 bytes of workspace for .*: 10 are allowed.*workspace_mib"):
        backend.check_workspace(11, 10, testing.problem())


def test_the_current_device(rt, fake):
    devices = Devices(runtime.machine())
    with devices.current(1):
        assert rt.current_device == 1
    assert rt.current_device == 0
    fake.fake_devices(1)
    with Devices(runtime.machine()).current(0):
        assert rt.current_device == 0
