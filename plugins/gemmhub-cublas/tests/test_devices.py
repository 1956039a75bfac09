"""Several devices: contexts, handles and memory belong to one each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from fakes import Arrays, FakeMemory, Home, bias, problem

from gemmhub.testing import Case, check

LIMIT = 64 * 2**20


@pytest.fixture
def home():
    home = Home(devices=2)
    yield home
    assert home.cuda.complaints == []
    assert home.cuda.stack == []


def multiply(home, backend, **changes):
    asked = problem(**changes)
    run, arrays = backend.prepare(asked, backend.offer(asked).first.name, LIMIT), Arrays(home, asked)
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b + (arrays.bias if "bias" in changes else 0))
    return home.lt.products[-1]


@pytest.mark.parametrize("changes", [{}, {"bias": bias()}, {"m": 64, "n": 64, "k": 512}], ids=str)
@pytest.mark.parametrize("index", [0, 1])
def test_each_on_its_own(home, index, changes):
    assert multiply(home, home.backend(), index=index, **changes)[0] == index


def test_workspaces(home):
    backend = home.backend()
    places = [multiply(home, backend, m=64, n=64, k=512, index=index)[2] for index in (0, 1, 0)]
    assert places[0] != places[1]
    assert places[2] == places[0]
    assert [device for _, _, device in home.cuda.allocated] == [0, 1]


def test_zeros(home):
    check(home.backend(), Case(m=8, n=8, k=0, c="row", beta=1), FakeMemory(home, 1))
    assert {device for _, _, device in home.cuda.allocated} == {1}


def test_whatever_device_the_thread_is_on(home):
    backend = home.backend()
    home.cuda.stack.append(0x1000)
    assert multiply(home, backend, index=1)[0] == 1
    assert home.cuda.stack.pop() == 0x1000


def test_other_rows_whatever_device_the_thread_is_on(home):
    backend = home.backend()
    first, asked = (problem(m, 16, 16, index=1, alpha_is_one=False) for m in (16, 17))
    kernel = backend.prepare(first, backend.offer(first).first.name, LIMIT)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(kernel.with_rows, 17).result()
    arrays = Arrays(home, asked)
    assert np.array_equal(arrays.run(replace(kernel, run=run), alpha=2), 2 * (arrays.a @ arrays.b))
    assert {product[0] for product in home.lt.products} == {1}


def test_a_thread_without_a_context(home):
    backend = home.backend()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(multiply, home, backend, index=1).result()[0] == 1


@pytest.mark.parametrize("context", [None, 0x2000], ids=["none", "another"])
@pytest.mark.parametrize("changes", [{}, {"bias": bias()}, {"m": 64, "n": 64, "k": 512}, {"k": 0}], ids=str)
def test_a_thread_whose_context_is_not_the_devices(changes, context):
    """With kernels that it prepared, and with one that was prepared, and has run, elsewhere."""
    home = Home()
    backend, asked = home.backend(), problem(**changes)
    run, arrays = backend.prepare(asked, backend.offer(asked).first.name, LIMIT), Arrays(home, asked)
    expected = arrays.run(run).copy()

    def work():
        home.cuda.stack.extend([context] if context else [])
        arrays.out[...] = 7
        assert np.array_equal(arrays.run(run), expected)
        assert multiply(home, backend, **changes)[0] == 0
        return home.cuda.stack

    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(work).result() == ([context] if context else [])
    assert home.cuda.complaints == []


def test_a_failure_leaves_the_threads_context_alone(home):
    backend = home.backend()
    home.lt.faults["cublasLtMatmul"] = 13
    with pytest.raises(RuntimeError, match="EXECUTION_FAILED"):
        multiply(home, backend, index=1)
    assert home.cuda.stack == []


def test_a_device_that_is_not_there(home):
    refusal = home.backend().offer(problem(index=2))
    assert "cuda:2" in refusal.reason
    assert "2 CUDA devices" in refusal.remedy
