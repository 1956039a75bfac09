"""Tensors on devices of registered types: one of torch's PrivateUse1, and one that shares its name with CUDA."""

from __future__ import annotations

import types

import numpy as np
import pytest
from address_backend import Addresses, add
from machine import at

import gemmhub
from gemmhub import Device, DeviceError, Ready
from gemmhub._base import device_types
from gemmhub.array_library import DeviceType, register_device_type
from gemmhub.cli import by_name


class Toy(Addresses):
    """Computes for one type of device alone."""

    def __init__(self, kind):
        super().__init__(name=f"toy-{kind}")
        self.kind = kind

    def probe(self):
        return Ready((Device(self.kind, 0), Device(self.kind, 1)))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(device_types, "_types", {"cuda": device_types.device_type("cuda")})


@pytest.fixture
def npu(torch):
    """The fake torch with a device type "npu", whose streams have an attribute of their own."""

    def stream(found):
        return types.SimpleNamespace(handle=found.cuda_stream, device=found.device, cuda_stream=found.cuda_stream)

    own = dict(vars(torch.cuda))
    for name in ("current_stream", "default_stream", "ExternalStream"):
        own[name] = lambda *a, made=own[name], **k: stream(made(*a, **k))
    torch.npu = types.SimpleNamespace(**own)
    torch._C._get_privateuse1_backend_name = lambda: "npu"
    return torch


def tensor(torch, machine, x, kind, index=0):
    memory = machine.allocate(x.nbytes, index)
    host = at(memory.ctypes.data, x.dtype, x.shape, x.strides, memory)
    host[...] = x
    return torch.Tensor(host, getattr(torch, x.dtype.name), torch.device(kind, index), memory)


def test_a_tensor_of_an_unknown_type_is_refused(npu, machine, rng):
    x = tensor(npu, machine, np.ones((3, 3), np.float32), "npu")
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"a tensor on npu:0; allowed: tensors on cpu, cuda\. .*the plugin"):
            gemmhub.matmul(x, x)


def test_a_backend_multiplies_on_a_registered_type(npu, machine, rng):
    register_device_type(DeviceType("npu", stream="handle"))
    backend = add(Toy("npu"), ("npu",))
    a, b = rng.integers(-4, 5, (2, 5, 5)).astype(np.float32)
    for index in (0, 1):
        x, y = (tensor(npu, machine, z, "npu", index) for z in (a, b))
        for handle in (0, 4711):  # the first call decides, the second is looked up
            with machine.streaming("torch", index, handle):
                c = gemmhub.matmul(x, y)
            assert c.device == npu.device("npu", index)
            assert np.array_equal(c.host, a @ b)
        gemmhub.matmul(x, y, stream=npu.npu.ExternalStream(42, npu.device("npu", index)))
    assert backend.streams == [0, 4711, 42] * 2
    assert {problem.device for problem in backend.problems} == {Device("npu", 0), Device("npu", 1)}
    assert gemmhub.explain(x, y).chosen == "toy-npu"
    assert gemmhub.plan(x, y)(x, y).device == npu.device("npu", 1)
    assert not backend.violations


def test_equal_indices_of_two_types_are_two_devices(npu, machine, rng):
    register_device_type(DeviceType("npu", stream="handle"))
    one, other = add(Toy("npu"), ("npu",)), add(Toy("cuda"), ("cuda",))
    a = rng.integers(-4, 5, (5, 5)).astype(np.float32)
    for _ in range(3):
        for kind in ("cuda", "npu"):
            x = tensor(npu, machine, a, kind)
            assert gemmhub.matmul(x, x).device == npu.device(kind, 0)
    assert (len(one.streams), len(other.streams)) == (3, 3)


def test_a_build_for_rocm_has_a_type_of_its_own(torch, machine, rng):
    torch.version.hip = "6.4"
    x = tensor(torch, machine, rng.integers(-4, 5, (5, 5)).astype(np.float32), "cuda")
    with pytest.raises(DeviceError, match="a tensor on cuda:0"):
        gemmhub.matmul(x, x)
    register_device_type(DeviceType("hip", torch="cuda", accepts=lambda torch: bool(torch.version.hip)))
    backend = add(Toy("hip"), ("hip",))
    for _ in range(2):
        assert np.array_equal(gemmhub.matmul(x, x).host, x.host @ x.host)
    assert len(backend.streams) == 2
    assert gemmhub.explain(x, x).problem.device == Device("hip", 0)


def test_the_command_line_reaches_a_registered_type(npu):
    register_device_type(DeviceType("npu", stream="handle"))
    found = {"is_available": lambda: True, "device_count": lambda: 2, "get_device_name": lambda index: f"Toy {index}"}
    vars(npu.npu).update(found)
    arrays = by_name.arrays_for("npu:1")
    assert (arrays.name, arrays.device, by_name.device_name(arrays)) == ("torch", Device("npu", 1), "Toy 1")
    (status,) = by_name.library_statuses()
    assert status.devices[-2:] == ("npu:0 Toy 0", "npu:1 Toy 1")
