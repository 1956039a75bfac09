"""Batches: one native call for all products, whatever their layouts, with the bits of each product alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from gemmhub_cpu import library, probe
from gemmhub_cpu.backend import CpuBackend

import gemmhub
from gemmhub._call.describe import describe
from gemmhub._call.options import request

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not library.load().units, reason="no kernels of its own here"),
]
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(np.int8), BF16, np.dtype(np.float16)]


@pytest.fixture(autouse=True)
def native_alone(monkeypatch):
    """No estimate decides."""
    monkeypatch.setattr(CpuBackend.__init__, "__defaults__", (None, False))
    gemmhub.reload()


@pytest.fixture
def counted(monkeypatch):
    """The native calls of products so far."""
    kernels, names = library.load().library, []
    for name in ("gemmhub_cpu_product", "gemmhub_cpu_product_with", "gemmhub_cpu_pack_array"):
        function = getattr(kernels, name)

        def watch(*arguments, name=name, function=function):
            names.append(name)
            return function(*arguments)

        monkeypatch.setattr(kernels, name, watch)
    return names


def laid_out(x, rng):
    """``x`` with its dimensions in any order of memory, in any direction, with gaps."""
    order = rng.permutation(x.ndim)
    steps = [int(rng.integers(1, 3)) for _ in range(x.ndim)]
    wide = np.full([x.shape[i] * steps[i] for i in order], 77, x.dtype).transpose(np.argsort(order))
    view = wide[tuple(slice(None, None, step) for step in steps)]
    view = view[tuple(slice(None, None, -1 if rng.integers(4) == 0 else 1) for _ in range(x.ndim))]
    view[...] = x
    return view


def drawn(rng, shape, dtype):
    return (rng.standard_normal(shape) * 20).astype(dtype)


SHAPES = [
    ((5, 7, 9), (5, 9, 11)),  # more products than threads
    ((3, 140, 90), (3, 90, 210)),  # fewer
    ((40, 3, 30), (30, 50)),  # b shared by all
    ((6, 50, 70), (1, 70, 130)),
    ((4, 5, 20, 30), (4, 1, 30, 40)),  # shared by groups
    ((2, 9, 150, 100), (2, 1, 100, 120)),
    ((4, 1, 20, 30), (1, 6, 30, 40)),  # a shared, too
    ((1, 20, 30), (6, 30, 40)),
    ((20, 30), (2, 3, 30, 40)),
    ((7, 1, 300), (7, 300, 90)),  # vectors
    ((7, 90, 300), (7, 300, 1)),
    ((9, 1, 300), (300, 90)),
    ((9, 40, 300), (300, 1)),
    ((300,), (7, 300, 90)),
    ((7, 90, 300), (300,)),
    ((2, 3, 4, 0), (2, 3, 0, 5)),
    ((0, 4, 6), (0, 6, 5)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_every_layout_of_a_batch(shapes, dtype, counted) -> None:
    """Each product has the bits that it has alone, from one native call."""
    rng = np.random.default_rng()
    for _ in range(4):
        a, b = (drawn(rng, shape, dtype) for shape in shapes)
        arranged = laid_out(a, rng), laid_out(b, rng)
        new = gemmhub.matmul(*arranged, backend="cpu", reproducible="run")
        out = laid_out(np.full(new.shape, 55, new.dtype), rng)
        gemmhub.matmul(*arranged, out=out, backend="cpu", reproducible="run")
        counted.clear()
        assert gemmhub.matmul(*arranged, out=out, backend="cpu", reproducible="run") is out
        assert counted == ["gemmhub_cpu_product"]
        assert np.array_equal(out, new)
        if a.ndim > 1 and b.ndim > 1 and 1 not in (a.shape[-2], b.shape[-1]):
            left = np.broadcast_to(a, (*new.shape[:-2], *a.shape[-2:]))
            right = np.broadcast_to(b, (*new.shape[:-2], *b.shape[-2:]))
            for index in np.ndindex(*new.shape[:-2]):
                alone = gemmhub.matmul(left[index], right[index], backend="cpu", reproducible="run")
                assert np.array_equal(alone, out[index])
        reference = np.matmul(a.astype(np.float64), b.astype(np.float64))
        if dtype == np.int8:
            assert np.array_equal(out, reference)
        else:
            k = a.shape[-1]
            size = np.matmul(abs(a.astype(np.float64)), abs(b.astype(np.float64)))
            unit = float(ml_dtypes.finfo(out.dtype).eps)
            bound = 2.0**-23 * (k + 2) * size * (1 + unit) + unit * abs(reference) + 1e-6
            assert (abs(out.astype(np.float64) - reference) <= bound).all()


def test_gaps_of_a_batched_result_are_not_written() -> None:
    rng = np.random.default_rng()
    a, b = drawn(rng, (6, 33, 40), np.float16), drawn(rng, (6, 40, 51), np.float16)
    whole = np.full((12, 35, 54), 7, np.float16)
    out = whole[::2, 1:-1, 2:-1]
    gemmhub.matmul(a, b, out=out, backend="cpu")
    assert np.array_equal(out, gemmhub.matmul(a, b, backend="cpu"))
    out[...] = 7
    assert (whole == 7).all()


def test_an_epilogue_of_a_batch_is_one_call(counted) -> None:
    rng = np.random.default_rng()
    for shape in ((5, 40, 60), (60, 50)), ((5, 40, 60), (5, 60, 50)):
        a, b = (drawn(rng, x, np.float16) for x in shape)
        c, row, column = (drawn(rng, x, np.float16) for x in ((5, 40, 50), (50,), (40, 1)))
        for bias in (row, column):
            options = {"c": c, "beta": 2.0, "alpha": 0.5, "bias": bias, "activation": "relu", "backend": "cpu"}
            result = gemmhub.matmul(a, b, **options)
            counted.clear()
            assert np.array_equal(gemmhub.matmul(a, b, **options), result)
            assert counted == ["gemmhub_cpu_product_with"]
            right = np.broadcast_to(b, (5, 60, 50))
            each = [gemmhub.matmul(a[i], right[i], **{**options, "c": c[i]}) for i in range(5)]
            assert np.array_equal(np.stack(each), result)


def test_a_shared_b_that_was_packed(counted) -> None:
    rng = np.random.default_rng()
    for dtype in DTYPES:
        a, b = drawn(rng, (3, 4, 30, 60), dtype), drawn(rng, (60, 50), dtype)
        packed = gemmhub.pack(b, a_dtype=str(dtype), backend="cpu")
        counted.clear()
        result = gemmhub.matmul(a.transpose(1, 0, 2, 3), packed)
        assert counted == ["gemmhub_cpu_product_with"]
        assert np.array_equal(result, gemmhub.matmul(a.transpose(1, 0, 2, 3), b, backend="cpu"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_workspaces_and_threads_of_a_batch(dtype, threads, monkeypatch) -> None:
    """Whatever fits into them: products on one thread each, on all threads, and a shared b packed once or not."""
    rng = np.random.default_rng()
    from gemmhub_cpu import limits

    monkeypatch.setattr(limits, "ceiling", lambda: threads)
    for shapes in (((9, 80, 400), (9, 400, 300)), ((9, 80, 400), (400, 300)), ((3, 4, 80, 400), (3, 1, 400, 300))):
        a, b = (drawn(rng, x, dtype) for x in shapes)
        call = describe(a, b, None, request({"reproducible": "run"}))
        results = []
        for limit in (1 << 20, 1 << 21, 1 << 22, 1 << 23, 1 << 26):
            kernel = CpuBackend(probe.look(), by_cost=False).prepare(call.problem, "native", limit)
            if not hasattr(kernel, "run"):
                assert limit < 1 << 23
                continue
            out = np.full(call.out_shape, 9, call.problem.out.dtype)
            kernel.run(a, b, out, 1, 0, None)
            results.append(out)
        assert len(results) > 1
        assert all(np.array_equal(x, results[0]) for x in results)


def test_batches_from_many_threads() -> None:
    rng = np.random.default_rng()
    pairs = [(drawn(rng, (20, 30, 40), np.int8), drawn(rng, (20, 40, 50), np.int8)) for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda pair: gemmhub.matmul(*pair, backend="cpu"), pairs * 4))
    for (a, b), result in zip(pairs * 4, results):
        assert np.array_equal(result, np.matmul(a.astype(np.int32), b.astype(np.int32)))


class TestDirect:
    """A kernel refuses arrays that do not fit before it writes, and copies those that overlap."""

    @staticmethod
    def kernel(a, b):
        problem = describe(a, b, None, request({})).problem
        return CpuBackend(by_cost=False).prepare(problem, "native", 1 << 26)

    def test_operands_that_do_not_fit(self) -> None:
        a, b = np.ones((4, 5), np.int8), np.ones((5, 6), np.int8)
        direct = self.kernel(a, b).direct
        read_only = np.zeros((4, 6), np.int32)
        read_only.flags.writeable = False
        for left, right, out in (
            (a, b[:4], None), (a, b, np.zeros((4, 7), np.int32)), (a, b, np.zeros((2, 4, 6), np.int32)),
            (a, b, np.zeros((4, 6), np.float32)), (a.astype(np.int16), b, None), (a, b.view(np.uint8), None),
            (a, b, read_only), (np.ones((2, 4, 5), np.int8), np.ones((3, 5, 6), np.int8), None), (a[0, 0], b, None),
        ):  # fmt: skip
            with pytest.raises((gemmhub.KernelError, ValueError, IndexError)):
                direct(left, right, out)
            assert out is None or not out.any()

    def test_equal_dtypes_that_are_other_objects(self) -> None:
        a, b = np.ones((4, 5), np.int8), np.ones((5, 6), np.int8)
        direct, other = self.kernel(a, b).direct, np.dtype(np.int8, metadata={"a": 1})
        assert (direct(a.view(other), b, None) == 5).all()

    @pytest.mark.parametrize("dtype", [np.float32, np.float16])
    def test_a_result_that_overlaps(self, dtype) -> None:
        rng = np.random.default_rng()
        whole = drawn(rng, (3, 30, 30), np.float16)
        a, b = whole[0].copy(), whole[1].copy()
        expected = gemmhub.matmul(a, b, backend="cpu")
        for out in (whole[0], whole[1], whole[0][::-1], whole[1].T):
            whole[0], whole[1] = a, b
            for _ in range(2):
                whole[0], whole[1] = a, b
                assert gemmhub.matmul(whole[0], whole[1], out=out, backend="cpu") is out
                assert np.array_equal(out, expected)

    def test_scalars(self) -> None:
        x = np.full(70, 3, np.int8)
        result = gemmhub.matmul(x, x, backend="cpu")
        for _ in range(2):
            result = gemmhub.matmul(x, x, backend="cpu")
            assert result == 630
            assert type(result) is np.int32
        out = np.zeros((), np.int32)
        assert gemmhub.matmul(x, x, out=out, backend="cpu") is out
        assert out == 630
