"""Which stream a product runs on, and what waits for what. The host never waits."""

from __future__ import annotations

import types

import numpy as np
import pytest
from address_backend import small

import gemmhub
from gemmhub.errors import InputError

F32 = np.dtype(np.float32)


@pytest.fixture
def pair(library, backend, rng):
    return library.array(small(rng, (3, 4))), library.array(small(rng, (4, 5)))


@pytest.fixture(autouse=True)
def _the_host_waits_for_nothing(machine):
    yield
    assert not machine.done("synchronize")


@pytest.mark.parametrize("device", [0, 1])
def test_the_current_stream_of_the_operands_device(library, backend, machine, device):
    """Even where another device is current, and in calls that were seen before."""
    a, b = library.array(np.ones((3, 4), F32), device), library.array(np.ones((4, 5), F32), device)
    out = library.array(np.zeros((3, 5), F32), device)
    planned = gemmhub.plan(a, b)
    calls = [gemmhub.matmul, lambda a, b: gemmhub.matmul(a, b, out=out), planned, lambda a, b: planned(a, b, out)]
    for call in [*calls, *calls, *calls]:
        for current in (0, 1):
            with library.current(0x10, device), library.current(0x20, 1 - device), machine.on(current):
                c = call(a, b)
                assert machine.device == current
            assert library.device(c) == device
            assert np.all(c.host == 4)
            assert backend.streams[-1] == 0x10
        call(a, b)
        assert backend.streams[-1] == 0


@pytest.mark.parametrize("kind", ["int", "own", "protocol", "other library's"])
@pytest.mark.parametrize("handle", [0, 1, 2, 0x30])
def test_a_stream_that_is_given(library, library_of, backend, machine, pair, kind, handle):
    a, b = pair
    stream = {
        "int": lambda: handle,
        "own": lambda: library.stream(handle),
        "protocol": lambda: types.SimpleNamespace(__cuda_stream__=lambda: (0, handle)),
        "other library's": lambda: library_of({"cupy": "torch", "torch": "cupy"}[library.name]).stream(handle),
    }[kind]()
    torch_object = (kind == "own" and library.name == "torch") or (kind == "other library's" and library.name == "cupy")
    wanted = 0x9001 if torch_object and handle == 0 else handle  # see the fake's ExternalStream
    planned, planned_there = gemmhub.plan(a, b), gemmhub.plan(a, b, stream=stream)
    overlapping = library.array(np.ones((4, 4), F32))
    with library.current(0x77):
        for _ in range(3):
            for call in (
                lambda: gemmhub.matmul(a, b, stream=stream),
                lambda: planned(a, b, stream=stream),
                lambda: planned_there(a, b),
            ):
                c = call()
                assert backend.streams[-1] == wanted
                assert np.array_equal(c.host, a.host @ b.host)
            planned_there(a, b, stream=5)
            assert backend.streams[-1] == 5
            gemmhub.matmul(a, b)
            assert backend.streams[-1] == 0x77
            machine.log.clear()
            gemmhub.matmul(overlapping, overlapping, out=overlapping, stream=stream)
            assert machine.log == [("copy", wanted)]
            assert library.machine.streams(library.name)[0] == 0x77


@pytest.mark.parametrize("handle", [0, 0x30])
def test_a_stream_on_a_device_that_is_not_current(library, backend, machine, handle):
    a = library.array(np.ones((4, 4), F32), device=1)
    with library.current(0x77, 1):
        for _ in range(3):
            assert np.all(gemmhub.matmul(a, a, stream=handle).host == 4)
            assert backend.streams[-1] == handle
    a.host[...] = 1
    gemmhub.matmul(a, a, out=a, stream=handle)
    assert machine.done("copy") == [("copy", handle)]
    assert machine.device == 0


@pytest.mark.parametrize(
    "stream",
    [-1, 2**64, 1.0, "0", True, b"", object(), int, types.SimpleNamespace(ptr="x"),
     types.SimpleNamespace(__cuda_stream__=lambda: 1), types.SimpleNamespace(__cuda_stream__=3), [0]],
    ids=lambda x: f"{x!r:.12}",
)  # fmt: skip
def test_what_is_no_stream(library, backend, pair, stream):
    a, b = pair
    planned = gemmhub.plan(a, b)
    for call in (
        lambda: gemmhub.matmul(a, b, stream=stream),
        lambda: gemmhub.explain(a, b, stream=stream),
        lambda: gemmhub.plan(a, b, stream=stream),
        lambda: planned(a, b, stream=stream),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.argument == "stream"
    assert not backend.streams


def test_a_stream_whose_property_raises(library, backend, pair):
    class Lost:
        @property
        def __cuda_stream__(self):
            raise RuntimeError("context lost")

    with pytest.raises(InputError, match="stream"):
        gemmhub.matmul(*pair, stream=Lost())


# Streams of producers that announce them


def test_dlpack_producers_learn_the_stream(fakejax, cupy, machine, backend):
    a, b = fakejax.array(np.ones((3, 4), F32)), fakejax.array(np.ones((4, 5), F32))
    with machine.streaming("cupy", 0, 0x50):
        gemmhub.matmul(a, b)
    assert set(fakejax.asked) == {0x50}
    gemmhub.matmul(a, b, stream=0x60)
    assert fakejax.asked[-2:] == [0x60, 0x60]
    assert backend.streams == [0x50, 0x60]


@pytest.mark.parametrize("carrier", ["cupy", "torch"])
@pytest.mark.parametrize(("announced", "handle"), [(1, 0), (2, 2), (0x90, 0x90)])
def test_the_interfaces_stream_is_waited_for_on_the_device(
    fakenumba, request, machine, backend, carrier, announced, handle
):
    request.getfixturevalue(carrier)
    a, b = fakenumba.array(np.ones((3, 4), F32)), fakenumba.array(np.ones((4, 5), F32))
    a.stream = announced
    for _ in range(2):
        machine.log.clear()
        with machine.streaming(carrier, 0, 0x50):
            assert np.all(gemmhub.matmul(a, b).host == 4)
        assert set(machine.done("wait")) == {("wait", 0x50, handle)}
        machine.log.clear()
        gemmhub.matmul(a, b, stream=0x60)
        assert ("wait", 0x60, handle) in machine.log
        with machine.streaming(carrier, 0, handle):
            machine.log.clear()
            gemmhub.matmul(a, b)
            assert not machine.log
    a.stream = None
    machine.log.clear()
    gemmhub.matmul(a, b)
    assert not machine.log
