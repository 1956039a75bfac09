"""What test_cuda_device.py runs on the GPU, in a process of its own with MUSA_HOME set: python cuda_calls.py SECTION...

Prints a line of JSON for each section: what it found, or how it failed. "compile" only compiles what the others need.
"""

import ctypes
import functools
import itertools
import json
import re
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

import ml_dtypes
import numpy as np
from gemmhub_musa import array, compile, doctor, from_numpy, runtime, sdk
from gemmhub_musa.runtime import ON_DEVICE, TO_DEVICE, TO_HOST, MusaError
from simulated import KERNELS, exact
from test_simt import FEATURES, SIZES, TYPES

from gemmhub.accuracy import error_model, reference
from gemmhub.capability import Absent
from gemmhub.errors import AllocationError
from gemmhub.kit import native

SHAPES = [*SIZES, (31, 37, 41), (257, 263, 269), (64, 64, 31), (1024, 768, 512)]
PRODUCTS = [f"gemm_tiled_{dtype}" for dtype in TYPES] + ["gemm_wmma_f16", "gemm_wmma_bf16"]
F32 = np.dtype(np.float32)
P = c_void_p

DELAY = """
#include <musa_runtime.h>
__global__ void delay(float* x, int rounds) {
  float value = *x;
  for (int i = 0; i < rounds; i++) value = value * 0.999f + 0.5f;
  *x = value;
}
extern "C" int launch_delay(float* x, int rounds, musaStream_t stream) {
  delay<<<1, 1, 0, stream>>>(x, rounds);
  return musaGetLastError();
}
__global__ void nothing() {}
extern "C" int configure(int blocks, int threads, int shared) {
  nothing<<<blocks, threads, shared>>>();
  return musaGetLastError();
}
"""
ROUNDS = 60_000_000
"""A tenth of a second and more: each has to wait for the one before."""

# Every group of 128 threads multiplies 32x16 by 16x32 of its own, adds what is in c, and stores by rows and by columns.
WIDE = """
#include <mma.h>
namespace wmma = mtmusa::wmma;
template <class T, class C, class LayoutA, class LayoutB>
__global__ void wide(const T* a, int lda, int size_a, const T* b, int ldb, int size_b, C* c, C* by_columns, int ldc) {
  const int group = threadIdx.x / 128;
  wmma::fragment<wmma::matrix_a, 32, 32, 16, T, LayoutA> left;
  wmma::fragment<wmma::matrix_b, 32, 32, 16, T, LayoutB> right;
  wmma::fragment<wmma::accumulator, 32, 32, 16, C> sum;
  wmma::load_matrix_sync(left, a + group * size_a, lda);
  wmma::load_matrix_sync(right, b + group * size_b, ldb);
  wmma::load_matrix_sync(sum, c + group * 32 * ldc, ldc, wmma::mem_row_major);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(c + group * 32 * ldc, sum, ldc, wmma::mem_row_major);
  wmma::store_matrix_sync(by_columns + group * 32 * ldc, sum, ldc, wmma::mem_col_major);
}
template <class T, class C>
int launch(int ways, const void* a, int lda, int size_a, const void* b, int ldb, int size_b, void* c, void* d,
           int ldc) {
  using Row = wmma::row_major;
  using Col = wmma::col_major;
  const auto kernel = ways == 0   ? wide<T, C, Row, Row>
                      : ways == 1 ? wide<T, C, Row, Col>
                      : ways == 2 ? wide<T, C, Col, Row>
                                  : wide<T, C, Col, Col>;
  kernel<<<1, 1024>>>((const T*)a, lda, size_a, (const T*)b, ldb, size_b, (C*)c, (C*)d, ldc);
  return musaGetLastError();
}
#define ARGUMENTS \\
  (int ways, const void* a, int lda, int size_a, const void* b, int ldb, int size_b, void* c, void* d, int ldc)
extern "C" int wide_f16 ARGUMENTS { return launch<half, float>(ways, a, lda, size_a, b, ldb, size_b, c, d, ldc); }
extern "C" int wide_f16_half ARGUMENTS { return launch<half, half>(ways, a, lda, size_a, b, ldb, size_b, c, d, ldc); }
extern "C" int wide_bf16 ARGUMENTS {
  return launch<__mt_bfloat16, float>(ways, a, lda, size_a, b, ldb, size_b, c, d, ldc);
}
"""


