"""The command line reaches these arrays by the name of the device. (On the simulated SDKs: test_on_sim.py.)"""

from __future__ import annotations

from gemmhub_musa import devices

from gemmhub._arrays import by_name as core
from gemmhub.capability import Absent


def test_the_entry_point_is_this_module():
    assert core.plugin_arrays()["gemmhub_musa"] is devices


def test_without_an_installation(monkeypatch):
    absent = Absent("no SDK", "install one")
    monkeypatch.setattr(devices.runtime, "machine", lambda: absent)
    assert devices.count() == absent
    assert devices.versions() == {}
    assert devices.device_name(0) == ""
