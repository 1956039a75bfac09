"""Scratch memory on NVIDIA devices: its owners, its growth, and its reuse after the end of a graph."""

from __future__ import annotations

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from gemmhub_nvidia.driver import Driver, Gpu
from gemmhub_nvidia.graph import GraphEnd
from gemmhub_nvidia.scratch import COUNTERS, Scratch
from gemmhub_nvidia.testing.fake_cuda import FakeCuda

from gemmhub.errors import AllocationError

LIMIT = 2**20


def place(scratch, stream, nbytes, limit=LIMIT):
    """The buffer of a lease that has ended."""
    with scratch.lease(stream, nbytes, limit) as lease:
        return lease.nbytes, lease.address


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
        return [place(scratch, stream, nbytes) for nbytes in sizes]
    finally:
        cuda.captures.clear()


def test_a_buffer_for_each_stream(scratch):
    first = place(scratch, 1, COUNTERS + 1000)
    assert place(scratch, 1, COUNTERS) == first
    assert place(scratch, 3, COUNTERS) != first
    size, address = first
    assert size == COUNTERS + 1000
    assert not np.ctypeslib.as_array((ctypes.c_uint8 * COUNTERS).from_address(address)).any()


def test_it_grows(cuda, scratch):
    """At least to twice its size, so that all outgrown ones are smaller; but not beyond the limit."""
    for nbytes in (1000, 1001, 4500, 4000):
        place(scratch, 1, nbytes, 5000)
    assert sizes(cuda) == [1000, 2000, 4500]


def test_a_thread_that_means_its_own_stream(cuda, scratch):
    def there():
        cuda.runtime.add(threading.get_ident())
        return place(scratch, 2, 1000)

    with ThreadPoolExecutor(1) as pool:
        assert place(scratch, 2, 1000) != pool.submit(there).result()


def test_leases_of_one_stream_at_once(cuda, scratch):
    """By nested calls or threads: none of them shares, and all are leased again."""
    with scratch.lease(1, 1000, LIMIT) as outer, scratch.lease(1, 900, LIMIT) as nested:
        assert sizes(cuda) == [1000, 900]
        with scratch.lease(3, 800, LIMIT) as other:
            places = {outer.address, nested.address, other.address}
    assert len(places) == 3
    with scratch.lease(1, 900, LIMIT) as first, scratch.lease(1, 900, LIMIT) as second:
        assert {first.address, second.address} == {outer.address, nested.address}
    assert len(cuda.allocated) == 3


def test_the_largest_that_is_free_serves(cuda, scratch):
    for nbytes in (1000, 4000, 500, 4000):
        place(scratch, 1, nbytes)
    assert sizes(cuda) == [1000, 4000]
    with scratch.lease(1, 100, LIMIT) as large, scratch.lease(1, 100, LIMIT) as small:
        assert (large.nbytes, small.nbytes) == (4000, 1000)


