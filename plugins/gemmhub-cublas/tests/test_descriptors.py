"""Objects of the library that products share: what a new size makes, how long they live, threads."""

from __future__ import annotations

import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from fakes import Arrays, bias, problem
from gemmhub_cublas import descriptors, lower
from gemmhub_cublas.lower import lowered

from gemmhub.problem import GemmProblem

LIMIT = 64 * 2**20


def prepared(backend, asked, candidate=None):
    return backend.prepare(asked, candidate or backend.offer(asked).first.name, LIMIT)


def right(arrays, kernel):
    arrays.out[...] = 0
    expected = arrays.a @ arrays.b
    return np.array_equal(arrays.run(kernel), expected if arrays.bias is None else expected + arrays.bias)


@pytest.mark.parametrize("options", [{}, {"batch": (3,)}, {"b": "col"}, {"dtype": "float16"}], ids=str)
def test_a_new_m_makes_two_layouts(home, options):
    """Those two are of a and of the result. The operation, the layout of b and the algorithm are there; one check is
    made, and the launch uses what was checked.
    """
    backend = home.backend()
    first = problem(64, 48, 32, **options)
    candidate = backend.offer(first).first.name
    prepared(backend, first, candidate)
    for m in (65, 70):
        home.lt.calls.clear()
        kernel = prepared(backend, problem(m, 48, 32, **options), candidate)
        made = [name for name in home.lt.calls if not name.startswith("cublasLtMatrixLayoutSetAttribute")]
        assert made == ["cublasLtMatrixLayoutCreate"] * 2 + ["cublasLtMatmulAlgoCheck"]
        assert candidate in kernel.description


@pytest.mark.parametrize("changes", [{"alpha_is_one": False}, {"alpha_is_one": False, "bias": bias()}], ids=str)
def test_a_new_m_with_another_form_asks_for_that_alone(home, changes):
    backend = home.backend()
    candidate = backend.offer(problem(64, 48, 32, **changes)).first.name
    home.lt.calls.clear()
    asked = problem(65, 48, 32, **changes)
    kernel = prepared(backend, asked, candidate)
    assert home.lt.calls.count("cublasLtMatmulAlgoGetHeuristic") == 1
    assert home.lt.calls.count("cublasLtMatmulAlgoCheck") == 1
    assert right(Arrays(home, asked), kernel)


@pytest.mark.parametrize(
    ("changes", "made", "checks"),
    [
        ({}, 2, 1), ({"dtype": "float16"}, 2, 1), ({"bias": bias()}, 2, 1),
        # The zeros for the library's B depend on m, too.
        ({"alpha_is_one": False}, 3, 2), ({"alpha_is_one": False, "bias": bias()}, 3, 2),
    ],
    ids=str,
)  # fmt: skip
def test_other_rows_make_two_layouts_and_one_check(home, monkeypatch, changes, made, checks):
    """One check for each form; nothing is lowered, and nothing is proposed."""
    kernel = prepared(home.backend(), problem(64, 48, 32, **changes))
    asked = problem(65, 48, 32, **changes)
    arrays = Arrays(home, asked)
    monkeypatch.setattr(lower, "lowered", None)
    monkeypatch.setattr(GemmProblem, "__init__", None)
    home.lt.calls.clear()
    run = kernel.with_rows(65)
    assert sorted(home.lt.calls) == ["cublasLtMatmulAlgoCheck"] * checks + ["cublasLtMatrixLayoutCreate"] * made
    assert right(arrays, replace(kernel, run=run))


def test_objects_live_as_long_as_the_backend_or_the_kernel(home):
    asked = problem(bias=bias(), alpha_is_one=False)
    backend = home.backend()
    kernel, arrays = prepared(backend, asked), Arrays(home, asked)
    gc.collect()
    # a, b, c and the result are 16 x 16, the zeros 4 x 16; an operation for each form.
    assert sorted(home.lt.alive) == ["desc"] * 2 + ["layout"] * 2
    assert right(arrays, kernel)
    assert sorted(home.lt.alive) == ["desc"] * 3 + ["layout"] * 2
    del backend
    gc.collect()
    assert right(arrays, kernel)
    del kernel
    gc.collect()
    assert home.lt.alive == []


def test_objects_are_bounded(home, monkeypatch):
    """An object that is no longer kept is destroyed, but not while a kernel uses it."""
    monkeypatch.setattr(descriptors, "KEPT", 4)
    backend = home.backend()
    first = problem(200, 64, 64)
    kernel, arrays = prepared(backend, first), Arrays(home, first)
    candidate = backend.offer(first).first.name
    for m in range(1, 60):
        prepared(backend, problem(m, 64, 64), candidate)
    gc.collect()
    # Each of 4 descriptors has at most 3 layouts, and so has the kernel.
    assert home.lt.alive.count("layout") <= 4 + 4 * 3 + 3
    assert right(arrays, kernel)


def test_sizes_that_share_an_operation_have_biases_of_their_own(home, monkeypatch):
    """In many threads, which prepare while others run, with hardly any object kept."""
    monkeypatch.setattr(descriptors, "KEPT", 2)
    backend = home.backend()
    candidate = backend.offer(problem(8, 12, 16, bias=bias())).first.name

    def work(seed):
        for round in range(5):
            asked = problem(8 + (seed + round) % 3, 12, 16, bias=bias())
            kernel, arrays = prepared(backend, asked, candidate), Arrays(home, asked, seed)
            if not all(right(arrays, kernel) for _ in range(4)):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_a_shared_operation_is_not_changed(home):
    """A bias is set in a leased operation alone: a shared one may be in use by any thread."""
    kind, given = home.lt.types["cublasLtMatmulDescSetAttribute"]
    set_attribute, changed = home.lt.cublasLtMatmulDescSetAttribute, []

    def noted(number, *rest):
        changed.append(number)
        return set_attribute(number, *rest)

    home.lt.cublasLtMatmulDescSetAttribute = ctypes.CFUNCTYPE(kind, *given)(noted)
    backend = home.backend()
    asked = problem(8, 12, 16, bias=bias())
    kernel, arrays = prepared(backend, asked), Arrays(home, asked)
    operations = [backend.machine.objects.descriptors(form).operation for form in lowered(asked).forms]
    changed.clear()
    for _ in range(3):
        assert right(arrays, kernel)
    assert changed
    assert not {operation.shared.handle for operation in operations} & set(changed)
