"""Racing on devices: on the caller's stream, by the device's clock, and never into a graph that is being captured."""

from __future__ import annotations

import numpy as np
import pytest
from address_backend import Addresses, add, small

import gemmhub
from gemmhub._choice import records


@pytest.fixture
def pair(library, backend, rng):
    return library.array(small(rng, (5, 6)), 1), library.array(small(rng, (6, 7)), 1)


@pytest.mark.parametrize("stream", [None, 0x40])
def test_on_the_callers_stream(library, backend, machine, pair, stream):
    rival = add(Addresses("rival"))
    with library.current(0x20, 1), gemmhub.use(tune="first"):
        result = gemmhub.matmul(*pair, stream=stream)
    wanted = 0x20 if stream is None else stream
    assert np.array_equal(result.host, pair[0].host @ pair[1].host)
    assert {(r.backend, r.candidate) for r in records.read(records.path()).records.values()} == {
        (name, candidate) for name in ("addresses", "rival") for candidate in ("first", "second")
    }
    assert set(backend.streams) == set(rival.streams) == {wanted}
    assert {entry[1] for entry in machine.log if entry[0] in ("record", "fill")} == {wanted}
    assert machine.device == 0
    raced = len(backend.calls) + len(rival.calls)
    gemmhub.matmul(*pair, stream=stream)
    assert len(backend.calls) + len(rival.calls) == raced + 1


def test_out_is_written_by_the_call_alone(library, backend, pair):
    out = library.array(np.zeros((5, 7), np.float32), 1)
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*pair, out=out)
    assert len(backend.calls) > 2
    assert [x[2] for x in backend.calls].count(out.host.ctypes.data) == 1


@pytest.mark.parametrize("stream", [None, 0x40])
def test_not_while_a_graph_is_captured(library, backend, machine, pair, stream):
    machine.capturing.add(0x20 if stream is None else stream)
    with library.current(0x20, 1), gemmhub.use(tune="first"):
        assert gemmhub.explain(*pair, stream=stream).race == "none: the stream is being captured into a graph"
        for call in (gemmhub.matmul, gemmhub.plan):
            with pytest.raises(gemmhub.BackendError, match=r"gemmhub\.plan\(\.\.\.\) of it, once before the capture"):
                call(*pair, stream=stream)
    assert not backend.calls
    assert not [entry for entry in machine.log if entry[0] in ("record", "synchronize")]


@pytest.mark.parametrize("stream", [None, 0x40])
def test_what_was_decided_before_is_captured(library, backend, machine, pair, stream):
    """A call of a known kind, and one of a known bucket: its kernel is prepared, nothing is asked."""
    backend.by_bucket = True
    a, b = (library.array(np.ones((98, 4), np.float32)), library.array(np.ones((4, 6), np.float32)))
    gemmhub.matmul(a, b)
    machine.capturing.add(0x20 if stream is None else stream)
    with library.current(0x20, 0):
        gemmhub.matmul(a, b, stream=stream)
        gemmhub.matmul(library.array(np.ones((97, 4), np.float32)), b, stream=stream)
        with pytest.raises(gemmhub.BackendError, match="captured"):
            gemmhub.matmul(library.array(np.ones((105, 4), np.float32)), b, stream=stream)


def test_a_full_device_races_nothing(library, backend, machine, pair):
    out = library.array(np.zeros((5, 7), np.float32), 1)
    machine.room = 0
    with gemmhub.use(tune="first"):
        gemmhub.matmul(*pair, out=out)
    assert len(backend.calls) == 1


def test_arrays_that_cannot_be_written(fakejax, cupy, backend, rng):
    """Each launch makes a result of its own."""
    x, y = small(rng, (3, 4)), small(rng, (4, 5))
    with gemmhub.use(tune="first"):
        result = gemmhub.matmul(fakejax.array(x), fakejax.array(y))
    assert np.array_equal(result.host, x @ y)
    assert len(backend.calls) > 2
