"""The pool: pieces, exceptions, nesting, forks, threads of the caller; memory and neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import threads

import gemmhub

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
