"""Device types and arrays that a plugin provides through the entry-point group gemmhub.arrays."""

from __future__ import annotations

import types

import numpy as np
import pytest

from gemmhub import array_library
from gemmhub._arrays import plugin_arrays
from gemmhub._arrays.host.operands import NumpyArrays
from gemmhub._base import device_types
from gemmhub.array_library import DeviceType, register_device_type
from gemmhub.capability import Absent, Device
from gemmhub.cli import by_name, measurements
from gemmhub.errors import DeviceError, InputError


class Faraway(NumpyArrays):
    """Host arrays that count as those of a device of the type "npu"."""

    name = "faraway"
    device = Device("npu", 0)

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
        group_of = plugin_arrays.GROUP
        monkeypatch.setattr(plugin_arrays, "entry_points", lambda group: points if group == group_of else [])
        monkeypatch.setattr(device_types, "_types", {"cuda": device_types.device_type("cuda")})
        plugin_arrays.plugin_arrays.cache_clear()

    yield install
    plugin_arrays.plugin_arrays.cache_clear()


def library(number=1, **changes):
    values = {
        "device_type": DeviceType("npu", extension="torch_npu"),
        "count": lambda: number, "arrays": lambda index: Faraway(),
        "device_name": lambda index: f"Card {index}", "versions": lambda: {"faraway": "1.0"},
    }  # fmt: skip
    return types.SimpleNamespace(**{**values, **changes})


def test_the_device_is_reached(bring):
    bring(faraway=library())
    assert by_name.libraries("npu") == ("torch", "faraway")
    assert by_name.libraries("cuda") == ("torch", "cupy")
    for asked in (("npu",), ("npu:0", "faraway")):
        arrays = by_name.arrays_for(*asked)
        assert isinstance(arrays, Faraway)
    assert by_name.device_name(arrays) == "Card 0"
    assert by_name.library_versions(arrays) == {"faraway": "1.0"}
    x = np.arange(6.0).reshape(2, 3)
    assert np.array_equal(by_name.place(x, arrays, "col"), x)
    with by_name.entered(arrays):
        by_name.synchronize(arrays)


def test_a_device_type_is_known_by_its_plugin_alone(bring):
    bring()
    with pytest.raises(InputError, match=r"'npu'; allowed: cpu, cuda, cuda:N\. .*plugin that registers it"):
        by_name.parse_device("npu")
    bring(faraway=types.SimpleNamespace(device_type=DeviceType("npu")))  # no arrays of its own
    assert by_name.parse_device("npu:1") == Device("npu", 1)
    assert by_name.libraries("npu") == ("torch",)


@pytest.mark.parametrize("name", ["", "cpu", "NPU", "n-p", "a b", 3])
def test_names_of_device_types(bring, name):
    bring()
    with pytest.raises(InputError, match="new: "):
        register_device_type(DeviceType(name))


def test_a_device_type_is_one_object_of_a_name(bring):
    bring()
    register_device_type(DeviceType("npu"))
    register_device_type(DeviceType("npu"))
    with pytest.raises(InputError, match="another type 'npu'"):
        register_device_type(DeviceType("npu", stream="handle"))
    with pytest.raises(InputError, match="another type 'cuda'"):
        register_device_type(DeviceType("cuda"))
    with pytest.raises(InputError, match="a str"):
        register_device_type("npu")


def test_statuses(bring):
    bring(faraway=library(2), gone=library(Absent("no driver", "install one")))
    found = {status.library: status for status in by_name.library_statuses()}
    assert found["faraway"].devices == ("npu:0 Card 0", "npu:1 Card 1")
    assert found["gone"].reason == "no driver"


def test_an_unreachable_device_has_a_reason(bring):
    bring(faraway=library(Absent("no driver", "install one")))
    with pytest.raises(DeviceError, match="no driver") as caught:
        by_name.arrays_for("npu", "faraway")
    assert "install one" in caught.value.remedy
    bring(faraway=library(1))
    with pytest.raises(DeviceError, match="npu:0"):
        by_name.arrays_for("npu:3", "faraway")
    with pytest.raises(InputError, match="nearby"):
        by_name.arrays_for("npu", "nearby")
    with pytest.raises(InputError, match="faraway"):
        by_name.arrays_for("cuda", "faraway")


def test_broken_plugins_take_nothing_down(bring, caplog):
    def broken():
        raise OSError("library gone")

    clash, odd = library(device_type=DeviceType("npu")), library(device_type="npu")
    bring(torn=ImportError("no such module"), faraway=library(count=broken), later=clash, odd=odd)
    assert by_name.libraries("npu") == ("torch", "faraway")
    told = {record.args[0]: str(record.args[1]) for record in caplog.records}
    assert told.keys() == {"torn", "later", "odd"}
    assert "one type of each name" in told["later"]
    with pytest.raises(DeviceError, match="library gone"):
        by_name.arrays_for("npu", "faraway")


def test_a_baseline_is_named_where_the_library_has_no_matmul(bring):
    bring(faraway=library())
    with pytest.raises(InputError, match=r"numpy\.matmul for faraway arrays") as caught:
        measurements.run_case(4, 4, 4, baseline="numpy.matmul", device="npu", library="faraway")
    assert caught.value.allowed == "the name of a backend"


def test_what_cannot_be_registered():
    for kind, find, argument in ((np.ones(2), lambda x: None, "kind"), (int, object(), "find")):
        with pytest.raises(InputError) as raised:
            array_library.register(kind, find)
        assert raised.value.argument == argument
    with pytest.raises(InputError):
        array_library.register_deferring(int, None)


def test_a_clone_of_a_broadcast_view_writes_each_element_once():
    """Written element by element, one of this size would take hours."""
    x = np.broadcast_to(np.float32(7), (10**6, 10**6))
    copy = array_library.HostArrays().clone(x)
    assert (copy.shape, copy.strides, copy[5, 6]) == (x.shape, x.strides, 7)
    assert not np.may_share_memory(copy, x)
    mixed = np.broadcast_to(np.arange(4.0), (3, 4))
    assert np.array_equal(array_library.HostArrays().clone(mixed), mixed)
