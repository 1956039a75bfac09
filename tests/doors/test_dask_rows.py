"""Rows of products of Dask arrays have the bits of one product in memory, where they are promised."""

from __future__ import annotations

import numpy as np
import pytest

da = pytest.importorskip("dask.array", reason="Dask is not installed")
from products import BF16, F32, I8, I32, draw  # noqa: E402
from rowwise import Rowwise, registered  # noqa: E402

import gemmhub  # noqa: E402
from gemmhub.errors import InputError, NoBackendError  # noqa: E402


@pytest.fixture
def rowwise():
    with registered(Rowwise()) as backend:
        yield backend


def cut(rng, x):
    """``x`` in random chunks along each dimension."""
    return da.from_array(x, chunks=tuple(int(rng.integers(1, size + 1)) for size in x.shape))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_blocks_of_any_size_have_the_bits_of_one_product(rowwise, dtype, rng):
    a, b = draw(rng, (23, 60), dtype), draw(rng, (60, 17), dtype)
    options = {"c": draw(rng, (23, 17), dtype), "beta": 0.5, "bias": draw(rng, 17, dtype), "activation": "relu"}
    for given in ({}, {"alpha": 0.3, **options}):
        whole = gemmhub.matmul(a, b, reproducible="batch", backend="rowwise", **given)
        for _ in range(4):
            x, y = cut(rng, a), cut(rng, b)
            with gemmhub.use(reproducible="batch", backend="rowwise"):
                product = gemmhub.matmul(x, y, **given)
            assert np.array_equal(product.compute(), whole)
            rows = rng.integers(0, 23, 5)
            part = gemmhub.matmul(x[rows], y, reproducible="batch", backend="rowwise")
            assert given or np.array_equal(part.compute(), whole[rows])


def test_integers(rng):
    a, b = draw(rng, (23, 600), I8), draw(rng, (600, 17), I8)
    for out in (I32, F32):
        whole = gemmhub.matmul(a, b, out_dtype=out, reproducible="batch")
        product = gemmhub.matmul(cut(rng, a), cut(rng, b), out_dtype=out, reproducible="batch")
        assert np.array_equal(product.compute(), whole)


def test_k_is_one_block(rowwise, rng):
    a, b = da.zeros((40, 60), chunks=(10, 20), dtype=F32), da.zeros((60, 30), chunks=(20, 30), dtype=F32)
    for promise in ("batch", "mul.add"):
        decision = gemmhub.explain(a, b, reproducible=promise, backend="rowwise")
        assert decision.partition.blocking.chunks["k"] == (60,)
        assert f"k         is not cut: reproducible='{promise}' pins the order of the sum" in str(decision)
        assert decision.problem.reproducible == promise
        assert decision["rowwise"].order == "mul.add"
    gemmhub.matmul(a, b, reproducible="batch", backend="rowwise").compute()
    assert {problem.k for _, problem in rowwise.calls} == {60}
    for promise in (None, "run"):
        assert gemmhub.explain(a, b, reproducible=promise).partition.blocking.steps == 3


def test_refusals(rng):
    a, b = cut(rng, draw(rng, (8, 12), F32)), da.from_array(draw(rng, (12, 8), F32), chunks=(4, 8))
    packed = gemmhub.pack(b)
    with pytest.raises(
        InputError, match=r"b: packed in 3 blocks of k, though reproducible='batch' pins.*b\.rechunk\(\{0: -1\}\)"
    ):
        gemmhub.matmul(a, packed, reproducible="batch")
    with pytest.raises(InputError, match="reproducible: 'bach'"):
        gemmhub.matmul(a, b, reproducible="bach")
    with pytest.raises(NoBackendError, match="none of its candidates adds in an order that it states"):
        gemmhub.matmul(a, b, reproducible="batch", backend="numpy").compute()


def test_off_undoes_a_setting(rng):
    x = draw(rng, (5, 5), F32)
    with gemmhub.use(reproducible="batch", backend="numpy"):
        with pytest.raises(NoBackendError):
            gemmhub.matmul(x, x)
        product = gemmhub.matmul(da.from_array(x), da.from_array(x), reproducible="off").compute()
    assert np.array_equal(product, gemmhub.matmul(x, x, backend="numpy"))
