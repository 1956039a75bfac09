"""The SIMT engine: right results under all schedules, and faults that end a kernel but not the process."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from simulated import KERNELS, Card, compiled, exact, gemm

TYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
SIZES = [(1, 1, 1), (64, 64, 64), (65, 63, 33), (7, 129, 100), (128, 72, 40), (33, 8, 0)]
SCHEDULES = [
    {"ASYNC": mode, "SEED": seed, "LAYOUT": layout, "WORKERS": workers}
    for mode, seed, layout, workers in [(1, 0, 0, 2), (0, 1, 1, 1), (2, 2, 0, 3), (1, 3, 1, 2)]
]


@pytest.fixture
def card():
    card = Card()
    with card.options(QUIET=1):
        yield card
        card.reset()


def right(card, launch, shape, dtype):
    m, n, k = shape
    rng = np.random.default_rng(m * n + k)
    a, b = exact(rng, (m, k), dtype), exact(rng, (k, n), dtype)
    product, error = gemm(card, launch, a, b)
    assert not error
    return np.array_equal(product, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_the_pipelined_kernel(card, shape, schedule):
    library = compiled(KERNELS / "gemm_wmma.mu")
    with card.options(**schedule):
        for name in ("f16", "bf16"):
            assert right(card, getattr(library, f"gemm_wmma_{name}"), shape, TYPES[name])


@pytest.mark.parametrize("name", TYPES)
def test_the_tiled_kernel(card, name):
    library = compiled(KERNELS / "gemm_tiled.mu")
    for shape in SIZES:
        assert right(card, getattr(library, f"gemm_tiled_{name}"), shape, TYPES[name])


@pytest.mark.parametrize("how", ["launch_vector_add", "launch_vector_add_by_address"])
def test_both_forms_of_launches(card, how):
    library = compiled(KERNELS / "vector_add.mu")
    n = 1000
    a, b = (np.arange(n, dtype=np.float32) * factor for factor in (1, 3))
    p, q, r = card.put(a), card.put(b), card.malloc(a.nbytes)
    assert getattr(library, how)(p, q, r, n, None) == 0
    assert np.array_equal(card.get(r, n, np.float32), 4 * a)
    card.free(p, q, r)


def test_a_launch_waits_for_its_stream(card):
    """Arguments are copied when the program launches; the kernel runs when something demands it."""
    library = compiled(KERNELS / "vector_add.mu")
    a = np.ones(100, np.float32)
    p, r, stream, other = card.put(a), card.malloc(400), card.stream(), card.stream()
    assert library.launch_vector_add(p, p, r, 100, stream) == 0
    out = np.zeros_like(a)
    card.copy_async(out.ctypes.data, r, 400, 2, other)
    card.rt.musaStreamSynchronize(other)
    assert np.isnan(out).all()
    card.rt.musaStreamSynchronize(stream)
    assert (card.get(r, 100, np.float32) == 2).all()
    card.free(p, r)
    for s in (stream, other):
        card.rt.musaStreamDestroy(s)


def test_threads_of_the_program_may_launch_at_once(card):
    library = compiled(KERNELS / "gemm_tiled.mu")

    def products(seed):
        rng = np.random.default_rng(seed)
        a, b = exact(rng, (40, 30), np.float32), exact(rng, (30, 50), np.float32)
        return all(np.array_equal(gemm(card, library.gemm_tiled_f32, a, b)[0], a @ b) for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(products, range(4)))


FEATURES = """
#include <mma.h>
#include <stdio.h>
using namespace mtmusa;

__global__ void dynamic(int* out, int n) {
  extern __shared__ __align__(16) char raw[];
  int* values = reinterpret_cast<int*>(raw);
  for (int i = threadIdx.x; i < n; i += blockDim.x) values[i] = i;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = values[n - 1 - i];
}
extern "C" int run_dynamic(int* out, int n, int allow) {
  if (allow) musaFuncSetAttribute(dynamic, musaFuncAttributeMaxDynamicSharedMemorySize, n * 4);
  dynamic<<<1, 64, n * 4>>>(out, n);
  return musaGetLastError();
}

