"""The pool: pieces, exceptions, nesting, forks, threads of the caller; memory and neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import threads
from gemmhub_cpu.backend import CpuBackend

import gemmhub
from gemmhub._call.describe import describe
from gemmhub._call.options import request

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 100, 1001])
@pytest.mark.parametrize("grain", [1, 16, 64, 5000])
def test_pieces_cover_everything_once(size: int, grain: int) -> None:
    seen = np.zeros(size, int)
    lock = threading.Lock()

    def work(start: int, stop: int) -> None:
        with lock:
            seen[start:stop] += 1

    threads.each(work, size, grain)
    assert (seen == 1).all()


def test_an_exception_of_a_piece_is_raised() -> None:
    def work(start: int, stop: int) -> None:
        raise RuntimeError(f"piece {start}")

    with pytest.raises(RuntimeError, match="piece"):
        threads.each(work, 1000, 10)


def test_pieces_within_pieces_do_not_deadlock() -> None:
    count = []

    def inner(start: int, stop: int) -> None:
        count.append(stop - start)

    threads.each(lambda start, stop: threads.each(inner, 100, 1), 64, 1)
    assert sum(count) % 100 == 0


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8])
def test_threads_of_the_caller(dtype: object) -> None:
    rng = np.random.default_rng()
    pairs = [tuple((rng.standard_normal((210, 210)) * 20).astype(dtype) for _ in range(2)) for _ in range(8)]
    expected = [gemmhub.matmul(a, b) for a, b in pairs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            results = list(pool.map(lambda pair: gemmhub.matmul(*pair), pairs))
            assert all(np.array_equal(x, y) for x, y in zip(results, expected))


_CHILD = """
import multiprocessing, sys
import numpy as np, gemmhub
a = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float16)
expected = gemmhub.matmul(a, a)          # starts the pool
def work(queue):
    queue.put(bool(np.array_equal(gemmhub.matmul(a, a), expected)))
context = multiprocessing.get_context("fork")
queue = context.Queue()
child = context.Process(target=work, args=(queue,))
child.start()
print(queue.get(timeout=60))
child.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_processes() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CHILD], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout.strip() == "True", run.stderr


_MEMORY = """
import resource, sys
import numpy as np, ml_dtypes, gemmhub
dtype = np.dtype(getattr(ml_dtypes, sys.argv[1], sys.argv[1]))
n = 4096
a = np.ones((n, n), dtype); b = np.ones((n, n), dtype)
out = np.full((n, n), 1, np.int32 if dtype == np.int8 else dtype)  # zeros would be mapped in the call
gemmhub.matmul(a[:256, :256], b[:256, :256])             # the pool, the BLAS and its buffers
x = np.ones((1024, 1024), np.float32); x @ x
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
gemmhub.matmul(a, b, out=out, backend="cpu")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss counts KiB on Linux")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_extra_memory_stays_within_the_workspace(dtype: str) -> None:
    """4096^3: whole converted copies would take 128 MiB or more; the limit is 64 MiB."""
    run = subprocess.run([sys.executable, "-c", _MEMORY, dtype], capture_output=True, text=True, check=True)
    print(dtype, run.stdout)
    assert int(run.stdout) / 1024 <= 64


def test_an_exception_leaves_no_thread_at_a_piece() -> None:
    """After it the operands belong to the caller: no other thread may still write to them."""
    at_work: list[int] = []
    caller = threading.get_ident()

    def work(start: int, stop: int) -> None:
        if threading.get_ident() == caller:
            while not at_work:  # another thread is at a piece
                time.sleep(0.001)
            raise KeyboardInterrupt
        at_work.append(start)
        time.sleep(0.05)
        at_work.remove(start)

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            threads.each(work, 1000, 10)
        assert not at_work


def test_a_second_interrupt_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    active, sleeps = [True], []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            raise KeyboardInterrupt
        if len(sleeps) == 5:
            active.clear()

    monkeypatch.setattr(threads.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        threads._await_none(active)
    assert len(sleeps) == 5


def test_what_interrupts_the_calling_thread_runs_alone() -> None:
    """It would wait for ever for a lock of the pool that its own thread holds."""
    ran = []

    def interrupt(*_: object) -> None:
        sys.setprofile(None)
        threads.each(lambda start, stop: ran.append(threading.get_ident()), 1000, 10)
        sys.setprofile(interrupt)

    done = np.zeros(1000, int)

    def work(start: int, stop: int) -> None:
        done[start:stop] += 1

    def outer() -> None:
        sys.setprofile(interrupt)
        try:
            threads.each(work, 1000, 10)
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=outer, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "deadlock"
    assert (done == 1).all()
    assert set(ran) >= {thread.ident}


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.int8])
def test_a_product_interrupted_by_products(dtype: object) -> None:
    """In the middle of a product there are others on its thread, and all are right."""
    rng = np.random.default_rng()
    backend = CpuBackend(by_cost=False)
    outer, inner = [], []
    for size, runs in ((190, outer), (20, inner)):
        a, b = ((rng.standard_normal((size, size)) * 20).astype(dtype) for _ in range(2))
        problem = describe(a, b, None, request({})).problem
        for candidate in backend.offer(problem).names:
            out = np.empty((size, 2 * size), problem.out.dtype)[:, ::2]  # finished in scratch memory
            kernel = backend.prepare(problem, candidate, 1 << 24)
            call = partial(kernel.run, a, b, out, 1, 0, None)
            call()
            runs.append((call, out, out.copy()))
    for call, out, expected in outer:
        for nested, nested_out, nested_expected in inner:
            out[...] = 0
            interrupted(call, nested)
            assert np.array_equal(out, expected)
            assert np.array_equal(nested_out, nested_expected)


def interrupted(outer: Callable[[], None], inner: Callable[[], None]) -> None:
    """``outer()``, with ``inner()`` at every third event of a profiler."""
    count = 0

    def profile(*_: object) -> None:
        nonlocal count
        count += 1
        if count % 3 == 0:
            inner()

    sys.setprofile(profile)
    try:
        outer()
    finally:
        sys.setprofile(None)


_AT_EXIT = """
import atexit
import numpy as np, gemmhub
a = np.ones((1500, 1500), np.float16)
gemmhub.matmul(a[:64, :64], a[:64, :64])
atexit.register(lambda: print(gemmhub.matmul(a, a, backend="cpu")[0, 0]))
"""


def test_a_product_at_exit() -> None:
    """Then no thread can be started any more."""
    run = subprocess.run([sys.executable, "-c", _AT_EXIT], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.strip() == "1.5e+03", run.stderr
