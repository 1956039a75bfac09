"""Workspace: which call gets which block, what its work waits for, and when memory is allocated."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from gemmhub_musa.workspace import PER_THREAD_STREAM, RESERVED, Workspace

from gemmhub.errors import AllocationError

LIMIT = 10_000


class Runtime:
    """A runtime that records the calls of a workspace."""

    def __init__(self):
        self.sizes, self.waits, self.records, self.cleared, self.freed = [], [], [], [], []
        self.full, self.lost = False, False

    def malloc(self, nbytes):
        if self.full:
            raise AllocationError("full")
        self.sizes.append(nbytes)
        return 0x1000000 * len(self.sizes)

    def free(self, address):
        self.freed.append(address)

    def memset(self, address, value, nbytes):
        self.cleared.append((address, nbytes))

    def synchronize(self):
        pass

    def event_create(self):
        if self.lost:
            raise OSError("lost")
        return len(self.sizes)

    def event_record(self, event, stream):
        if self.lost:
            raise OSError("lost")
        self.records.append((event, stream))

    def stream_wait(self, stream, event):
        if self.lost:
            raise OSError("lost")
        self.waits.append((stream, event))


@pytest.fixture
def runtime():
    return Runtime()


@pytest.fixture
def workspace(runtime):
    return Workspace(runtime)


def test_calls_allocate_nothing_after_a_reservation(runtime, workspace):
    """Not on many streams one after the other, nor nested."""
    workspace.reserve(1000, LIMIT)
    assert runtime.sizes == [1000] * RESERVED
    runtime.full = True
    for stream in (0, 1, PER_THREAD_STREAM, 77, 78):
        with workspace.lease(stream, 1000) as outer, workspace.lease(stream, 500) as inner:
            assert inner.address != outer.address
    with pytest.raises(AllocationError), workspace.lease(0, 1), workspace.lease(0, 1), workspace.lease(0, 1):
        pass
    with workspace.lease(0, 1000), workspace.lease(0, 1000):  # all leases of the failed call have ended
        pass


def test_a_nested_call_shares_nothing(workspace):
    """On the same stream, in the same thread: between two launches of the outer call."""
    with workspace.lease(7, 100) as outer:
        with workspace.lease(7, 100) as inner:
            assert inner is not outer
        with workspace.lease(7, 100) as again:
            assert again is inner
    with workspace.lease(7, 100) as after:
        assert after in (outer, inner)


def test_the_next_call_waits_for_the_work_of_the_one_before(runtime, workspace):
    """Whatever its stream: the handle of a destroyed one may have come again."""
    for stream in (7, 7, 8):
        with workspace.lease(stream, 100) as block:
            pass
    assert runtime.records == [(block.event, 7), (block.event, 7), (block.event, 8)]
    assert runtime.waits == [(7, block.event), (8, block.event)]


def test_a_stream_keeps_its_block(runtime, workspace):
    """So that its work waits for no other stream, where there are blocks enough."""
    with workspace.lease(7, 100) as first, workspace.lease(8, 100) as second:
        pass
    for _ in range(2):
        with workspace.lease(7, 100) as block:
            assert block is first
        with workspace.lease(8, 100) as block:
            assert block is second
    assert {(stream, event) for stream, event in runtime.waits} == {(7, first.event), (8, second.event)}


def test_the_per_thread_stream_is_another_in_every_thread(runtime, workspace):
    found = []

    def work():
        with workspace.lease(PER_THREAD_STREAM, 100) as block:
            found.append(block)
            meet.wait(10)
        meet.wait(10)
        with workspace.lease(PER_THREAD_STREAM, 100) as again:
            found.append((block, again))

    meet = threading.Barrier(2)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is not found[1]
    assert all(block is again for block, again in found[2:])


def test_no_block_is_two_calls_at_once(workspace):
    """Many threads and nested calls; every lease writes its name and reads it again."""
    workspace.reserve(64, LIMIT)
    contents = {}

    def nested(depth, name):
        with workspace.lease(depth % 3, 64) as block:
            contents[block.address] = name, depth
            if depth:
                nested(depth - 1, name)
            assert contents[block.address] == (name, depth)

    def work(name):
        for _ in range(300):
            nested(2, name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(contents) <= 12


def test_an_outgrown_block_serves_small_calls(runtime, workspace):
    workspace.reserve(1000, LIMIT)
    workspace.reserve(1500, LIMIT)
    assert runtime.sizes == [1000, 1000, 2000, 2000]
    workspace.reserve(6000, LIMIT)
    workspace.reserve(6001, LIMIT)
    assert runtime.sizes[4:] == [6000, 6000, LIMIT, LIMIT]  # the limit holds for what exceeds the request
    workspace.reserve(800, LIMIT)
    assert len(runtime.sizes) == 8
    with workspace.lease(0, 800) as block:
        assert block.nbytes == 1000


def test_no_workspace_takes_none(runtime, workspace):
    workspace.reserve(0, LIMIT)
    assert runtime.sizes == []


def test_a_failed_allocation_changes_nothing(runtime, workspace):
    with workspace.lease(7, 100) as block:
        pass
    runtime.full = True
    with pytest.raises(AllocationError):
        workspace.reserve(200, LIMIT)
    with pytest.raises(AllocationError):
        workspace.lease(7, 200)
    with workspace.lease(7, 100) as again:
        assert again is block
    runtime.full, runtime.lost = False, True
    with pytest.raises(OSError, match="lost"):
        workspace.lease(8, 200)
    assert runtime.freed == [0x2000000]


def test_a_block_with_unfinished_work_is_not_used_again(runtime, workspace):
    lease = workspace.lease(7, 100)
    runtime.lost = True
    with pytest.raises(OSError, match="lost"), lease as block:
        pass
    runtime.lost = False
    with workspace.lease(7, 100) as other:
        assert other is not block
    runtime.lost = True
    with pytest.raises(OSError, match="lost"):
        workspace.lease(7, 100)
    runtime.lost = False
    with workspace.lease(7, 100) as again:
        assert again is other  # nothing was done with it


def test_a_failed_call_ends_its_lease(workspace):
    with pytest.raises(ZeroDivisionError), workspace.lease(7, 100) as block:
        raise ZeroDivisionError
    with workspace.lease(7, 100) as again:
        assert again is block


def test_zeros_are_cleared_once_and_shared(runtime, workspace):
    first = workspace.zeros(100)
    assert workspace.zeros(50) == first
    assert runtime.cleared == [(first, 100)]
    assert workspace.zeros(200) != first