def racy():
    """The pipelined kernel without the barrier between what threads store and what others read of it."""
    text = (KERNELS / "gemm_wmma.mu").read_text()
    store = "wmma::store_matrix_sync(scratch[warp], sum[j], kFragment, wmma::mem_row_major);\n"
    broken = re.sub(re.escape(store) + r"\s*__syncthreads\(\);\n", store, text)
    assert broken != text
    return broken


def sources():
    files = {name: KERNELS / f"{name}.mu" for name in ("vector_add", "gemm_tiled", "gemm_wmma")}
    features = re.sub(r".*int warp_size\(\).*\n", "", FEATURES)  # CUDA's warpSize is nothing for the host
    return files | {"delay": DELAY, "wide": WIDE, "features": features, "racy": racy()}


@functools.cache
def library(name):
    rt()  # before the libraries that need it
    built = compile.compile_mu(sources()[name], sdk.find(), "mp_22", name=name)
    assert isinstance(built, Path), f"{built.reason}\n{built.traceback}"
    loaded = native.load(built)
    assert isinstance(loaded, ctypes.CDLL), loaded
    return loaded


def launcher(name, function, *types):
    found = library(name)[function]
    found.argtypes = types
    return found


def section_compile():
    with ThreadPoolExecutor() as pool:
        return len(list(pool.map(library, sources())))


@functools.cache
def rt():
    found = runtime.load()
    assert not isinstance(found, Absent), found
    return found


def raw(function, *types):
    """A function of libmusart that Runtime does not offer; gives its error code."""
    found = rt().library.cdll[function]
    found.argtypes, found.restype = types, c_int
    return found


def add(stream, p, q, r, how="launch_vector_add"):
    code = launcher("vector_add", how, P, P, P, c_int, P)(p.data.ptr, q.data.ptr, r.data.ptr, r.size, stream)
    assert code == 0, code


def delay(stream, scratch):
    code = launcher("delay", "launch_delay", P, c_int, P)(scratch.data.ptr, ROUNDS, stream)
    assert code == 0, code


def multiply(function, a, b, stream=0):
    """The product in float of two arrays of the host."""
    launch = launcher(re.sub(r"_\w?f\d\d$", "", function), function, P, P, P, c_int, c_int, c_int, P)
    m, k = a.shape
    n = b.shape[1]
    p, q, r = (from_numpy(x) for x in (a, b, np.full((m, n), np.nan, np.float32)))
    rt().synchronize()  # the copies went by the default stream, for which `stream` need not wait
    code = launch(p.data.ptr, q.data.ptr, r.data.ptr, m, n, k, stream)
    assert code == 0, code
    rt().stream_synchronize(stream)
    return r.numpy()


def ratio(function, shape):
    """Return the error of the worst element of a random product as a fraction of gemmhub's bound."""
    dtype = np.dtype(TYPES[function.rsplit("_", 1)[1]])
    m, n, k = shape
    rng = np.random.default_rng([m, n, k])
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (k, n)))
    expected = reference(a, b, model=error_model(dtype, dtype, F32, F32), out_dtype=F32)
    return float(expected.ratio(multiply(function, a, b)).max())


def is_exact(function, shape):
    """Return whether a product whose sums are exact in float is exact."""
    dtype = TYPES[function.rsplit("_", 1)[1]]
    m, n, k = shape
    rng = np.random.default_rng([k, n, m])
    a, b = exact(rng, (m, k), dtype), exact(rng, (k, n), dtype)
    return np.array_equal(multiply(function, a, b), a.astype(np.float32) @ b.astype(np.float32))


