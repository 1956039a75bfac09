"""Arrays that a plugin provides through the entry-point group gemmhub.arrays, for devices by name."""

from __future__ import annotations

import types

import numpy as np
import pytest

from gemmhub._arrays import by_name
from gemmhub._arrays.host.operands import NumpyArrays
from gemmhub._measure import bench
from gemmhub.capability import Absent, Device
from gemmhub.errors import DeviceError, InputError


class Faraway(NumpyArrays):
    """Host arrays that count as those of a MUSA device."""

    name = "faraway"
    device = Device("musa", 0)

    def from_host(self, x):
        return x.copy()


@pytest.fixture
def bring(monkeypatch):
    """A function that installs entry points: name -> the loaded object, or an exception."""

    def install(**found):
        def load(made):
            if isinstance(made, Exception):
                raise made
            return made

        points = [types.SimpleNamespace(name=name, load=lambda made=made: load(made)) for name, made in found.items()]
        monkeypatch.setattr(by_name, "entry_points", lambda group: points if group == by_name.GROUP else [])
        by_name.plugin_arrays.cache_clear()

    yield install
    by_name.plugin_arrays.cache_clear()


def library(number=1, **changes):
    values = {
        "kind": "musa", "count": lambda: number, "arrays": lambda index: Faraway(),
        "device_name": lambda index: f"Card {index}", "versions": lambda: {"faraway": "1.0"},
    }  # fmt: skip
    return types.SimpleNamespace(**{**values, **changes})


def test_the_device_is_reached(bring):
    bring(faraway=library())
    assert by_name.libraries("musa") == ("torch", "faraway")
    assert by_name.libraries("cuda") == ("torch", "cupy")
    for asked in (("musa",), ("musa:0", "faraway")):
        arrays = by_name.arrays_for(*asked)
        assert isinstance(arrays, Faraway)
    assert by_name.device_name(arrays) == "Card 0"
    assert by_name.library_versions(arrays) == {"faraway": "1.0"}
    x = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(by_name.place(x, arrays, "col"), x)
    with by_name.entered(arrays):
        by_name.synchronize(arrays)


def test_statuses(bring):
    bring(faraway=library(2), gone=library(Absent("no driver", "install one")))
    found = {status.library: status for status in by_name.library_statuses()}
    assert found["faraway"].devices == ("musa:0 Card 0", "musa:1 Card 1")
    assert found["gone"].reason == "no driver"


def test_an_unreachable_device_has_a_reason(bring):
    bring(faraway=library(Absent("no driver", "install one")))
    with pytest.raises(DeviceError, match="no driver") as caught:
        by_name.arrays_for("musa", "faraway")
    assert "install one" in caught.value.remedy
    bring(faraway=library(1))
    with pytest.raises(DeviceError, match="musa:0"):
        by_name.arrays_for("musa:3", "faraway")
    with pytest.raises(InputError, match="nearby"):
        by_name.arrays_for("musa", "nearby")
    with pytest.raises(InputError, match="faraway"):
        by_name.arrays_for("cuda", "faraway")


def test_broken_plugins_take_nothing_down(bring):
    def broken():
        raise OSError("library gone")

    bring(torn=ImportError("no such module"), faraway=library(count=broken))
    assert by_name.libraries("musa") == ("torch", "faraway")
    with pytest.raises(DeviceError, match="library gone"):
        by_name.arrays_for("musa", "faraway")


def test_a_baseline_is_named_where_the_library_has_no_matmul(bring):
    bring(faraway=library())
    with pytest.raises(InputError, match=r"numpy\.matmul for faraway arrays") as caught:
        bench.run_case(4, 4, 4, baseline="numpy.matmul", device="musa", library="faraway")
    assert caught.value.allowed == "the name of a backend"
