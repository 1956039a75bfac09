"""Products with new numbers of rows: of a known family and bucket, they are neither described nor decided."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from address_backend import small

import gemmhub
from gemmhub._choice import records
from gemmhub.buckets import end


@pytest.fixture
def arrays(library_of):
    return library_of("torch")


@pytest.fixture
def rows(backend):
    """The backend, which promises that its kernels give functions for other rows."""
    backend.by_bucket = backend.by_rows = True
    return backend


def product(arrays, a, b, **options):
    return gemmhub.matmul(arrays.array(a), b, **options).host


def test_a_new_number_of_rows_of_a_bucket_asks_for_its_function_alone(arrays, rows, rng):
    right = small(rng, (4, 6))
    b = arrays.array(right)
    for m in (98, 97, 100, 99, 97):
        a = small(rng, (m, 4))
        before = rows.questions
        assert np.array_equal(product(arrays, a, b), a @ right)
        assert (rows.questions > before) == (m == 98)
    assert rows.rows == [97, 100, 99]  # once each
    before = rows.questions
    a = small(rng, (101, 4))
    assert np.array_equal(product(arrays, a, b), a @ right)
    assert rows.questions > before  # another bucket
    assert [problem.m for problem in rows.problems] == [98, 101]


@pytest.mark.parametrize("m", [m + d for m in (31, 33, 47, 64, 128, 1000) for d in (-1, 0, 1)])
def test_every_number_beside_an_edge_is_right_whichever_came_first(arrays, rows, rng, m):
    right = small(rng, (3, 5))
    b = arrays.array(right)
    for size in (m, m + 1, max(1, m - 1), m + 2, m):
        a = small(rng, (size, 3))
        assert np.array_equal(product(arrays, a, b), a @ right)
    assert all(any(end(x) == end(problem.m) for problem in rows.problems) for x in rows.rows)


def test_stacks_that_are_one_matrix_are_of_its_family(arrays, rows, rng):
    right = small(rng, (4, 6))
    b = arrays.array(right)
    shapes = [(98, 4), (1, 97, 4), (2, 50, 4), (5, 5, 4, 4), (99, 1, 4)]
    for shape in shapes:
        a = small(rng, shape)
        assert np.array_equal(product(arrays, a, b), a @ right)
    assert (len(rows.problems), rows.rows) == (1, [97, 100, 99])


def test_what_differs_in_more_than_rows_is_decided(arrays, rows, rng):
    right = small(rng, (4, 6))
    b, other = arrays.array(right), arrays.array(small(rng, (4, 8)))
    a = small(rng, (98, 4))
    gemmhub.matmul(arrays.array(a), b)
    wide = arrays.array(small(rng, (97, 8)))
    tall = arrays.array(np.asfortranarray(small(rng, (97, 4))))
    away = arrays.array(small(rng, (97, 4)), offset=4)
    out = arrays.array(np.zeros((97, 6), np.float32))
    for options in (
        {"b": other}, {"a": wide[:, :4]}, {"a": tall}, {"a": away}, {"b": arrays.array(np.asfortranarray(right))},
        {"a": arrays.array(small(rng, (97, 4)), 1), "b": arrays.array(right, 1)}, {"activation": "relu"}, {"alpha": 3},
        {"bias": arrays.array(small(rng, 6))}, {"out_dtype": np.float64}, {"out": out},
        {"c": arrays.array(small(rng, (97, 6))), "beta": 1}, {"reproducible": "run"},
    ):  # fmt: skip
        before = len(rows.problems)
        left, second = options.pop("a", arrays.array(small(rng, (97, 4)))), options.pop("b", b)
        got = gemmhub.matmul(left, second, **options)
        assert len(rows.problems) == before + 1, options
        wanted = options.get("alpha", 1) * (left.host @ second.host)
        for name in ("bias", "c"):
            wanted = wanted + (options[name].host if name in options else 0)
        assert np.array_equal(got.host, wanted), options
    assert rows.rows == []


@pytest.mark.parametrize(
    "options", [{"bias": 6}, {"bias": 6, "activation": "relu"}, {"alpha": 2}, {"alpha": 3, "bias": 6}]
)
def test_options_are_part_of_the_family(arrays, rows, rng, options):
    right = small(rng, (4, 6))
    b = arrays.array(right)
    for m, alpha in ((98, 2), (97, 2), (99, 3), (100, 4)):
        a = small(rng, (m, 4)) - 1
        given = dict(options)
        if "alpha" in given:
            given["alpha"] = alpha
        wanted = given.get("alpha", 1) * (a @ right)
        if "bias" in given:
            bias = small(rng, 6)
            wanted = wanted + bias
            given["bias"] = arrays.array(bias)
        got = product(arrays, a, b, **given)
        assert np.array_equal(got, np.maximum(wanted, 0) if "activation" in given else wanted)
    assert rows.rows == [97, 99, 100]


def test_what_the_kernel_does_not_run_is_decided_by_itself(arrays, rows, rng):
    rows.unable = {97, 99}
    right = small(rng, (4, 6))
    b = arrays.array(right)
    for m in (98, 97, 99, 100):
        a = small(rng, (m, 4))
        assert np.array_equal(product(arrays, a, b), a @ right)
    assert [problem.m for problem in rows.problems] == [98, 97, 99]


def test_a_record_decides_its_size(arrays, rows, rng):
    b, a = arrays.array(small(rng, (4, 6))), arrays.array(small(rng, (97, 4)))
    gemmhub.tune(a, b)
    assert (97, 6, 4) in records.sizes()
    gemmhub.matmul(arrays.array(small(rng, (98, 4))), b)
    rows.rows.clear()
    gemmhub.matmul(a, b)
    assert rows.rows == []


def test_tuning_forgets_families(arrays, rows, rng):
    b = arrays.array(small(rng, (4, 6)))
    gemmhub.matmul(arrays.array(small(rng, (98, 4))), b)
    gemmhub.tune(arrays.array(small(rng, (50, 4))), b)
    before = rows.questions
    gemmhub.matmul(arrays.array(small(rng, (97, 4))), b)
    assert rows.questions > before


def test_settings_are_part_of_the_family(arrays, rows, rng):
    right = small(rng, (4, 6))
    b = arrays.array(right)
    gemmhub.matmul(arrays.array(small(rng, (98, 4))), b)
    with gemmhub.use(precision="tf32"):
        gemmhub.matmul(arrays.array(small(rng, (97, 4))), b)
    assert [problem.precision for problem in rows.problems] == ["ieee", "tf32"]


def test_an_error_of_the_kernel_is_the_callers(arrays, rows, rng):
    b = arrays.array(small(rng, (4, 6)))
    gemmhub.matmul(arrays.array(small(rng, (98, 4))), b)
    rows.broken = RuntimeError("launch failed")
    with pytest.raises(gemmhub.KernelError, match="launch failed"):
        gemmhub.matmul(arrays.array(small(rng, (97, 4))), b)


def test_empty_operands_have_no_family(arrays, rows, rng):
    b = arrays.array(small(rng, (4, 6)))
    for m in (40, 0, 39):
        assert gemmhub.matmul(arrays.array(small(rng, (m, 4))), b).host.shape == (m, 6)
    none = arrays.array(np.zeros((0, 6), np.float32))
    for m in (40, 39):
        assert not gemmhub.matmul(arrays.array(np.zeros((m, 0), np.float32)), none).host.any()


def test_many_threads_bring_new_rows(arrays, rows, machine, rng):
    right = small(rng, (4, 6))
    b = arrays.array(right)
    start = threading.Barrier(4)

    def work(seed):
        own = np.random.default_rng(seed)
        start.wait()
        wrong = 0
        for _ in range(100):
            a = small(own, (int(own.integers(1, 300)), 4))
            wrong += not np.array_equal(product(arrays, a, b), a @ right)
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) == 0


@pytest.mark.parametrize("where", ["host", "another device"])
def test_a_bias_elsewhere_is_refused_after_the_family_was_met(arrays, library_of, rows, machine, torch, rng, where):
    b = arrays.array(small(rng, (4, 6)))
    gemmhub.matmul(arrays.array(small(rng, (98, 4))), b, bias=arrays.array(small(rng, 6)))
    elsewhere = small(rng, 6) if where == "host" else arrays.array(small(rng, 6), 1)
    with pytest.raises(gemmhub.DeviceError):
        gemmhub.matmul(arrays.array(small(rng, (97, 4))), b, bias=elsewhere)


@pytest.mark.parametrize("negated", ["a", "b", "bias"])
def test_what_is_negated_lazily_is_refused_after_the_family_was_met(arrays, rows, rng, negated):
    given = {"a": arrays.array(small(rng, (97, 4))), "b": arrays.array(small(rng, (4, 6)))}
    given["bias"] = arrays.array(small(rng, 6))
    gemmhub.matmul(arrays.array(small(rng, (98, 4))), given["b"], bias=given["bias"])
    given[negated].is_neg = lambda: True
    with pytest.raises(gemmhub.InputError, match="negated"):
        gemmhub.matmul(given["a"], given["b"], bias=given["bias"])
    assert rows.rows == []
