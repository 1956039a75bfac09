"""Caches of limited size: the oldest entry goes when a new one comes, and what repeats is not decided anew."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

import gemmhub
from gemmhub import api
from gemmhub._base.evicting import keep
from gemmhub._call import cache
from gemmhub._choice import decide
from gemmhub.numpy_backend.backend import NumpyBackend


def test_the_oldest_entry_goes() -> None:
    table: OrderedDict[int, int] = OrderedDict()
    for key in range(10):
        keep(table, key, -key, 4)
    assert table == {6: -6, 7: -7, 8: -8, 9: -9}
    keep(table, 7, 0, 4)  # a known key evicts nothing
    assert [*table] == [6, 7, 8, 9]


def test_many_threads_keep_the_limit() -> None:
    table: OrderedDict[int, int] = OrderedDict()
    errors: list[BaseException] = []

    def fill(first: int) -> None:
        try:
            for key in range(first, first + 3000):
                keep(table, key, key, 64)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=fill, args=(10_000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(table) <= 64 + len(threads)
    assert all(key == value for key, value in table.items())


def test_a_full_cache_of_calls_decides_nothing_twice_that_still_fits(monkeypatch) -> None:
    monkeypatch.setattr(cache, "_MAX_ENTRIES", 3 * 20)
    monkeypatch.setattr(NumpyBackend, "by_bucket", False)  # so that each size is decided by itself
    gemmhub.reload()
    asked = []
    original = decide.resolve
    monkeypatch.setattr(decide, "resolve", lambda problem, *rest: asked.append(problem.m) or original(problem, *rest))
    b = np.ones((3, 4), np.float32)

    def call(m: int) -> None:
        assert (gemmhub.matmul(np.ones((m, 3), np.float32), b) == 3).all()

    for m in range(1, 101):
        call(m)
    assert asked == [*range(1, 101)]
    for m in range(85, 101):  # the last ones are there
        call(m)
    assert len(asked) == 100
    call(1)  # the first one is not
    assert asked[100:] == [1]
    assert len(api._cache) <= 3 * 20
