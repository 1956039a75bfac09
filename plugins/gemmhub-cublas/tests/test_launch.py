"""What a prepared product does beyond the conformance kit: threads, scalars, addresses, errors, clearing up."""

from __future__ import annotations

import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from fakes import Arrays, FakeMemory, bias, operand, problem
from gemmhub_cublas.launch import scalar

from gemmhub.errors import KernelError
from gemmhub.layout import MatrixLayout

LIMIT = 64 * 2**20


def kernel(backend, asked):
    return backend.prepare(asked, backend.offer(asked).first.name, LIMIT)


def test_plain_products_are_one_call(home):
    asked = problem(m=64, n=64, k=64)
    run, arrays = kernel(home.backend(), asked), Arrays(home, asked)
    home.lt.calls.clear()
    home.cuda.calls.clear()
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)
    assert home.lt.calls == ["cublasLtMatmul"]
    assert home.cuda.calls == ["cuCtxGetCurrent"]


def test_fresh_threads(home):
    """Threads that never met CUDA, whatever ran before: the library gives a thread no context."""
    asked = problem(m=64, n=64, k=64)
    run, arrays = kernel(home.backend(), asked), Arrays(home, asked)
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)

    def work():
        arrays.out[...] = 0
        arrays.run(run)
        return home.cuda.stack

    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(work).result() == []
        assert np.array_equal(arrays.out, arrays.a @ arrays.b)


def test_a_nested_call_with_another_bias(home):
    """It may come after the outer one's bias is set: by a signal handler, a profiler, a finalizer."""
    asked = problem(m=8, n=12, k=16, bias=bias())
    outer, inner = Arrays(home, asked), Arrays(home, asked, 1)
    kind, given = home.lt.types["cublasLtMatmulDescSetAttribute"]
    set_attribute, interrupts, nested = home.lt.cublasLtMatmulDescSetAttribute, [], []

    def interrupted(number, attribute, buffer, size):
        status = set_attribute(number, attribute, buffer, size)
        if interrupts:
            interrupts.pop()
            nested.append(inner.run(run).copy())
        return status

    home.lt.cublasLtMatmulDescSetAttribute = ctypes.CFUNCTYPE(kind, *given)(interrupted)
    run = kernel(home.backend(), asked)
    for _ in range(2):
        interrupts.append(None)
        assert np.array_equal(outer.run(run), outer.a @ outer.b + outer.bias)
        assert np.array_equal(nested[-1], inner.a @ inner.b + inner.bias)
    assert len(nested) == 2


def test_biases_from_many_threads(home):
    """The address of the bias is part of the operation's descriptor."""
    asked = problem(m=8, n=12, k=16, bias=bias())
    run = kernel(home.backend(), asked)
    sets = [Arrays(home, asked, seed) for seed in range(8)]

    def work(arrays):
        return all(np.array_equal(arrays.run(run), arrays.a @ arrays.b + arrays.bias) for _ in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, sets))


def with_bias(home, asked, offset, seed=5):
    """Return operands whose bias is ``offset`` bytes after an aligned address, in memory with nothing after it."""
    arrays = Arrays(home, asked, seed)
    buffer = FakeMemory(home).empty(offset + arrays.bias.nbytes)
    arrays.buffers.append(buffer)
    placed = buffer[offset:].view(arrays.bias.dtype)
    placed[...], arrays.bias = arrays.bias, placed
    return arrays


def biased(arrays):
    """Return the product of small integers and its bias, which is exact."""
    column = arrays.bias if len(arrays.bias) == arrays.out.shape[-1] else arrays.bias[:, None]
    return arrays.a @ arrays.b + column


def poison(home):
    """Overwrite all memory that the plugin has allocated with NaN."""
    for address, nbytes, _ in home.cuda.allocated:
        ctypes.memset(address, 0xFF, nbytes)


@pytest.mark.parametrize("n", [64, 68, 200])
@pytest.mark.parametrize("offset", [0, 16, 8, 4, 252])
def test_a_bias_at_any_address(home, offset, n):
    """Slices of an array have any alignment: what the algorithm does not take is copied, whole and no more."""
    asked = problem(m=64, n=n, k=64, bias=bias())
    run = kernel(home.backend(), asked)
    for seed in range(3):
        arrays = with_bias(home, asked, offset, seed)
        poison(home)
        assert np.array_equal(arrays.run(run, stream=7), biased(arrays))
        assert home.lt.products[-1][1] == 66
    copies = [(source, nbytes, stream) for _, source, nbytes, stream, _ in home.cuda.copies]
    assert len(copies) == 3 * (offset % 16 != 0)
    assert set(copies[-1:]) <= {(arrays.bias.ctypes.data, 4 * n, 7)}