def test_threads_lease_at_random(cuda, scratch):
    """Each writes its number to its buffer and finds it there."""
    wrong = []

    def work(number):
        cuda.runtime.add(threading.get_ident())
        for turn in range(50):
            with scratch.lease(1, 64 + 8 * (turn % 5), LIMIT) as lease:
                word = ctypes.c_uint64.from_address(lease.address)
                word.value = number
                time.sleep(0)
                wrong.extend([turn] * (word.value != number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert wrong == []
    made = [address for address, _, _ in cuda.allocated]
    with ExitStack() as leases:
        free = [leases.enter_context(scratch.lease(1, 64, LIMIT)).address for _ in made]
    assert sorted(free) == sorted(made), "every buffer is free again"


def test_a_handle_that_another_stream_has(cuda, scratch):
    """The driver's numbers distinguish them; the earlier one's memory, which its last work may still use, is freed."""
    first = place(scratch, 7, 1000)
    assert place(scratch, 7, 1000) == first
    cuda.identities[7] = 1234
    second = place(scratch, 7, 1000)
    assert second != first
    assert place(scratch, 7, 1000) == second
    assert cuda.freed == [first[1]]
    assert sizes(cuda) == [1000]


def test_a_lease_while_the_handle_changes(cuda, scratch):
    """Leased memory is not freed."""
    with scratch.lease(7, 1000, LIMIT) as lease:
        cuda.identities[7] = 1234
        assert place(scratch, 7, 1000)[1] != lease.address
    assert cuda.freed == []


@pytest.mark.parametrize("without", ["missing", "failing"])
def test_a_driver_without_numbers_of_streams(cuda, without):
    if without == "missing":
        del cuda.cuStreamGetId
    else:
        cuda.faults["cuStreamGetId"] = 801
    scratch = Scratch(Gpu(Driver(cuda), 0))
    cuda.identities[7] = 1
    first = place(scratch, 7, 1000)
    cuda.identities[7] = 2
    assert place(scratch, 7, 1000) == first


def test_a_call_that_fails_between_its_kernels(cuda, scratch):
    """Its counters may not be zero: the buffer is not used again, and freed when the device is done with it."""
    with pytest.raises(KeyboardInterrupt), scratch.lease(7, 1000, LIMIT) as lease:
        raise KeyboardInterrupt
    assert cuda.freed == [lease.address]
    assert place(scratch, 7, 1000)[1] != lease.address


def test_a_captured_call_that_fails(cuda, scratch):
    """Its graph may be replayed."""
    cuda.captures[7] = 1
    with pytest.raises(KeyboardInterrupt), scratch.lease(7, 1000, LIMIT) as lease:
        raise KeyboardInterrupt
    assert cuda.freed == []
    assert place(scratch, 7, 1000)[1] != lease.address
    cuda.captures.clear()


def test_scratch_without_counters_serves_after_a_failure(cuda):
    scratch = Scratch(Gpu(Driver(cuda), 0), zeroed=False)
    with pytest.raises(KeyboardInterrupt), scratch.lease(7, 1000, LIMIT) as lease:
        raise KeyboardInterrupt
    assert place(scratch, 7, 1000)[1] == lease.address


def test_no_memory(cuda, scratch):
    cuda.memory = 999
    for ask in (scratch.reserve, lambda *given: scratch.lease(1, *given)):
        with pytest.raises(AllocationError, match="workspace"):
            ask(1000, LIMIT)
    cuda.memory = 1000
    assert place(scratch, 1, 1000)[0] == 1000


def test_memory_that_cannot_be_cleared_is_given_back(cuda, scratch):
    cuda.faults["cuMemsetD8Async"] = 719
    with pytest.raises(RuntimeError, match="launch failure"):
        scratch.lease(1, 1000, LIMIT)
    assert cuda.allocated == []


def test_reserved_memory_is_the_next_streams(cuda, scratch):
    """And it is at most twice as large as requested."""
    scratch.reserve(1000, LIMIT)
    scratch.reserve(800, LIMIT)
    assert sizes(cuda) == [1000]
    assert place(scratch, 1, 900) == (1000, cuda.allocated[0][0])
    scratch.reserve(1000, LIMIT)
    assert sizes(cuda) == [1000]
    for nbytes in range(1100, 4000, 100):
        scratch.reserve(nbytes, LIMIT)
    assert sizes(cuda) == [1000, 2000, 4000]
    place(scratch, 1, 3900)
    place(scratch, 3, 1500)
    assert sizes(cuda) == [1000, 2000, 4000]


def test_a_capture_has_separate_memory(cuda, scratch):
    eager = place(scratch, 7, 1000)
    (one,), (again, two) = captured(cuda, scratch, 1, 1000), captured(cuda, scratch, 2, 1000, 1000)
    assert again == two
    assert len({eager, one, two}) == 3
    assert place(scratch, 7, 1000) == eager


def test_branches_of_a_capture_have_separate_memory(cuda, scratch):
    cuda.captures = {7: 1, 8: 1}
    places = {place(scratch, stream, 1000) for stream in (7, 8)}
    cuda.captures = {}
    cuda.destroy(0x9000001)
    assert len(places) == 2
    assert {captured(cuda, scratch, n, 1000)[0] for n in (2, 3)} == places


def test_the_memory_of_an_ended_graph_is_reused(cuda, scratch):
    """Not before its end; outgrown buffers included; by a stream or another capture."""
    small, large = captured(cuda, scratch, 1, 1000, 3000)
    (other,) = captured(cuda, scratch, 2, 3000)
    assert len({small, large, other}) == 3
    cuda.destroy(0x9000001)
    assert captured(cuda, scratch, 3, 2500) == [large]
    assert place(scratch, 1, 700) == small
    assert captured(cuda, scratch, 4, 3000)[0] not in (small, large, other)
    assert len(cuda.allocated) == 4


def test_capturing_again_and_again(cuda, scratch):
    for number in range(1, 50):
        captured(cuda, scratch, number, 1000, 3000)
        cuda.destroy(0x9000000 + number)
    assert sizes(cuda) == [1000, 3000]
    assert len(scratch._owners) == 1
    assert len(scratch._ends) <= 1


@pytest.mark.parametrize("function", ["cuUserObjectCreate", "cuGraphRetainUserObject"])
def test_without_the_end_of_a_graph_its_memory_is_kept(cuda, scratch, function):
    """The memory is then never reused."""
    cuda.faults[function] = 801
    places = [captured(cuda, scratch, number, 1000)[0] for number in (1, 2, 3)]
    assert len(set(places)) == 3
    cuda.objects.clear()


def test_a_machine_without_semaphores(cuda, scratch, monkeypatch):
    monkeypatch.setattr("gemmhub_nvidia.scratch.GraphEnd", lambda: (_ for _ in ()).throw(OSError("none")))
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
