"""The blocked path of the NumPy backend: bounded scratch memory, and the same product for any blocks."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from products import (
    BF16,
    C64,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    draw,
    integer_product,
    ratio,
    relaid,
)  # fmt: skip

import gemmhub
from gemmhub import dtypes
from gemmhub._call import describe
from gemmhub._call.options import request
from gemmhub.layout import MatrixLayout
from gemmhub.numpy_backend import backend, blocked
from gemmhub.numpy_backend.blocked import BlockedGemm, blocking, exact_depth, work_dtypes
from gemmhub.numpy_backend.scratch import Lease
from gemmhub.operands import Operands
from gemmhub.problem import GemmProblem, Operand

SEEDS = st.integers(0, 2**32 - 1)
TINY = 3 * 64 * 64 * 4
"""Bytes: three blocks of 64 x 64 in float32, the least that makes sense."""
CONVERTED = (F16, BF16, I8, U8, I16, U16)


def problem_of(m, n, k, a=F16, b=None, out=None, *, batch=(), c=False, activation=None):
    """A problem of any size, without its operands."""
    b = a if b is None else b
    out = dtypes.result_dtype(a, b) if out is None else out

    def operand(rows, cols, dtype):
        return Operand(dtype, MatrixLayout.contiguous(rows, cols, batch), dtype.itemsize)

    return GemmProblem(
        m=m,
        n=n,
        k=k,
        a=operand(m, k, a),
        b=operand(k, n, b),
        out=operand(m, n, out),
        compute_dtype=dtypes.compute_dtype(a, b, out),
        batch=batch,
        operands=Operands({"c": operand(m, n, out)} if c else {}),
        activation=activation,
    )


class StrictScratch:
    """Scratch memory that leases the requested bytes and never more."""

    def __init__(self):
        self.leased = 0

    def lease(self, nbytes):
        self.leased = nbytes
        return StrictLease([], nbytes)


class StrictLease(Lease):
    def take(self, shape, dtype):
        block = super().take(shape, dtype)
        assert np.may_share_memory(block, self._buffer) or not block.size, (
            "more scratch memory than the blocks account for"
        )
        return block


@pytest.fixture
def scratch(monkeypatch):
    strict = StrictScratch()
    monkeypatch.setattr(blocked, "scratch", strict)
    return strict


# Blocks

SIZES = st.one_of(st.integers(1, 300), st.integers(1, 10**6), st.sampled_from([64, 512, 4096, 2**20, 2**31]))


@given(SIZES, SIZES, SIZES, st.sampled_from(CONVERTED + (F32, F64, C64)), st.sampled_from([1, 2, 8, 64, 1000]),
       st.sampled_from([(), (3,), (2, 1000)]), st.booleans(),
       st.sampled_from([None, "relu", "gelu", "swiglu"]))  # fmt: skip
def test_blocks_keep_within_the_limit(m, n, k, dtype, mib, batch, c, activation):
    activation = activation if dtype.kind not in "iuc" else None
    problem = problem_of(m, n, k, dtype, batch=batch, c=c, activation=activation)
    limit = int(mib * 2**20)
    blocks = blocking(problem, limit)
    assert 0 < blocks.scratch_bytes <= limit
    assert 1 <= blocks.rows <= m
    assert 1 <= blocks.cols <= n
    assert 1 <= blocks.depth <= blocks.panel <= k or blocks.panel <= k
    assert blocks.depth <= work_dtypes(problem)[2]
    assert 1 <= blocks.stacks <= (batch[-1] if batch else 1)
    per_block = blocks.rows * blocks.depth * blocks.work.itemsize
    assert per_block <= limit


@given(SIZES, SIZES, SIZES, st.sampled_from(CONVERTED + (F64,)), st.integers(0, TINY))
def test_an_absurd_limit_makes_blocks_of_64(m, n, k, dtype, limit):
    blocks = blocking(problem_of(m, n, k, dtype, c=True), limit)
    assert blocks.rows <= max(64, m if m < 64 else 64) or blocks.scratch_bytes <= 2 * TINY
    assert blocks.scratch_bytes <= 2**20


def test_a_small_problem_is_one_block():
    blocks = blocking(problem_of(200, 300, 400), 64 * 2**20)
    assert (blocks.rows, blocks.cols, blocks.depth, blocks.panel) == (200, 300, 400, 400)


@pytest.mark.parametrize("left", [I8, U8, I16, U16], ids=str)
@pytest.mark.parametrize("right", [I8, U8, I16, U16], ids=str)
def test_exact_depth_is_exact_and_the_longest(left, right):
    """The largest sum of that many products is a whole number of the work dtype; one more product is not."""
    work, _, depth = work_dtypes(problem_of(8, 8, 10**9, left, right))
    largest = [max(abs(int(np.iinfo(x).min)), int(np.iinfo(x).max)) for x in (left, right)]
    bits = 24 if work == F32 else 53
    assert depth * largest[0] * largest[1] <= 2**bits
    assert depth == exact_depth(left, right, work)
    powers = [x if x & (x - 1) == 0 else x + 1 for x in largest]
    assert (depth + 1) * powers[0] * powers[1] > 2**bits


# Products


@given(
    st.sampled_from(CONVERTED),
    st.tuples(st.integers(1, 200), st.integers(1, 200), st.integers(0, 700)),
    st.sampled_from([(), (3,), (2, 3)]),
    st.sampled_from([TINY, 2 * TINY, 2**20, 2**24]),
    st.sampled_from([None, "relu", "silu"]),
    st.booleans(),
    st.sampled_from([None, "n", "m"]),
    SEEDS,
)
def test_products_do_not_depend_on_the_blocks(dtype, size, batch, limit, activation, with_c, bias_axis, seed):
    rng = np.random.default_rng(seed)
    m, n, k = size
    result = I32 if dtype in (I8, U8) else dtype
    if dtype.kind in "iu" and activation:
        activation = "relu"
    a, b = draw(rng, (*batch, m, k), dtype), draw(rng, (*batch, k, n)[-2 if seed % 3 == 0 else None :], dtype)
    c = draw(rng, (*batch, m, n), result) if with_c else None
    bias = {None: None, "n": draw(rng, (n,), result), "m": draw(rng, (m, 1), result)}[bias_axis]
    options = {"alpha": 2, "bias": bias, "activation": activation}
    options |= {"c": c, "beta": -1} if with_c else {}
    problem = describe.describe(a, b, None, request(options)).problem
    gemm = BlockedGemm(problem, limit)
    out, memory = relaid(rng, draw(rng, (*batch, m, n), result))
    poison, before = out.copy(), memory.copy()
    saved, blocked.scratch = blocked.scratch, StrictScratch()
    try:
        given = {"c": c, "bias": None if bias is None else bias.reshape(-1)}
        gemm(a, b, out, 2, -1 if with_c else 0, **{name: x for name, x in given.items() if x is not None})
    finally:
        blocked.scratch = saved
    assert ratio(out, a, b, **options) <= 1
    out[...] = poison
    assert np.array_equal(memory, before)


@pytest.mark.parametrize("dtype", [F16, BF16, I8, I16, E4M3], ids=str)
@pytest.mark.parametrize("k", [1, 255, 256, 257, 1024, 1025, 2100])
def test_many_blocks_in_every_direction(dtype, k, scratch, rng):
    out_dtype = F32 if dtype == E4M3 else None
    a, b = draw(rng, (200, k), dtype), draw(rng, (k, 150), dtype)
    problem = describe.describe(a, b, None, request({"out_dtype": out_dtype} if out_dtype else {})).problem
    gemm = BlockedGemm(problem, TINY)
    assert gemm.blocks.rows == gemm.blocks.cols == 64 or k < 256
    out = np.empty((200, 150), problem.out.dtype)
    for left in (a, np.asfortranarray(a), a[::-1], relaid(rng, a)[0]):
        for right in (b, np.asfortranarray(b), relaid(rng, b)[0]):
            gemm(left, right, out, 1, 0)
            assert ratio(out, left, right, out_dtype=out_dtype) <= 1


@pytest.mark.parametrize("dtype", [F16, BF16, E5M2, I8, I16, F32], ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("with_c", [False, True])
@pytest.mark.parametrize("limit", [TINY, 2**20, 2**25])
def test_scratch_memory_is_what_was_announced(dtype, activation, with_c, limit, scratch, rng):
    """Every combination of temporaries fits into the announced bytes, and those are not far too many."""
    if dtype.kind in "iu" and activation:
        activation = "relu"
    options = {"out_dtype": F16} if dtype == E5M2 else {}
    a, b = draw(rng, (3, 90, 1100), dtype), draw(rng, (3, 1100, 130), dtype)
    result = I32 if dtype in (I8, U8) else F16 if dtype == E5M2 else dtype
    c = draw(rng, (3, 90, 130), result)
    options |= {"activation": activation} | ({"c": c, "beta": 2} if with_c else {})
    problem = describe.describe(a, b, None, request(options)).problem
    gemm = BlockedGemm(problem, limit)
    out = np.empty((3, 90, 130), result)
    with np.errstate(all="ignore"):
        gemm(a, b, out, 1, 2 if with_c else 0, **({"c": c} if with_c else {}))
        assert ratio(out, a, b, **options) <= 1
    assert scratch.leased <= gemm.blocks.scratch_bytes + 4096


@pytest.mark.parametrize("dtype", [F16, I8], ids=str)
def test_threads_have_separate_scratch_memory(dtype, rng):
    a, b = draw(rng, (4, 100, 90), dtype), draw(rng, (90, 80), dtype)
    problem = describe.describe(a[0], b, None, request({})).problem
    gemm = BlockedGemm(problem, TINY)
    out = np.empty((4, 100, 80), problem.out.dtype)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            out[...] = 0
            list(pool.map(lambda i: gemm(a[i], b, out[i], 1, 0), range(4)))
            assert ratio(out, a, b) <= 1


# Memory

MIB = 2**20


def peak_of(call):
    """The peak of bytes that ``call`` allocates."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", [F16, BF16, I8], ids=str)
