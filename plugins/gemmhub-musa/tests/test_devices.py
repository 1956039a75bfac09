"""The command line reaches these arrays by the name of the device. (On the simulated SDKs: test_on_sim.py.)"""

from __future__ import annotations

from gemmhub_musa import devices

from gemmhub._base import device_types
from gemmhub.capability import Absent, Device
from gemmhub.cli import by_name as core


def test_the_entry_point_is_this_module():
    assert core.plugin_arrays()["gemmhub_musa"] is devices
    assert device_types.device_type("musa") is devices.device_type
    assert core.libraries("musa") == ("torch", "gemmhub_musa")
    assert core.parse_device("musa:1") == Device("musa", 1)


def test_without_an_installation(monkeypatch):
    absent = Absent("no SDK", "install one")
    monkeypatch.setattr(devices.runtime, "machine", lambda: absent)
    assert devices.count() == absent
    assert devices.versions() == {}
    assert devices.device_name(0) == ""
