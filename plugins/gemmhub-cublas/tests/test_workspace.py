"""Scratch memory: sharing, growth, captures, and lack of memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fakes import Arrays, Home, problem
from gemmhub_cublas.choose import Chooser

from gemmhub.errors import AllocationError

SPLIT = problem(m=64, n=64, k=512)
"""A product for which the fake library proposes split-K, with this much workspace:"""
BYTES = 4 * 64 * 64 * 4
LIMIT = 64 * 2**20


@pytest.fixture
def home():
    return Home()


def kernel(backend, asked=SPLIT):
    return backend.prepare(asked, backend.offer(asked).first.name, LIMIT)


def places(home):
    return [workspace for _, _, workspace, _, _ in home.lt.products]


def test_a_stream_keeps_its_buffer(home):
    run, arrays = kernel(home.backend()), Arrays(home, SPLIT)
    for stream in (0, 7, 0, 7):
        arrays.run(run, stream=stream)
    first, second, *again = places(home)
    assert first != second
    assert again == [first, second]
    assert [nbytes for _, nbytes, _ in home.cuda.allocated] == [BYTES, BYTES]


def test_kernels_share_a_streams_buffer(home):
    backend = home.backend()
    small = problem(m=32, n=64, k=512)
    Arrays(home, SPLIT).run(kernel(backend))
    Arrays(home, small).run(kernel(backend, small))
    assert len(set(places(home))) == 1


def test_growth_keeps_the_old_buffer(home):
    backend = home.backend()
    small = problem(m=32, n=64, k=512)
    Arrays(home, small).run(kernel(backend, small))
    Arrays(home, SPLIT).run(kernel(backend))
    assert len(set(places(home))) == 2
    assert [nbytes for _, nbytes, _ in home.cuda.allocated] == [BYTES // 2, BYTES]


def test_no_workspace_no_questions(home):
    asked = problem(m=64, n=64, k=64)
    Arrays(home, asked).run(kernel(home.backend(), asked))
    assert "cuStreamGetCaptureInfo_v2" not in home.cuda.calls
    assert home.cuda.allocated == []


def test_first_call_during_a_capture(home):
    """It neither fails nor spoils the capture."""
    run, arrays = kernel(home.backend()), Arrays(home, SPLIT)
    home.cuda.captures[7] = 1
    arrays.run(run, stream=7)
    assert home.cuda.invalidated == set()
    assert home.cuda.complaints == []
    assert not hasattr(home.cuda._local, "mode") or home.cuda._local.mode == 0


def test_a_capture_has_buffers_of_its_own(home):
    """A replayed graph may run concurrently with eager work and with another graph, and has branches of its own."""
    run, arrays = kernel(home.backend()), Arrays(home, SPLIT)
    arrays.run(run, stream=7)
    for captures in ({7: 1, 8: 1}, {7: 2}):
        home.cuda.captures = captures
        for stream in captures:
            arrays.run(run, stream=stream)
            arrays.run(run, stream=stream)
    home.cuda.captures = {}
    arrays.run(run, stream=7)
    eager, one, one_again, branch, _, two, _, last = places(home)
    assert len({eager, one, branch, two}) == 4
    assert (one, eager) == (one_again, last)


def test_out_of_memory(home):
    """Noticed before the call, where another backend can still be chosen; on another stream in the call."""
    home.cuda.memory = BYTES - 1
    with pytest.raises(AllocationError, match=f"no {BYTES} bytes of workspace on cuda:0"):
        kernel(home.backend())
    home.cuda.memory = BYTES
    run, arrays = kernel(home.backend()), Arrays(home, SPLIT)
    arrays.run(run, stream=7)
    before = arrays.out.copy()
    with pytest.raises(AllocationError, match=f"no {BYTES} bytes of workspace on cuda:0"):
        arrays.run(run)
    assert (arrays.out == before).all()
    assert home.cuda.stack == []
    home.cuda.memory = BYTES
    assert (arrays.run(run) == arrays.a @ arrays.b).all()


def test_out_of_memory_for_zeros(home):
    asked = problem(alpha_is_one=False)
    backend = home.backend()
    home.cuda.memory = 10
    with pytest.raises(MemoryError):
        kernel(backend, asked)
    home.cuda.memory = 10**6
    kernel(backend, asked)


def test_zeros_are_shared_and_cleared_aside(home):
    backend = home.backend()
    home.cuda.captures[0] = 1  # the legacy stream is not involved
    for n in (64, 32, 16):
        kernel(backend, problem(m=16, n=n, alpha_is_one=False))
    assert [nbytes for _, nbytes, _ in home.cuda.allocated] == [16 * 64]
    assert home.cuda.complaints == []
    kernel(backend, problem(m=16, n=100, k=0))
    assert [nbytes for _, nbytes, _ in home.cuda.allocated] == [16 * 64, 16 * 128]


def test_zeros_for_many_sizes_are_few_allocations(home):
    """They are doubled, so that not each new number of rows allocates."""
    prepared = kernel(home.backend(), problem(m=100, n=64, alpha_is_one=False))
    for m in range(101, 1000):
        assert prepared.with_rows(m) is not None
    assert [nbytes for _, nbytes, _ in home.cuda.allocated] == [16 * size for size in (100, 200, 400, 800, 1600)]


def test_zeros_count_as_workspace(home):
    backend = home.backend()
    asked = problem(m=16, n=64, alpha_is_one=False)
    first = backend.offer(asked).first.name
    assert backend.prepare(asked, first, LIMIT).workspace_bytes == 16 * 64
    refusal = backend.prepare(asked, first, 16 * 64 - 1)
    assert refusal.reason == f"algorithm {first} needs 1024 bytes of workspace, 1023 are allowed"
    assert refusal.remedy == "raise the setting workspace_mib"


@pytest.mark.parametrize(("limit", "reason", "remedy"), [
    (2**20, "no algorithm in 1048320 bytes of workspace", "raise the setting workspace_mib"),
    (LIMIT + 256, "no algorithm for this on Fake H200", "pass contiguous operands"),
])  # fmt: skip
def test_no_algorithm_for_a_form_that_only_some_calls_need(home, monkeypatch, limit, reason, remedy):
    """Here that for alpha 0, beside 256 bytes of zeros."""
    backend = home.backend()
    asked = problem(alpha_is_one=False)
    first = backend.offer(asked).first.name
    monkeypatch.setattr(Chooser, "first", lambda self, limit: (None, 15))
    refusal = backend.prepare(asked, first, limit)
    assert reason in refusal.reason
    assert remedy in refusal.remedy


def test_threads_on_one_stream_share_no_workspace(home):
    """A product is several kernels: those of another thread may come between."""
    run = kernel(home.backend())
    home.lt.pause = 0.01
    sets = [Arrays(home, SPLIT, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda arrays: arrays.run(run, stream=7), sets))
    assert home.cuda.complaints == []
    assert all(np.array_equal(result, arrays.a @ arrays.b) for result, arrays in zip(results, sets))
    assert len(set(places(home))) <= 4


@pytest.mark.parametrize("stream", [0, 7])
def test_a_nested_call_has_a_workspace_of_its_own(home, stream):
    """A signal handler, a profiler or a finalizer may multiply between the library's kernels, on the same stream."""
    run, asked = kernel(home.backend()), SPLIT
    outer, inner = Arrays(home, asked), Arrays(home, asked, 1)
    results = []

    def interrupt():
        home.lt.interrupt = None
        results.append(inner.run(run, stream=stream).copy())

    for _ in range(3):
        home.lt.interrupt = interrupt
        assert np.array_equal(outer.run(run, stream=stream), outer.a @ outer.b)
    assert home.cuda.complaints == []
    assert all(np.array_equal(result, inner.a @ inner.b) for result in results)
    assert len(set(places(home))) == 2, "both are leased again and again"
    assert len(home.cuda.allocated) == 2


def test_threads_on_several_streams_do_not_wait(home):
    run = kernel(home.backend())
    home.lt.pause = 0.01
    sets = [Arrays(home, SPLIT, seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: sets[i].run(run, stream=10 + i), range(4)))
    assert home.cuda.complaints == []
    assert len(set(places(home))) == 4