# What is run, a section each


def section_machine():
    found = runtime.machine()
    assert isinstance(found, runtime.Machine), found
    return {"versions": found.versions, "arch": found.arch_name(0), "warp": rt().attribute(runtime.WARP_SIZE, 0)}


def section_attributes():
    """Return for each attribute of the header its value by the runtime and by NVIDIA's driver."""
    header = (sdk.find().include / "driver_types.h").read_text()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuInit(0) == 0
    found = {}
    for name, number in re.findall(r"(musaDevAttr\w+) = (\d+)", header):
        value = c_int()
        code = driver.cuDeviceGetAttribute(byref(value), int(number), 0)
        found[name] = [rt().attribute(int(number), 0), value.value if code == 0 else f"error {code}"]
    return found


def section_memory():
    driver = ctypes.CDLL("libcuda.so.1")
    total = c_size_t()
    rt().free(rt().malloc(1))
    assert driver.cuDeviceTotalMem_v2(byref(total), 0) == 0
    before = rt().memory_info()
    held = rt().malloc(1 << 28)
    during = rt().memory_info()
    rt().free(held)
    return {"total": total.value, "before": before, "during": during, "after": rt().memory_info()}


def section_vector_add():
    found = {}
    for n, how in itertools.product(
        (1, 255, 256, 1009, 2**20 + 7), ("launch_vector_add", "launch_vector_add_by_address")
    ):
        rng = np.random.default_rng(n)
        a, b = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
        p, q, r = from_numpy(a), from_numpy(b), from_numpy(np.full(n, np.nan, np.float32))
        add(0, p, q, r, how)
        found[f"{how} {n}"] = np.array_equal(r.numpy(), a + b)
    return found


def section_products():
    return {
        function: {str(shape): [ratio(function, shape), is_exact(function, shape)] for shape in SHAPES}
        for function in PRODUCTS
    }


def section_wide():
    """Eight groups of a block, leading dimensions that are no multiples of 32 bytes."""
    found = {}
    cases = {
        "wide_f16": (np.float16, np.float32),
        "wide_f16_half": (np.float16, np.float16),
        "wide_bf16": (ml_dtypes.bfloat16, np.float32),
    }
    ldc = 40
    for name, (dtype, sums) in cases.items():
        launch = launcher("wide", name, c_int, P, c_int, c_int, P, c_int, c_int, P, P, c_int)
        for ways, (order_a, order_b) in enumerate(itertools.product("CF", "CF")):
            rng = np.random.default_rng(ways)
            a, b = exact(rng, (8, 32, 16), dtype), exact(rng, (8, 16, 32), dtype)
            c = np.zeros((8, 32, ldc), sums)
            c[:, :, :32] = exact(rng, (8, 32, 32), sums)
            (there_a, lda, size_a), (there_b, ldb, size_b) = padded(a, order_a), padded(b, order_b)
            r, d = from_numpy(c), from_numpy(np.zeros_like(c))
            code = launch(
                ways, there_a.data.ptr, lda, size_a, there_b.data.ptr, ldb, size_b, r.data.ptr, d.data.ptr, ldc
            )
            assert code == 0, code
            products = np.matmul(a.astype(np.float32), b.astype(np.float32))
            expected = c.copy()
            expected[:, :, :32] = (c[:, :, :32].astype(np.float32) + products).astype(sums)
            turned = np.zeros_like(c)
            turned[:, :, :32] = expected[:, :, :32].swapaxes(1, 2)
            found[f"{name} {order_a}{order_b}"] = [
                np.array_equal(r.numpy(), expected), np.array_equal(d.numpy(), turned)
            ]  # fmt: skip
    return found


def padded(matrices, order):
    """Matrices by rows or columns with 8 elements after each: on the device, leading dimension, elements of one."""
    lines = matrices if order == "C" else matrices.swapaxes(1, 2)
    held = np.full((len(lines), lines.shape[1], lines.shape[2] + 8), 100, lines.dtype)
    held[:, :, : lines.shape[2]] = lines
    return from_numpy(held), held.shape[2], held[0].size