__global__ void warps(int* out) {
  int sum = threadIdx.x;
  for (int step = warpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0ull, sum, step);
  int next = __shfl_down_sync(~0ull, (int)threadIdx.x, 1);
  int votes = __syncthreads_count(threadIdx.x % 3 == 0);
  out[threadIdx.x] = sum + 1000000 * (next - (int)threadIdx.x) + (threadIdx.x == 0 ? votes * 10000000 : 0);
}
extern "C" int run_warps(int* out) { warps<<<1, 256>>>(out); return musaGetLastError(); }
extern "C" int warp_size() { return warpSize; }

__global__ void histogram(const int* in, int* counts, float* sum, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(&counts[in[i]], 1);
  atomicAdd(sum, 0.5f);
}
extern "C" int run_histogram(const int* in, int* counts, float* sum, int n) {
  histogram<<<(n + 63) / 64, 64>>>(in, counts, sum, n);
  return musaGetLastError();
}

// One group of 32 threads multiplies 16x16x16 or 8x32x16, in half with half accumulators or bfloat16.
template <int M, int N, class T, class C>
__global__ void multiply(const T* a, const T* b, C* c, C* scaled) {
  wmma::fragment<wmma::matrix_a, M, N, 16, T, wmma::col_major> left;
  wmma::fragment<wmma::matrix_b, M, N, 16, T, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, M, N, 16, C> sum;
  wmma::load_matrix_sync(left, a, M);
  wmma::load_matrix_sync(right, b, 16);
  wmma::load_matrix_sync(sum, c, N, wmma::mem_row_major);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(c, sum, N, wmma::mem_row_major);
  for (int i = 0; i < sum.num_elements; i++) sum.x[i] = sum.x[i] * C(2.0f);
  wmma::store_matrix_sync(scaled, sum, M, wmma::mem_col_major);
}
extern "C" void run_multiply_16(const half* a, const half* b, float* c, float* d) {
  multiply<16, 16><<<1, 32>>>(a, b, c, d);
}
extern "C" void run_multiply_16_half(const half* a, const half* b, half* c, half* d) {
  multiply<16, 16><<<1, 32>>>(a, b, c, d);
}
extern "C" void run_multiply_8(const __mt_bfloat16* a, const __mt_bfloat16* b, float* c, float* d) {
  multiply<8, 32><<<1, 32>>>(a, b, c, d);
}
"""


def test_dynamic_shared_memory(card):
    library = compiled(FEATURES)
    n = 15000  # 60,000 bytes: more than a kernel has without asking
    out = card.malloc(n * 4)
    assert library.run_dynamic(out, n, 0) == 1
    assert "musaFuncSetAttribute" in card.message()
    assert library.run_dynamic(out, n, 1) == 0
    assert np.array_equal(card.get(out, n, np.int32), np.arange(n)[::-1])
    card.free(out)


@pytest.mark.parametrize(("arch", "warp"), [(22, 128), (31, 32)])
def test_warps(card, arch, warp):
    library = compiled(FEATURES, arch=f"mp_{arch}")
    assert library.warp_size() == warp
    with card.options(ARCH=arch):
        out = card.malloc(1024)
        assert library.run_warps(out) == 0
        got = card.get(out, 256, np.int32)
        card.free(out)
    lanes = np.arange(256).reshape(-1, warp)
    expected = np.repeat(lanes.sum(1, keepdims=True), warp, 1)
    expected[:, :-1] += 1000000  # the last lane has no next one and keeps its own value
    expected[0, 0] += 86 * 10000000
    assert np.array_equal(got, expected.ravel())


def test_atomics_across_blocks(card):
    library = compiled(FEATURES)
    values = np.random.default_rng(0).integers(0, 5, 1000).astype(np.int32)
    p, counts, total = card.put(values), card.put(np.zeros(5, np.int32)), card.put(np.zeros(1, np.float32))
    assert library.run_histogram(p, counts, total, 1000) == 0
    assert np.array_equal(card.get(counts, 5, np.int32), np.bincount(values, minlength=5))
    assert card.get(total, 1, np.float32) == 500
    card.free(p, counts, total)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize(
    ("name", "m", "n", "dtype", "result"),
    [
        ("run_multiply_16", 16, 16, np.float16, np.float32),
        ("run_multiply_16_half", 16, 16, np.float16, np.float16),
        ("run_multiply_8", 8, 32, ml_dtypes.bfloat16, np.float32),
    ],
)
def test_fragments_of_32_threads(card, layout, name, m, n, dtype, result):
    library = compiled(FEATURES)
    rng = np.random.default_rng(1)
    a, b, c = exact(rng, (m, 16), dtype), exact(rng, (16, n), dtype), exact(rng, (m, n), result)
    p, q = (card.put(np.asfortranarray(x).ravel(order="F")) for x in (a, b))
    r, d = card.put(c), card.malloc(c.nbytes)
    with card.options(LAYOUT=layout):
        getattr(library, name)(p, q, r, d)
        got, doubled = card.get(r, (m, n), result), card.get(d, (n, m), result).T
    expected = c + (a.astype(np.float32) @ b.astype(np.float32)).astype(result)
    assert np.array_equal(got, expected)
    assert np.array_equal(doubled, 2 * expected)
    card.free(p, q, r, d)


FAULTS = """
#include <assert.h>
#include <musa_pipeline_primitives.h>
#include <musa_runtime.h>
#include <crt_mma_for_tests.h>

