"""From gemmhub's functions down to the libraries: arrays on a device in, arrays on a device out."""

from __future__ import annotations

import numpy as np
import pytest
from gemmhub_musa import Array, from_numpy, sdk

import gemmhub
from gemmhub.errors import NoBackendError


@pytest.fixture(params=["mublas", "mublaslt"])
def backend(request, home):
    if request.param == "mublaslt" and not sdk.find().has_header("mublasLt.h"):
        pytest.skip("this SDK has no muBLASLt")
    return request.param


def whole(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products(backend, dtype):
    a, b = whole(17, 20, dtype=dtype), whole(20, 13, dtype=dtype, seed=1)
    got = gemmhub.matmul(from_numpy(a), from_numpy(b), backend=backend)
    assert isinstance(got, Array)
    assert np.array_equal(got.numpy(), (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype))


def test_transposed_views_are_not_copied(backend):
    a, b = whole(20, 17), whole(13, 20, seed=1)
    x, y = from_numpy(a), from_numpy(b)
    assert gemmhub.explain(x.T, y.T, backend=backend)[backend].copies == ()
    assert np.array_equal(gemmhub.matmul(x.T, y.T, backend=backend).numpy(), a.T @ b.T)


def test_addends(backend):
    a, b, c = whole(6, 5), whole(5, 7, seed=1), whole(6, 7, seed=2)
    options = {"alpha": 2, "beta": -1, "c": from_numpy(c), "backend": backend}
    got = gemmhub.matmul(from_numpy(a), from_numpy(b), **options)
    assert np.array_equal(got.numpy(), 2 * (a @ b) - c)
    copies = gemmhub.explain(from_numpy(a), from_numpy(b), **options)[backend].copies
    assert [copy.operand for copy in copies] == (["c"] if backend == "mublas" else [])


def test_refusals_have_reasons(backend):
    a = from_numpy(whole(4, 4, dtype=np.int64))
    with pytest.raises(NoBackendError, match="no product of int64 by int64"):
        gemmhub.matmul(a, a, backend=backend)
    x = from_numpy(whole(4, 4))
    with pytest.raises(NoBackendError, match="same bits in every run"):
        gemmhub.matmul(x, x, reproducible="run", backend=backend)


def test_a_bias_goes_to_the_library_that_fuses_it(home):
    if not sdk.find().has_header("mublasLt.h"):
        pytest.skip("this SDK has no muBLASLt")
    a, b, bias = whole(6, 5), whole(5, 7, seed=1), whole(7, seed=2)
    decision = gemmhub.explain(from_numpy(a), from_numpy(b), bias=from_numpy(bias))
    assert decision.chosen == "mublaslt", str(decision)
    got = gemmhub.matmul(from_numpy(a), from_numpy(b), bias=from_numpy(bias))
    assert np.array_equal(got.numpy(), a @ b + bias)
