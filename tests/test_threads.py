"""Products in many threads at once, of which each may be the first of its kind; free-threaded builds of Python, too."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gemmhub

THREADS, ROUNDS = 8, 20


def at_once(work):
    """The results of ``work(index)`` in threads that begin at the same time."""
    barrier = threading.Barrier(THREADS)

    def begin(index):
        barrier.wait(60)
        return work(index)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


@pytest.fixture
def eager():
    """Threads that change places as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("same", [True, False], ids=["one problem", "other problems"])
def test_first_products_at_once(same, eager, rng):
    """Discovery, decision and caches are entered by all threads; integers make every result exact."""
    for _ in range(ROUNDS):
        gemmhub.reload()
        shapes = rng.integers(1, 9, (1 if same else THREADS, 3))
        operands = [(rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))) for m, n, k in shapes]

        def multiply(index, operands=operands):
            a, b = operands[index % len(operands)]
            return np.array_equal(gemmhub.matmul(a, b), a @ b)

        assert all(at_once(multiply))


def test_products_beside_settings_and_reloads(eager, rng):
    """Half of the threads multiply with options, contexts and plans; the others empty all caches meanwhile."""
    a, b = rng.integers(-9, 9, (5, 6)).astype(np.float32), rng.integers(-9, 9, (6, 7)).astype(np.float32)
    bias = rng.integers(-9, 9, 7).astype(np.float32)

    def work(index):
        for step in range(ROUNDS):
            if index % 2:
                gemmhub.reload()
                assert gemmhub.explain(a, b).chosen
            else:
                with gemmhub.use(backend="numpy"):
                    assert np.array_equal(gemmhub.matmul(a, b, bias=bias), a @ b + bias)
                assert np.array_equal(gemmhub.plan(a, b)(a, b), a @ b)
                assert np.array_equal(
                    gemmhub.matmul(a[:, : step % 6 + 1], b[: step % 6 + 1]), a[:, : step % 6 + 1] @ b[: step % 6 + 1]
                )

    at_once(work)
