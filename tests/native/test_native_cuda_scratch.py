"""Scratch memory of plugins for NVIDIA devices: whose it is, when it grows, and who gets it when a graph is gone."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gemmhub.errors import AllocationError
from gemmhub.native.cuda import Driver, Gpu
from gemmhub.native.cuda_graph import GraphEnd
from gemmhub.native.cuda_scratch import COUNTERS, Scratch
from gemmhub.testing.fake_cuda import FakeCuda

LIMIT = 2**20


@pytest.fixture
def cuda():
    fake = FakeCuda()
    yield fake
    assert fake.complaints == []
    assert fake.stack == []
    assert fake.objects == {}, "references that no graph has"


@pytest.fixture
def scratch(cuda):
    return Scratch(Gpu(Driver(cuda), 0))


def sizes(cuda):
    return [nbytes for _, nbytes, _ in cuda.allocated]


def captured(cuda, scratch, number, *sizes, stream=7):
    """The places that a capture gets for these sizes, one after the other."""
    cuda.captures[stream] = number
    try:
        return [scratch.buffer(stream, nbytes, LIMIT).place for nbytes in sizes]
    finally:
        cuda.captures.clear()


def test_a_buffer_for_each_stream(scratch):
    first = scratch.buffer(1, COUNTERS + 1000, LIMIT)
    assert scratch.buffer(1, COUNTERS, LIMIT) is first
    assert scratch.buffer(3, COUNTERS, LIMIT).place != first.place
    size, address = first.place
    assert size == COUNTERS + 1000
    assert not np.ctypeslib.as_array((ctypes.c_uint8 * COUNTERS).from_address(address)).any()


def test_it_grows(cuda, scratch):
    """At least to twice its size, so that all outgrown ones are smaller; but not beyond the limit."""
    for nbytes in (1000, 1001, 4500, 4000):
        scratch.buffer(1, nbytes, 5000)
    assert sizes(cuda) == [1000, 2000, 4500]


def test_a_thread_that_means_its_own_stream(scratch):
    here = scratch.buffer(2, 1000, LIMIT)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(scratch.buffer, 2, 1000, LIMIT).result()
    assert here.place != there.place


def test_no_memory(cuda, scratch):
    cuda.memory = 999
    for ask in (scratch.reserve, lambda *given: scratch.buffer(1, *given)):
        with pytest.raises(AllocationError, match="workspace"):
            ask(1000, LIMIT)
    cuda.memory = 1000
    assert scratch.buffer(1, 1000, LIMIT).place[0] == 1000


def test_memory_that_cannot_be_cleared_is_given_back(cuda, scratch):
    cuda.faults["cuMemsetD8Async"] = 719
    with pytest.raises(RuntimeError, match="launch failure"):
        scratch.buffer(1, 1000, LIMIT)
    assert cuda.allocated == []


def test_reserved_memory_is_the_next_streams(cuda, scratch):
    """And there is no more of it than twice what was asked for."""
    scratch.reserve(1000, LIMIT)
    scratch.reserve(800, LIMIT)
    assert sizes(cuda) == [1000]
    assert scratch.buffer(1, 900, LIMIT).place == (1000, cuda.allocated[0][0])
    scratch.reserve(1000, LIMIT)
    assert sizes(cuda) == [1000]
    for nbytes in range(1100, 4000, 100):
        scratch.reserve(nbytes, LIMIT)
    assert sizes(cuda) == [1000, 2000, 4000]
    scratch.buffer(1, 3900, LIMIT)
    scratch.buffer(3, 1500, LIMIT)
    assert sizes(cuda) == [1000, 2000, 4000]


def test_a_capture_has_memory_of_its_own(cuda, scratch):
    eager = scratch.buffer(7, 1000, LIMIT).place
    (one,), (again, two) = captured(cuda, scratch, 1, 1000), captured(cuda, scratch, 2, 1000, 1000)
    assert again == two
    assert len({eager, one, two}) == 3
    assert scratch.buffer(7, 1000, LIMIT).place == eager


def test_branches_of_a_capture_have_memory_of_their_own(cuda, scratch):
    cuda.captures = {7: 1, 8: 1}
    places = {scratch.buffer(stream, 1000, LIMIT).place for stream in (7, 8)}
    cuda.captures = {}
    cuda.destroy(0x9000001)
    assert len(places) == 2
    assert {captured(cuda, scratch, n, 1000)[0] for n in (2, 3)} == places


def test_what_a_graph_had_others_get(cuda, scratch):
    """Not before it is gone; what its buffer has outgrown, too; by a stream or another capture."""
    small, large = captured(cuda, scratch, 1, 1000, 3000)
    (other,) = captured(cuda, scratch, 2, 3000)
    assert len({small, large, other}) == 3
    cuda.destroy(0x9000001)
    assert captured(cuda, scratch, 3, 2500) == [large]
    assert scratch.buffer(1, 700, LIMIT).place == small
    assert captured(cuda, scratch, 4, 3000)[0] not in (small, large, other)
    assert len(cuda.allocated) == 4


def test_capturing_again_and_again(cuda, scratch):
    for number in range(1, 50):
        captured(cuda, scratch, number, 1000, 3000)
        cuda.destroy(0x9000000 + number)
    assert sizes(cuda) == [1000, 3000]
    assert len(scratch._buffers) == 1
    assert len(scratch._ends) <= 1


@pytest.mark.parametrize("function", ["cuUserObjectCreate", "cuGraphRetainUserObject"])
def test_nobody_tells_of_a_graphs_end(cuda, scratch, function):
    """Then what it has stays with it."""
    cuda.faults[function] = 801
    places = [captured(cuda, scratch, number, 1000)[0] for number in (1, 2, 3)]
    assert len(set(places)) == 3
    cuda.objects.clear()


def test_a_machine_without_semaphores(cuda, scratch, monkeypatch):
    monkeypatch.setattr("gemmhub.native.cuda_scratch.GraphEnd", lambda: (_ for _ in ()).throw(OSError("none")))
    assert len({captured(cuda, scratch, number, 1000)[0] for number in (1, 2)}) == 2


def test_the_end_comes_on_any_thread(cuda):
    driver = Driver(cuda)
    end = GraphEnd()
    for number in (1, 2):
        cuda.captures[7] = number
        assert end.watch(driver, cuda.graph(7))
        cuda.captures.clear()
        assert not end.come()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(cuda.destroy, 0x9000000 + number).result()
        assert end.come()
        assert not end.come()