@pytest.mark.parametrize("large", ["a", "b"])
def test_a_large_operand_is_never_copied_whole(dtype, large, monkeypatch, scratch, rng):
    """4096 x 4096 in an 8 MiB workspace; in float32 that operand alone is 64 MiB."""
    monkeypatch.setenv("GEMMHUB_WORKSPACE_MIB", "8")
    gemmhub.reload()
    operand = draw(rng, (4096, 4096), I8).astype(dtype)
    other = draw(rng, (48, 4096) if large == "b" else (4096, 48), dtype)
    a, b = (operand, other) if large == "a" else (other, operand)
    out = np.empty((a.shape[0], b.shape[1]), I32 if dtype in (I8, U8) else F32)
    gemmhub.matmul(np.ones((2, 2), dtype), np.ones((2, 2), dtype))
    assert gemmhub.explain(a, b, out=out).copies == ()
    for _ in range(2):
        assert peak_of(lambda: gemmhub.matmul(a, b, out=out)) < 8.5 * MIB
    rows, cols = rng.integers(0, out.shape[0], 6), rng.integers(0, out.shape[1], 6)
    x, y = a[rows], b[:, cols]
    if dtype == I8:
        assert np.array_equal(out[np.ix_(rows, cols)], integer_product(x, y, I32))
    else:
        assert ratio(out[np.ix_(rows, cols)].copy(), x, y, out_dtype=F32) <= 1