@pytest.mark.parametrize("offset", [0, 2, 6])
def test_relu_and_a_bias_at_any_address(home, offset):
    """An algorithm for Hopper computes it, as the relu of older ones turns NaN into 0."""
    asked = problem(64, 64, 64, "float16", bias=bias("float16"), activation="relu")
    run, arrays = kernel(home.backend(), asked), with_bias(home, asked, offset)
    expected = np.maximum(biased(arrays), 0)
    assert np.array_equal(arrays.run(run), expected)
    arrays.a[3], arrays.bias[5] = np.nan, np.nan
    expected[3], expected[:, 5] = np.nan, np.nan
    assert np.array_equal(arrays.run(run), expected, equal_nan=True)
    assert {algorithm for _, algorithm, *_ in home.lt.products} == {66}


@pytest.mark.parametrize("offset", [0, 4])
def test_an_aligned_bias_leases_nothing(home, offset):
    asked = problem(m=64, n=64, k=64, bias=bias())
    run, arrays = kernel(home.backend(), asked), with_bias(home, asked, offset)
    home.cuda.calls.clear()
    arrays.run(run)
    assert ("cuStreamGetCaptureInfo_v2" in home.cuda.calls) == (offset != 0)


@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("d", ["row", "col"])
def test_a_bias_beside_a_workspace(home, offset, d):
    """The copy and the partial sums of split-K, which the fake library poisons, do not overlap."""
    asked = problem(68, 64, 512, d=d, bias=bias(axis="n" if d == "row" else "m"))
    room = 256 if d == "row" else 512
    backend = home.backend()
    prepared = backend.prepare(asked, "67.20.4.2.0.0.35.0.3", LIMIT)
    assert prepared.workspace_bytes == 4 * 68 * 64 * 4 + room
    arrays = with_bias(home, asked, offset)
    if d == "col":
        arrays.out = arrays.out.reshape(64, 68).T
    poison(home)
    assert np.array_equal(arrays.run(prepared), biased(arrays))
    ((_, algorithm, workspace, *_),) = home.lt.products
    assert algorithm == 67
    ((address, nbytes, _),) = home.cuda.allocated
    assert nbytes == prepared.workspace_bytes, "reserved by prepare"
    assert workspace - address == (room if offset else 0)


def test_one_copy_of_a_bias_for_all_launches(home):
    asked = problem(m=4, n=4, k=4, batch=(3,), bias=bias())
    backwards = MatrixLayout(4, 4, 4, 1, (3,), (-16,))
    run = kernel(home.backend(), replace(asked, a=replace(asked.a, layout=backwards)))
    arrays = with_bias(home, asked, 4)
    arrays.a = arrays.a[::-1]  # begins at the last matrix
    poison(home)
    assert np.array_equal(arrays.run(run), biased(arrays))
    assert len(home.lt.products) == 3
    assert len(home.cuda.copies) == 1


@pytest.mark.parametrize("k", [64, 512])
def test_a_bias_is_copied_in_a_capture(home, k):
    """On the captured stream, into memory of the graph."""
    asked = problem(64, 64, k, bias=bias())
    run = kernel(home.backend(), asked)
    eager, captured = with_bias(home, asked, 4), with_bias(home, asked, 8, 6)
    assert np.array_equal(eager.run(run, stream=7), biased(eager))
    home.cuda.captures[7] = 3
    assert np.array_equal(captured.run(run, stream=7), biased(captured))
    del home.cuda.captures[7]
    assert np.array_equal(eager.run(run, stream=7), biased(eager))
    (first, *_, none), (graph, source, nbytes, stream, number), (last, *_) = home.cuda.copies
    assert (none, number, stream) == (0, 3, 7)
    assert (source, nbytes) == (captured.bias.ctypes.data, 256)
    assert first == last != graph
    assert home.cuda.invalidated == set()


def test_no_room_for_a_copy_of_the_bias(home):
    backend, asked, name = home.backend(), problem(64, 64, 64, bias=bias()), "66.20.1.0.0.0.35.0.3"
    refusal = backend.prepare(asked, name, 255)
    needed = "256 bytes of workspace (256 to copy a bias that is not aligned to 16 bytes)"
    assert refusal.reason == f"algorithm {name} needs {needed}, 255 are allowed"
    assert refusal.remedy == "raise the setting workspace_mib"
    assert backend.prepare(asked, name, 256).workspace_bytes == 256


def test_a_copy_of_the_bias_that_fails(home):
    asked = problem(64, 64, 64, bias=bias())
    run, arrays = kernel(home.backend(), asked), with_bias(home, asked, 4)
    home.cuda.faults["cuMemcpyDtoDAsync_v2"] = 719
    with pytest.raises(
        KernelError, match=r"'cublas': the bias.*copied: cuMemcpyDtoDAsync_v2: CUDA_ERROR_LAUNCH_FAILED"
    ):
        arrays.run(run)
    assert home.lt.products == []
    home.cuda.faults.clear()
    assert np.array_equal(arrays.run(run), biased(arrays))