def section_features():
    """Small kernels of test_simt.py."""
    n = 12000  # 48,000 bytes
    out = from_numpy(np.zeros(n, np.int32))
    found = {}
    run = launcher("features", "run_dynamic", P, c_int, c_int)
    found["dynamic"] = [run(out.data.ptr, n, 0), np.array_equal(out.numpy(), np.arange(n)[::-1])]
    n = 15000
    out = from_numpy(np.zeros(n, np.int32))
    found["more, not allowed"] = run(out.data.ptr, n, 0)
    found["more, allowed"] = [run(out.data.ptr, n, 1), np.array_equal(out.numpy(), np.arange(n)[::-1])]

    out = from_numpy(np.zeros(256, np.int32))
    found["warps"] = launcher("features", "run_warps", P)(out.data.ptr)
    lanes = np.arange(256).reshape(-1, 32)
    expected = np.repeat(lanes.sum(1, keepdims=True), 32, 1)
    expected[:, :-1] += 1000000
    expected[0, 0] += 86 * 10000000
    found["lanes"] = np.array_equal(out.numpy(), expected.ravel())

    values = np.random.default_rng(0).integers(0, 5, 1000).astype(np.int32)
    counts, total = from_numpy(np.zeros(5, np.int32)), from_numpy(np.zeros(1, np.float32))
    p = from_numpy(values)
    found["atomics"] = launcher("features", "run_histogram", P, P, P, c_int)(
        p.data.ptr, counts.data.ptr, total.data.ptr, 1000
    )
    found["counts"] = [np.array_equal(counts.numpy(), np.bincount(values, minlength=5)), float(total.numpy()[0])]

    for name, m, n, dtype, sums in (
        ("run_multiply_16", 16, 16, np.float16, np.float32),
        ("run_multiply_16_half", 16, 16, np.float16, np.float16),
        ("run_multiply_8", 8, 32, ml_dtypes.bfloat16, np.float32),
    ):
        rng = np.random.default_rng(1)
        a, b, c = exact(rng, (m, 16), dtype), exact(rng, (16, n), dtype), exact(rng, (m, n), sums)
        p, q = (from_numpy(np.ascontiguousarray(x.T)) for x in (a, b))
        r, d = from_numpy(c), from_numpy(np.zeros((n, m), sums))
        launcher("features", name, P, P, P, P)(p.data.ptr, q.data.ptr, r.data.ptr, d.data.ptr)
        expected = (c.astype(np.float32) + a.astype(np.float32) @ b.astype(np.float32)).astype(sums)
        found[name] = [np.array_equal(r.numpy(), expected), np.array_equal(d.numpy().T, 2 * expected)]
    return found