@pytest.mark.parametrize("dtype", [F16, I8], ids=str)
def test_the_result_is_the_only_large_allocation(dtype, monkeypatch, scratch, rng):
    monkeypatch.setenv("GEMMHUB_WORKSPACE_MIB", "1")
    gemmhub.reload()
    a, b = draw(rng, (1500, 64), dtype), draw(rng, (64, 1500), dtype)
    result = 1500 * 1500 * (4 if dtype == I8 else 2)
    gemmhub.explain(a, b)
    assert peak_of(lambda: gemmhub.matmul(a, b)) < result + 1.5 * MIB
    assert peak_of(lambda: gemmhub.matmul(a, b)) < result + 1.5 * MIB


# Batches


@pytest.mark.parametrize("dtype", [F16, BF16, I8, I16, F32, F64], ids=str)
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((7, 20, 30), (7, 30, 10)),
        ((7, 20, 30), (30, 10)),
        ((20, 30), (7, 30, 10)),
        ((7, 1, 20, 30), (5, 30, 10)),
        ((1, 20, 30), (7, 30, 10)),
        ((3, 5, 20, 30), (3, 1, 30, 10)),
        ((2, 3, 2, 20, 30), (2, 30, 10)),
        ((7, 20, 30), (30,)),
        ((30,), (7, 30, 10)),
        ((0, 20, 30), (30, 10)),
        ((7, 20, 30), (1, 30, 10)),
    ],
    ids=str,
)
@pytest.mark.parametrize("mib", ["1", "64"])
def test_stacks_broadcast_and_folded(a_shape, b_shape, dtype, mib, monkeypatch, scratch, rng):
    monkeypatch.setenv("GEMMHUB_WORKSPACE_MIB", mib)
    gemmhub.reload()
    a, b = draw(rng, a_shape, dtype), draw(rng, b_shape, dtype)
    bias = None if len(b_shape) == 1 else draw(rng, (10,), I32 if dtype in (I8, U8) else dtype)
    for left, right in ((a, b), (relaid(rng, a)[0], b), (a, relaid(rng, b)[0])):
        got = gemmhub.matmul(left, right)
        assert ratio(got, a, b) <= 1
        c = draw(rng, got.shape, got.dtype)
        for addend in (c, c[..., :1], c[:1], np.asfortranarray(c)):
            options = {"alpha": 2, "beta": 3, "c": addend, "bias": bias}
            assert ratio(gemmhub.matmul(left, right, **options), a, b, **options) <= 1
            out = np.empty_like(got)
            for target in (out, relaid(rng, out)[0]):
                assert ratio(gemmhub.matmul(left, right, out=target, **options), a, b, **options) <= 1


