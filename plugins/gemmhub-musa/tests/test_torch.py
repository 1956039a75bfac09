"""torch_musa's tensors: taken by gemmhub's core as they are, on their current stream."""

from __future__ import annotations

import sys
import types

import musa_torch
import numpy as np
import pytest
from address_backend import Addresses
from gemmhub_musa import from_numpy

import gemmhub
from gemmhub._arrays.torch import tensors
from gemmhub._arrays.torch.operands import torch_arrays, torch_dtypes
from gemmhub.errors import DeviceError

RNG = np.random.default_rng(7)


@pytest.fixture
def torch(rt, monkeypatch):
    module = musa_torch.build()
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch_musa", types.ModuleType("torch_musa"))
    caches = (torch_dtypes, torch_arrays, tensors.increment_version)
    for cache in caches:
        cache.cache_clear()
    gemmhub.reload()
    yield module
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def backend(torch):
    return Addresses.listed()


def whole(*shape, dtype=np.float32):
    return RNG.integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("index", [0, 1])
def test_products_run_on_the_tensors_device_and_current_stream(torch, backend, rt, index):
    a, b = whole(5, 7), whole(7, 3)
    x, y = torch.tensor(a, index), torch.tensor(b, index)
    for stream in (0, 4711, 42):  # the first call decides, later ones are warm
        torch.streams[index] = stream
        c = gemmhub.matmul(x, y)
        assert type(c) is musa_torch.Tensor
        assert c.device == musa_torch.device("musa", index)
        assert np.array_equal(c.host, a @ b)
    assert backend.streams == [0, 4711, 42]
    assert rt.current_device == 0
    assert torch.synchronized == []


def test_with_out_a_plan_and_a_stream_of_the_callers(torch, backend, rt):
    a, b = whole(5, 7), whole(7, 3)
    x, y, out = torch.tensor(a), torch.tensor(b), torch.tensor(np.zeros((3, 5), np.float32)).T
    for _ in range(3):
        assert gemmhub.matmul(x, y, out=out) is out
    assert np.array_equal(out.host, a @ b)
    planned = gemmhub.plan(x, y, out=out)
    planned(x, y, out)
    stream = rt.stream_create()
    gemmhub.matmul(x, y, out=out, stream=stream)
    torch.streams[0] = 99
    gemmhub.matmul(x, y, out=out, stream=0)
    assert backend.streams == [0, 0, 0, 0, stream, 0]
    assert out._version == 6  # autograd counts every call
    assert torch.streams == {0: 99, 1: 0}
    rt.stream_destroy(stream)


def test_with_an_out_that_is_an_operand(torch, backend):
    a = whole(6, 6)
    x = torch.tensor(a)
    for _ in range(2):
        expected = x.host.copy() @ x.host.copy()
        gemmhub.matmul(x, x, out=x)
        assert np.array_equal(x.host, expected)


def test_tensors_and_arrays_do_not_mix(torch, backend):
    a = whole(4, 4)
    with pytest.raises(DeviceError, match="a is torch on musa:0, b is gemmhub_musa on musa:0"):
        gemmhub.matmul(torch.tensor(a), from_numpy(a))
    with pytest.raises(DeviceError, match="b is torch on musa:1"):
        gemmhub.matmul(torch.tensor(a), torch.tensor(a, 1))


def test_the_command_line_finds_the_devices(torch):
    from gemmhub.cli import by_name

    torch.musa.get_device_name = lambda index: "MTT S4000"
    (found,) = [status for status in by_name.library_statuses() if status.library == "torch"]
    assert found.devices == ("musa:0 MTT S4000", "musa:1 MTT S4000")
    assert by_name.arrays_for("musa:1").device == gemmhub.Device("musa", 1)
