"""Tests that the CUDA plugins share: probing reports what is missing as Absent, and never raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gemmhub.capability import Absent, Device, Ready
from gemmhub.testing.answers import honest
from gemmhub_nvidia.driver import Driver


def raising(error: Exception) -> Callable[[], Any]:
    """Return a function that raises ``error``."""

    def fails() -> Any:
        raise error

    return fails


class Probing:
    """The probe of one plugin's backend on fake machines."""

    def __init__(self, backend: Callable[..., Any], functions: Any, compiler: Callable[[], Any]) -> None:
        """``backend(open_driver, open_compiler)`` makes a backend; ``functions`` are those of the driver it uses."""
        self._backend, self._functions, self._compiler = backend, functions, compiler

    def absent(
        self, home: Any, open_driver: Callable[[], Any] | None = None, open_compiler: Callable[[], Any] | None = None
    ) -> Absent:
        """Return what the probe of a machine reports, which must be Absent, honest, and the same when asked again."""
        driver = open_driver or (lambda: Driver(home.cuda, self._functions))
        backend = self._backend(driver, open_compiler or self._compiler)
        probed: Absent | Ready = backend.probe()
        assert isinstance(probed, Absent)
        honest(probed, "probe()")
        same = backend.probe() is probed
        assert same
        with pytest.raises(RuntimeError):
            _ = backend.machine
        return probed


class ProbeTests:
    """Tests of any CUDA plugin. A subclass gives the three attributes."""

    probing: Probing
    home: Callable[..., Any]
    backend: Callable[..., Any]

    def test_ready(self) -> None:
        """Two fake devices."""
        probed = type(self).home(devices=2).backend().probe()
        assert isinstance(probed, Ready)
        assert probed.devices == (Device("cuda", 0), Device("cuda", 1))
        assert probed.versions == {
            "nvrtc": "13.0", "driver": "13.0", "device": "Fake H200", "multiprocessors": "4", "memory": "4.92 TB/s",
        }  # fmt: skip

    def test_this_machine(self) -> None:
        """Probing returns an answer on any machine."""
        probed = type(self).backend().probe()
        assert isinstance(probed, (Ready, Absent))
        if isinstance(probed, Absent):
            honest(probed, "probe()")

    def test_no_driver(self) -> None:
        """A machine without an NVIDIA driver."""
        probed = self.probing.absent(type(self).home(), raising(OSError("libcuda.so.1: not found")))
        assert "no NVIDIA driver" in probed.reason