__global__ void fault(float* p, int what, int n) {
  __shared__ __align__(16) float tile[256];
  const int t = threadIdx.x;
  switch (what) {
    case 0: p[n + t] = 1.0f; break;
    case 1: tile[t] = *(volatile float*)(size_t)(64 + 4 * t); break;
    case 2: __pipeline_memcpy_async((char*)tile + 4, (char*)p + 4, 16); break;
    case 3: if (t < 32) __syncthreads(); else
      __syncthreads(); break;
    case 4: if (t == 0) return; __syncthreads(); break;
    case 5: assert(t < 7); break;
    case 6: while (p[0] != 1.0f) __syncwarp(); break;
    case 7: __pipeline_memcpy_async(&tile[4 * t], &p[0], 16); __pipeline_commit(); break;
    case 8: p[0] = float(n / (n - 1024)); break;
    case 9: if (t % 2) __syncwarp(); else __syncthreads(); break;
    case 10: { wmma::fragment<wmma::accumulator, 16, 16, 16, float> f; wmma::fill_fragment(f, 0.0f);
               wmma::store_matrix_sync(t < 5 ? tile : tile + 64, f, 16, wmma::mem_row_major); break; }
  }
}
__global__ void deep(float* p) {
  volatile char local[200000];
  local[threadIdx.x] = 1;
  p[0] = local[0];
}
extern "C" void run_fault(float* p, int what, int n) {
  if (what == 11) deep<<<2, 64>>>(p);
  else fault<<<2, 64>>>(p, what, n);
}
extern "C" int configure(int blocks, int threads, int z) {
  fault<<<blocks, dim3(threads, 1, z)>>>(nullptr, 99, 0);
  return musaGetLastError();
}
""".replace("#include <crt_mma_for_tests.h>", "#include <mma.h>\nnamespace wmma = mtmusa::wmma;")


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        (0, 700, "illegal write: 0 bytes past the end of the allocation of 4096 bytes"),
        (1, 700, "illegal read: address 0x"),
        (2, 716, "not a multiple of the size"),
        (3, 719, "wait at different barriers: kernel.mu:15 and kernel.mu:16"),
        (4, 719, "__syncthreads() after threads of the block have returned"),
        (5, 710, "an assertion failed"),
        (6, 702, "ran longer than 1 s"),
        (7, 719, "returned while its asynchronous copies were in flight"),
        (8, 719, "division by zero"),
        (9, 719, "deadlock: 32 threads wait for __syncthreads at kernel.mu:22; 32 threads wait for __syncwarp"),
        (11, 700, "more local memory"),
        (10, 719, "lanes of one group disagree: store_matrix_sync"),
    ],
)
def test_faults_lose_the_device_and_not_the_process(card, what, error, words):
    library = compiled(FAULTS)
    n = 1024
    p = card.put(np.zeros(n, np.float32))
    with card.options(TIMEOUT=1):
        library.run_fault(p, what, n)
        assert card.rt.musaDeviceSynchronize() == error
    assert words in card.message()
    assert card.message().startswith(("fault: ", "deep: "))
    if what not in (6, 9):  # whichever thread it was
        assert "thread (" in card.message()
    assert card.rt.musaGetLastError() == error
    assert card.rt.musaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(4)) == error
    card.reset()
    assert np.array_equal(card.get(p, n, np.float32), np.zeros(n))
    card.free(p)


def test_a_fault_names_its_line(card):
    library = compiled(FAULTS)
    p = card.malloc(4096)
    library.run_fault(p, 0, 1024)
    assert card.rt.musaDeviceSynchronize() == 700
    assert " at kernel.mu:12 [block (" in card.message()
    card.reset()
    card.free(p)


def test_a_write_just_past_the_end_of_an_odd_allocation(card):
    """It hits no guard page, but the bytes between are watched."""
    library = compiled(FAULTS)
    p = card.malloc(4 * 63)
    library.run_fault(p, 0, 0)  # 64 threads
    assert card.rt.musaDeviceSynchronize() == 700
    assert "a write went to 0 bytes past the end of the allocation of 252 bytes" in card.message()
    card.reset()
    card.free(p)


def test_other_devices_memory_is_out_of_reach(card):
    library = compiled(FAULTS)
    with card.options(DEVICES=2):
        p = card.malloc(4096)
        assert card.rt.musaSetDevice(1) == 0
        library.run_fault(p, 0, 0)
        assert card.rt.musaDeviceSynchronize() == 700
        card.reset()
        assert card.rt.musaSetDevice(0) == 0
        card.free(p)


@pytest.mark.parametrize(
    ("configuration", "error"),
    [((1, 64, 1), 0), ((0, 64, 1), 9), ((1, 0, 1), 9), ((1, 1025, 1), 9), ((1, 8, 65), 9), ((1, 1024, 1), 0)],
)
def test_launch_configurations(card, configuration, error):
    assert compiled(FAULTS).configure(*configuration) == error
    assert card.rt.musaDeviceSynchronize() == 0


def test_code_for_another_architecture(card):
    library = compiled(FEATURES, arch="mp_31")
    out = card.malloc(1024)
    assert library.run_warps(out) == 209
    assert "compiled for mp_31, the device is mp_22" in card.message()
    card.free(out)


def test_an_injected_launch_failure(card):
    library = compiled(KERNELS / "vector_add.mu")
    card.rt.musaSimInject(b"musaLaunchKernel:1")
    p = card.malloc(400)
    assert [library.launch_vector_add(p, p, p, 100, None) for _ in range(2)] == [701, 0]
    card.free(p)


def test_an_unknown_function_cannot_be_launched(card):
    launch = card.rt.musaLaunchKernel
    launch.argtypes = [ctypes.c_void_p, Dim3, Dim3, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert launch(ctypes.cast(card.rt.musaMalloc, ctypes.c_void_p), Dim3(1, 1, 1), Dim3(1, 1, 1), None, 0, None) == 98


class Dim3(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]


def test_occupancy_counts_threads_and_shared_memory(card):
    library = compiled(
        "#include <musa_runtime.h>\n"
        "__global__ void k(int* out) { __shared__ char bytes[20000]; bytes[threadIdx.x] = 1; __syncthreads();\n"
        "  *out = bytes[*out]; }\n"
        'extern "C" int ask(int threads, int dynamic_bytes) { int blocks = -1;\n'
        "  musaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, threads, dynamic_bytes); return blocks; }\n"
    )
    assert [library.ask(1024, 0), library.ask(64, 0), library.ask(64, 20000), library.ask(2048, 0)] == [3, 3, 1, 0]