@pytest.mark.parametrize("stream", [0, 7])
def test_a_nested_call_with_another_copy_of_a_bias(home, stream):
    """It comes between the copy of the outer one's bias and the product."""
    asked = problem(64, 64, 512, bias=bias())
    run = kernel(home.backend(), asked)
    outer, inner, nested = with_bias(home, asked, 4), with_bias(home, asked, 8, 6), []

    def interrupt():
        home.lt.interrupt = None
        nested.append(inner.run(run, stream=stream).copy())

    home.lt.interrupt = interrupt
    assert np.array_equal(outer.run(run, stream=stream), biased(outer))
    assert np.array_equal(nested[0], biased(inner))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_alpha_zero_forgets_the_product(home, dtype):
    asked = problem(dtype=dtype, alpha_is_one=False, c=operand(dtype, 16, 16))
    run, arrays = kernel(home.backend(), asked), Arrays(home, asked)
    arrays.a[...] = np.nan
    assert np.array_equal(arrays.run(run, alpha=0, beta=2), 2 * arrays.c)
    arrays.a[...] = 1
    assert np.array_equal(arrays.run(run, alpha=3, beta=2), 3 * (arrays.a @ arrays.b) + 2 * arrays.c)


def test_alpha_zero_in_several_launches(home):
    """The zeros serve every launch of a batch."""
    asked = problem(m=4, n=4, k=4, batch=(3,), alpha_is_one=False, c=operand("float32", 4, 4, batch=(3,)))
    arrays = Arrays(home, asked)
    backwards = MatrixLayout(4, 4, 4, 1, (3,), (-16,))
    run = kernel(home.backend(), replace(asked, a=replace(asked.a, layout=backwards)))
    arrays.a = arrays.a[::-1]  # begins at the last matrix
    assert np.array_equal(arrays.run(run, alpha=2), 2 * (arrays.a @ arrays.b))
    assert np.array_equal(arrays.run(run, alpha=0, beta=3), 3 * arrays.c)
    assert len(home.lt.products) == 6


@pytest.mark.parametrize("alpha", [1, 0, np.inf, np.nan])
def test_no_inner_dimension(home, alpha):
    asked = problem(m=5, n=7, k=0, alpha_is_one=alpha == 1, c=operand("float32", 5, 7), bias=bias())
    run, arrays = kernel(home.backend(), asked), Arrays(home, asked)
    assert np.array_equal(arrays.run(run, alpha=alpha, beta=-1), arrays.bias - arrays.c)


def test_int8_with_alpha(home):
    """Not one call with alpha 1, though no zeros are needed either."""
    asked = problem(dtype="int8", out="int32", b="col", alpha_is_one=False)
    asked = replace(asked, b=replace(asked.b, layout=MatrixLayout(16, 16, 1, 16)))
    run, arrays = kernel(home.backend(), asked), Arrays(home, asked)
    wide = arrays.a.astype(np.int32) @ arrays.b.T.astype(np.int32)
    for alpha in (3, -2, 0, 1):
        assert np.array_equal(arrays.run(run, alpha=alpha), alpha * wide)


def test_c_planned_and_beta_zero(home):
    """Where beta is 0, c is not passed, whatever its layout."""
    asked = problem(m=6, n=8, c=replace(operand("float32", 6, 8), layout=MatrixLayout(6, 8, 20, 1)))
    run, arrays = kernel(home.backend(), asked), Arrays(home, asked)
    arrays.out[...] = np.nan
    assert np.array_equal(arrays.run(run, beta=0), arrays.a @ arrays.b)


@pytest.mark.parametrize(("value", "dtype", "expected"), [
    (2.5, "float32", 2.5), (1e300, "float32", np.inf), (2.5, "float64", 2.5), (-7, "int32", -7), (3.0, "int32", 3),
])  # fmt: skip
def test_scalars(value, dtype, expected):
    assert scalar(value, dtype).value == expected


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_scalars(dtype):
    assert tuple(scalar(0.5 - 2j, dtype)) == (0.5, -2.0)
    assert tuple(scalar(3, dtype)) == (3.0, 0.0)


@pytest.mark.parametrize("changes", [{}, {"bias": bias()}])
def test_a_product_that_fails(home, changes):
    asked = problem(**changes)
    run, arrays = kernel(home.backend(), asked), Arrays(home, asked)
    home.lt.faults["cublasLtMatmul"] = 13
    with pytest.raises(
        KernelError, match=r"'cublas': cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED \(13\): the device"
    ):
        arrays.run(run)
    home.lt.faults.clear()
    expected = arrays.a @ arrays.b + (arrays.bias if changes else 0)
    assert np.array_equal(arrays.run(run), expected)