def section_streams():
    query = raw("musaStreamQuery", P)
    n = 4096
    one = np.ones(n, np.float32)
    p, scratch = from_numpy(one), from_numpy(np.zeros(1, np.float32))
    r, q, seen = (from_numpy(np.zeros(n, np.float32)) for _ in range(3))
    first, second = rt().stream_create(), rt().stream_create()
    done = rt().event_create()
    add(first, p, p, seen)  # code is loaded at the first launch: not while something is to overlap
    launcher("delay", "launch_delay", P, c_int, P)(scratch.data.ptr, 1, first)
    rt().memcpy_async(q.data.ptr, p.data.ptr, p.nbytes, ON_DEVICE, second)
    rt().memset_async(seen.data.ptr, 0, seen.nbytes, second)
    rt().synchronize()
    found = {"idle": query(first)}

    # Without an event, the second stream does not wait for the first.
    delay(first, scratch)
    add(first, p, p, r)
    rt().memcpy_async(seen.data.ptr, r.data.ptr, r.nbytes, ON_DEVICE, second)
    rt().stream_synchronize(second)
    found["busy"] = query(first)
    rt().stream_synchronize(first)
    found["too early"] = [float(x) for x in np.unique(seen.numpy())]

    # With one, it does.
    rt().memset(r.data.ptr, 0, r.nbytes)
    rt().synchronize()
    delay(first, scratch)
    add(first, p, p, r)
    rt().event_record(done, first)
    rt().stream_wait(second, done)
    rt().memcpy_async(q.data.ptr, r.data.ptr, r.nbytes, ON_DEVICE, second)
    found["not waited for"] = query(second)
    rt().stream_synchronize(second)
    found["in order"] = [float(x) for x in np.unique(q.numpy())]

    # The default stream waits for streams, and they for it.
    rt().memset(r.data.ptr, 0, r.nbytes)
    delay(first, scratch)
    add(first, p, p, r)
    host = np.zeros(n, np.float32)
    rt().memcpy(host.ctypes.data, r.data.ptr, r.nbytes, TO_HOST)
    found["default after stream"] = [float(x) for x in np.unique(host)]
    delay(0, scratch)
    add(0, r, r, q)
    add(first, q, q, seen)
    rt().stream_synchronize(first)
    found["stream after default"] = [float(x) for x in np.unique(seen.numpy())]

    # Not those that were made to be independent of it.
    free = c_void_p()
    found["created"] = raw("musaStreamCreateWithFlags", P, c_uint)(byref(free), 1)
    delay(free.value, scratch)
    add(0, p, p, r)
    rt().stream_synchronize(0)
    found["independent"] = query(free)
    rt().stream_synchronize(free.value)

    # The handles 1 and 2 are the default stream, and the thread's own.
    found["handles"] = []
    for handle in (1, 2):
        rt().memset(q.data.ptr, 0, q.nbytes)
        rt().synchronize()
        rt().memcpy_async(q.data.ptr, p.data.ptr, p.nbytes, ON_DEVICE, handle)
        rt().stream_synchronize(handle)
        found["handles"].append(np.array_equal(q.numpy(), one))
    for stream in (first, second, free.value):
        rt().stream_destroy(stream)
    rt().event_destroy(done)
    rt().clear_error()  # "not ready" may be kept as one
    return found


def section_events():
    query, elapsed = raw("musaEventQuery", P), raw("musaEventElapsedTime", P, P, P)
    scratch, stream = from_numpy(np.zeros(1, np.float32)), rt().stream_create()
    start, end, never = (rt().event_create() for _ in range(3))
    delay(stream, scratch)
    rt().stream_synchronize(stream)
    rt().event_record(start, stream)
    delay(stream, scratch)
    rt().event_record(end, stream)
    found = {"before": query(end)}
    rt().event_synchronize(end)
    found |= {"after": query(end), "ms": rt().event_elapsed(start, end), "backwards": rt().event_elapsed(end, start)}
    milliseconds, untimed = c_float(), c_void_p()
    found["never recorded"] = elapsed(byref(milliseconds), start, never)
    found["created"] = raw("musaEventCreateWithFlags", P, c_uint)(byref(untimed), 2)
    rt().event_record(untimed.value, stream)
    rt().event_synchronize(untimed.value)
    found["untimed"] = elapsed(byref(milliseconds), start, untimed)
    rt().clear_error()
    for event in (start, end, never, untimed.value):
        rt().event_destroy(event)
    rt().stream_destroy(stream)
    return found


