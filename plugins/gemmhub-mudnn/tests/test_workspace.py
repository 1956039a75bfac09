"""Scratch memory: who gets which, and when it is allocated."""

from __future__ import annotations

import threading

import pytest
from gemmhub_mudnn.workspace import Workspace

from gemmhub.errors import AllocationError

LIMIT = 10_000


class Heap:
    def __init__(self):
        self.sizes = []
        self.full = False

    def allocate(self, nbytes):
        if self.full:
            raise AllocationError("full")
        self.sizes.append(nbytes)
        return 0x1000000 * len(self.sizes)


@pytest.fixture
def heap():
    return Heap()


@pytest.fixture
def workspace(heap):
    return Workspace(heap.allocate)


def test_after_prepare_a_call_allocates_nothing(heap, workspace):
    workspace.reserve(1000, LIMIT)
    assert heap.sizes == [1000]
    first = workspace.buffer(7, 1000, LIMIT)
    assert workspace.buffer(7, 500, LIMIT) is first
    assert heap.sizes == [1000]
    workspace.reserve(1500, LIMIT)  # the stream's buffer, and one for a stream to come
    assert heap.sizes == [1000, 2000, 1500]
    assert workspace.buffer(7, 1500, LIMIT).nbytes == 2000
    assert workspace.buffer(8, 1500, LIMIT).nbytes == 1500
    assert len(heap.sizes) == 3


def test_streams_share_nothing(workspace):
    streams = (0, 1, 99, 100)
    assert len({workspace.buffer(stream, 64, LIMIT).address for stream in streams}) == len(streams)


def test_the_per_thread_stream_is_another_in_every_thread(workspace):
    found = [workspace.buffer(2, 64, LIMIT).address]
    thread = threading.Thread(target=lambda: found.append(workspace.buffer(2, 64, LIMIT).address))
    thread.start()
    thread.join()
    assert found[0] != found[1]
    assert workspace.buffer(2, 64, LIMIT).address == found[0]


def test_no_workspace_takes_none(heap, workspace):
    workspace.reserve(0, LIMIT)
    assert workspace.buffer(7, 0, LIMIT).nbytes == 0
    assert heap.sizes == []


def test_growth_is_bounded(heap, workspace):
    workspace.buffer(7, 6000, LIMIT)
    assert workspace.buffer(7, 6001, LIMIT).nbytes == LIMIT


def test_more_than_was_said(heap, workspace):
    first = workspace.buffer(7, 1000, LIMIT)
    old = first.address
    address = workspace.more(7, 500, LIMIT)
    assert address != old
    assert heap.sizes == [1000, 2000]
    assert workspace.buffer(7, 1524, LIMIT).address == address  # both pieces fit from now on
    assert len(heap.sizes) == 2
    with pytest.raises(AllocationError, match="limit is 10000"):
        workspace.more(7, 9000, LIMIT)


def test_more_on_a_stream_without_any(heap, workspace):
    address = workspace.more(9, 100, LIMIT)
    assert workspace.buffer(9, 0, LIMIT).address == address


def test_a_failed_allocation_changes_nothing(heap, workspace):
    buffer = workspace.buffer(7, 100, LIMIT)
    before = (buffer.address, buffer.nbytes)
    heap.full = True
    with pytest.raises(AllocationError):
        workspace.buffer(7, 200, LIMIT)
    assert (buffer.address, buffer.nbytes) == before


def test_zeros_are_cleared_once_and_shared(heap, workspace):
    cleared = []

    def clear(*span):
        cleared.append(span)

    first = workspace.zeros(100, clear)
    assert workspace.zeros(50, clear) == first
    assert cleared == [(first, 100)]
    assert workspace.zeros(200, clear) != first