# Other numbers of rows


def rows(kernel, m):
    run = kernel.with_rows(m)
    assert run is not None
    return replace(kernel, run=run)


@pytest.mark.parametrize("offset", [0, 16, 4])
@pytest.mark.parametrize("alpha", [1, 2, 0])
@pytest.mark.parametrize("m", [2, 63, 65, 200])
def test_other_rows(home, m, alpha, offset):
    """Any number of them, also for the form that only some calls need, for alpha 0, and for a bias at any address."""
    backend = home.backend()
    first, asked = (problem(x, 64, 64, alpha_is_one=alpha == 1, bias=bias()) for x in (64, m))
    arrays = with_bias(home, asked, offset)
    if alpha == 0:
        arrays.a[...] = np.nan
    expected = arrays.bias + (alpha * (arrays.a @ arrays.b) if alpha else np.zeros_like(arrays.out))
    run = rows(kernel(backend, first), m)
    assert np.array_equal(arrays.run(run, alpha=alpha), expected)
    assert home.lt.products[-1][1] == 66


def test_other_rows_of_other_rows(home):
    """The run of a number of rows does not depend on those in between, nor on the order of calls."""
    backend, first = home.backend(), problem(64, 48, 32)
    prepared = kernel(backend, first)
    made = {m: rows(prepared, m) for m in (65, 66, 2)}
    for m, each in reversed(made.items()):
        arrays = Arrays(home, problem(m, 48, 32))
        assert np.array_equal(arrays.run(each), arrays.a @ arrays.b)


def test_other_rows_need_workspace_of_their_own(home):
    """It is there when ``with_rows`` returns, and more than the limit is refused."""
    backend = home.backend()
    prepared = backend.prepare(problem(64, 64, 512), "67.20.4.2.0.0.35.0.3", 4 * 100 * 64 * 4)
    assert prepared.workspace_bytes == 4 * 64 * 64 * 4
    arrays = Arrays(home, problem(100, 64, 512))
    run = rows(prepared, 100)
    assert [nbytes for _, nbytes, _ in home.cuda.allocated][-1] == 4 * 100 * 64 * 4
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)
    assert prepared.with_rows(101) is None


def test_a_copy_of_the_bias_of_other_rows_counts_as_workspace(home):
    """The result is column-major, and the bias has an element for each row."""
    asked = problem(100, 64, 64, d="col", bias=bias(axis="m"))
    asked = replace(asked, out=replace(asked.out, layout=MatrixLayout(100, 64, 1, 300)))
    prepared = home.backend().prepare(asked, "66.20.1.0.0.0.35.0.3", 768)
    assert prepared.workspace_bytes == 512
    assert prepared.with_rows(192) is not None
    assert prepared.with_rows(193) is None


def test_zeros_of_other_rows_count_as_workspace(home):
    asked = problem(64, 16, 64, alpha_is_one=False)
    prepared = home.backend().prepare(asked, "66.20.1.0.0.0.35.0.3", 16 * 100)
    assert prepared.with_rows(100) is not None
    assert prepared.with_rows(101) is None


def test_rows_that_are_refused(home):
    """None: gemmhub then decides that size as it would without ``with_rows``."""
    backend = home.backend()
    prepared = kernel(backend, problem(64, 64, 64))
    assert prepared.with_rows(2**33) is None, "too large a result for the library's check"
    assert prepared.with_rows(1) is None
    assert kernel(backend, problem(64, 64, 64, d="col")).with_rows(65) is None
    assert kernel(backend, problem(64, 64, 64, a="col")).with_rows(65) is None
    assert kernel(backend, problem(64, 64, 64, batch=(3,))).with_rows is None
    home.lt.faults["cublasLtMatmulAlgoCheck"] = 15
    assert prepared.with_rows(65) is None
    home.lt.faults.clear()
    home.lt.faults["cublasLtMatrixLayoutCreate"] = 3
    assert prepared.with_rows(66) is None
    home.lt.faults.clear()
    assert prepared.with_rows(66) is not None


def test_rows_without_device_memory(home):
    prepared = kernel(home.backend(), problem(64, 16, 64, alpha_is_one=False))
    home.cuda.memory = 10
    assert prepared.with_rows(65) is None
    home.cuda.memory = 10**6
    assert prepared.with_rows(65) is not None


def test_kernels_outlive_what_made_them(home):
    asked = problem(m=64, n=64, k=64)
    run = kernel(home.backend(), asked)
    gc.collect()
    arrays = Arrays(home, asked)
    assert np.array_equal(arrays.run(run), arrays.a @ arrays.b)