def section_copies():
    rng = np.random.default_rng(3)
    x = rng.integers(0, 256, 100_003).astype(np.uint8)
    host = np.zeros_like(x)
    one, two = rt().malloc(x.size), rt().malloc(x.size)

    def fetched(source):
        host[:] = 0
        rt().memcpy(host.ctypes.data, source, x.size, TO_HOST)
        return np.array_equal(host, x)

    rt().memcpy(one, x.ctypes.data, x.size, TO_DEVICE)
    found = {"to and fro": fetched(one)}
    rt().memcpy(two, one, x.size, ON_DEVICE)
    found["on the device"] = fetched(two)
    rt().memset(two, 7, x.size)
    rt().memcpy(two, x.ctypes.data, x.size, 4)
    found["default kind"] = fetched(two)
    host[:] = 0
    rt().memcpy(host.ctypes.data, x.ctypes.data, x.size, 0)
    found["on the host"] = np.array_equal(host, x)
    rt().memset(two, 0xA5, x.size)
    rt().memcpy(host.ctypes.data, two, x.size, TO_HOST)
    found["memset"] = bool((host == 0xA5).all())

    stream = rt().stream_create()
    rt().memset_async(two, 0, x.size, stream)
    rt().memcpy_2d_async(two + 5, 300, one + 11, 200, 150, 40, stream)
    rt().stream_synchronize(stream)
    rt().memcpy(host.ctypes.data, two, x.size, TO_HOST)
    expected = np.zeros_like(x)
    for row in range(40):
        expected[5 + 300 * row :][:150] = x[11 + 200 * row :][:150]
    found["rows"] = np.array_equal(host, expected)

    for name, arguments in {"musaMallocHost": (), "musaHostAlloc": (0,)}.items():
        pinned = c_void_p()
        code = raw(name, P, c_size_t, *(c_uint for _ in arguments))(byref(pinned), x.size, *arguments)
        ctypes.memset(pinned, 0, x.size)
        rt().memcpy_async(pinned.value, one, x.size, TO_HOST, stream)
        rt().stream_synchronize(stream)
        found[name] = [code, ctypes.string_at(pinned, x.size) == x.tobytes(), raw("musaFreeHost", P)(pinned)]

    late = c_void_p()
    code = raw("musaMallocAsync", P, c_size_t, P)(byref(late), x.size, stream)
    rt().memcpy_async(late.value, one, x.size, ON_DEVICE, stream)
    rt().stream_synchronize(stream)
    found["musaMallocAsync"] = [code, fetched(late.value), raw("musaFreeAsync", P, P)(late, stream)]
    rt().stream_synchronize(stream)
    rt().stream_destroy(stream)
    for address in (one, two):
        rt().free(address)
    return found


def section_errors():
    peek, last = raw("musaPeekAtLastError"), raw("musaGetLastError")
    p = c_void_p()
    value = c_int()
    memory = rt().malloc(64)
    configure = launcher("delay", "configure", c_int, c_int, c_int)
    attribute = raw("musaDeviceGetAttribute", P, c_int, c_int)
    text = np.zeros(64, np.uint8)
    found = {
        "musaMalloc, 16 TiB": raw("musaMalloc", P, c_size_t)(byref(p), 1 << 44),
        "peek": [peek(), peek()],
        "last": [last(), last(), peek()],
        "musaMalloc, nowhere": raw("musaMalloc", P, c_size_t)(None, 64),
        "musaMemcpy, kind 7": raw("musaMemcpy", P, P, c_size_t, c_int)(memory, text.ctypes.data, 64, 7),
        "musaSetDevice, 1000": raw("musaSetDevice", c_int)(1000),
        "musaDeviceGetAttribute, device 1000": attribute(byref(value), 1, 1000),
        "musaDeviceGetAttribute, attribute 100000": attribute(byref(value), 100000, 0),
        "musaStreamCreateWithFlags, 77": raw("musaStreamCreateWithFlags", P, c_uint)(byref(p), 77),
        "launch, 0 blocks": configure(0, 32, 0),
        "launch, 0 threads": configure(1, 0, 0),
        "launch, 1025 threads": configure(1, 1025, 0),
        "launch, 1 MiB of shared memory": configure(1, 32, 1 << 20),
        "launch": configure(1, 1024, 0),
    }  # fmt: skip
    rt().clear_error()
    try:
        rt().malloc(1 << 44)
    except AllocationError as error:
        found["allocation"] = str(error)
    try:
        rt().memcpy(memory, text.ctypes.data, 64, 7)
    except MusaError as error:
        found["exception"] = [error.function, error.code, error.name]
    rt().free(memory)
    names = rt().library.cdll["musaGetErrorName"]
    names.restype, names.argtypes = c_char_p, (c_int,)
    found["names"] = [names(code).decode() for code in (0, 700, 4711)]
    found["left"] = rt().clear_error()
    rt().synchronize()
    found["still right"] = is_exact("gemm_tiled_f32", (65, 63, 33))
    return found