def test_long_stacks_of_small_matrices_in_little_memory(scratch, rng):
    """More matrices than fit at once: the last stack is shorter."""
    a, b = draw(rng, (2, 1000, 9, 10), F16), draw(rng, (1000, 10, 11), F16)
    problem = describe.describe(a, b, None, request({})).problem
    gemm = BlockedGemm(problem, TINY)
    assert 1 < gemm.blocks.stacks < 1000
    out = np.empty((2, 1000, 9, 11), F16)
    gemm(a, b, out, 1, 0)
    assert ratio(out, a, b) <= 1


@pytest.mark.parametrize("dtype", [F16, I8], ids=str)
def test_a_shared_b_is_multiplied_once(dtype, monkeypatch, rng):
    seen = []
    plain = BlockedGemm.__call__

    def watched(self, *operands, **others):
        seen.append(operands[2].shape)
        plain(self, *operands, **others)

    monkeypatch.setattr(BlockedGemm, "__call__", watched)
    a, b = draw(rng, (6, 20, 30), dtype), draw(rng, (30, 10), dtype)
    assert ratio(gemmhub.matmul(a, b), a, b) <= 1
    assert ratio(gemmhub.matmul(a[:, ::-1], b), a[:, ::-1], b) <= 1
    assert seen == [(120, 10), (6, 20, 10)]


# Speed, where it is a matter of structure


@pytest.mark.parametrize("dtype", [F32, F64, C64], ids=str)
def test_native_dtypes_are_numpys_own_matmul(dtype):
    problem = problem_of(512, 512, 512, dtype)
    kernel = backend.NumpyBackend().prepare(problem, "default", 2**26)
    assert kernel.direct is np.matmul


@pytest.mark.parametrize(("dtype", "work"), [(F16, F32), (BF16, F32), (I8, F32), (U8, F32), (I16, F64)], ids=str)
def test_what_numpy_multiplies_in_scalar_loops_goes_through_the_blas(dtype, work, monkeypatch, rng):
    """benchmarks/ measures what that gains; here only that the BLAS is what is called."""
    seen = set()
    matmul = np.matmul

    def watched(a, b, out=None):
        seen.update((a.dtype, b.dtype, out.dtype))
        return matmul(a, b, out=out)

    a, b = draw(rng, (50, 60), dtype), draw(rng, (60, 40), dtype)
    monkeypatch.setattr(blocked.np, "matmul", watched)
    got = gemmhub.matmul(a, b)
    monkeypatch.undo()
    assert seen == {work}
    assert ratio(got, a, b) <= 1


@pytest.mark.parametrize("dtype", [I32, I64, np.dtype(bool)], ids=str)
def test_the_loops_of_numpy_for_wide_integers(dtype, rng):
    a, b = draw(rng, (3, 40, 50), dtype), draw(rng, (50, 30), dtype)
    assert "loops" in backend.NumpyBackend().prepare(problem_of(40, 30, 50, dtype), "default", 0).description
    assert ratio(gemmhub.matmul(a, b), a, b) <= 1