def section_arrays():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((17, 6, 9)) * 20
    dtypes = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int64, np.complex64, np.bool_]
    found = {}
    for dtype in dtypes:
        here = x.astype(dtype)
        there = from_numpy(here)
        views = {
            "all": (there, here), "transposed": (there.T, here.T),
            "slices": (there[2:, ::2, 1:7:3], here[2:, ::2, 1:7:3]),
            "reversed": (there[::-1, :, ::-2], here[::-1, :, ::-2]), "element": (there[3, 4, 5], here[3, 4, 5]),
            "none": (there[:0], here[:0]),
        }  # fmt: skip
        found[np.dtype(dtype).name] = {
            name: got.shape == wanted.shape and got.numpy().tobytes() == wanted.tobytes()
            for name, (got, wanted) in views.items()
        }
    arrays, stream = array.arrays(0), rt().stream_create()
    here = x.astype(np.float32)
    with arrays.on(stream):
        there = from_numpy(here)
        clone = arrays.clone(there[:, ::2])
        target = from_numpy(np.zeros_like(here))
        arrays.copy(target[1:3], there[1:3])
    expected = np.zeros_like(here)
    expected[1:3] = here[1:3]
    found["copies"] = {
        "clone": np.array_equal(clone.numpy(), here[:, ::2]), "copy": np.array_equal(target.numpy(), expected)
    }  # fmt: skip
    rt().stream_destroy(stream)
    return found


def section_threads():
    """Products by four threads at once, each on its own stream."""

    def products(seed):
        stream = rt().stream_create()
        rng = np.random.default_rng(seed)
        a, b = exact(rng, (140, 30), np.float16), exact(rng, (30, 150), np.float16)
        wanted = a.astype(np.float32) @ b.astype(np.float32)
        right = all(np.array_equal(multiply("gemm_wmma_f16", a, b, stream), wanted) for _ in range(10))
        rt().stream_destroy(stream)
        return right

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(products, range(4)))


def section_devices():
    """On every GPU there is: whether a kernel that is launched there works on that one's memory."""
    found = []
    for index in range(rt().device_count()):
        a = np.arange(1000, dtype=np.float32)
        with rt().device(index):
            p, r = from_numpy(a, index), from_numpy(np.zeros_like(a), index)
            add(0, p, p, r)
            found.append(np.array_equal(r.numpy(), 2 * a))
    return found


def section_doctor():
    """What `gemmhub doctor musa` finds wrong here, other than libraries that this home does not have."""
    return [
        [x.section, x.item, x.text]
        for x in doctor.findings()
        if x.ok is False and x.section in ("installation", "devices", "arrays", "compilers")
    ]


def section_small():
    return ratio("gemm_wmma_f16", (65, 63, 33))


def section_racy():
    """A race, for the tool that has to find it; the result is anything."""
    multiplied = launcher("racy", "gemm_wmma_f16", P, P, P, c_int, c_int, c_int, P)
    a = from_numpy(np.ones((64, 64), np.float16))
    r = from_numpy(np.zeros((64, 64), np.float32))
    code = multiplied(a.data.ptr, a.data.ptr, r.data.ptr, 64, 64, 64, 0)
    rt().synchronize()
    return code


def main():
    for name in sys.argv[1:]:
        try:
            outcome = {"found": globals()[f"section_{name}"]()}
        except Exception:
            outcome = {"error": traceback.format_exc()}
        print(json.dumps({"section": name, **outcome}), flush=True)


if __name__ == "__main__":
    main()
