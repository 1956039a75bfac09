"""The checker: each kind of finding, where it is, and that it is not found where nothing is wrong."""

import ctypes

import numpy as np
import pytest
from gemmhub_musa_sim import checks
from simulated import KERNELS, Card, compiled, exact, gemm

SOURCE = """#include <musa_pipeline_primitives.h>
#include <musa_runtime.h>
struct Pair { float a[4]; float b[64]; };
__device__ float outside[4];
__global__ void cases(float* p, const float* q, int what, int n) {
  __shared__ __align__(16) float tile[64];
  __shared__ Pair pair;
  const int t = threadIdx.x;
  switch (what) {
    case 0: tile[t] = p[t]; p[t] = tile[63 - t]; break;                                           // line 10
    case 1: tile[0] = float(t); __syncthreads(); p[t] = tile[0]; break;
    case 2: p[t] = tile[t]; break;
    case 3: p[n + t] = 1.0f; break;
    case 4: pair.b[t] = 0; __syncthreads(); p[t] = pair.a[n - 1020 + t / 32]; break;
    case 5: p[t] = q[t]; break;
    case 6: p[0] = *reinterpret_cast<const float*>(reinterpret_cast<const char*>(p) + n - 1023); break;
    case 7: __pipeline_memcpy_async(&tile[t], &p[t], 4); __pipeline_commit(); p[64 + t] = tile[t];
      __pipeline_wait_prior(0); break;
    case 8: if (blockIdx.x == 0) p[t] = 1.0f; else p[t + 1] = 2.0f; break;
    case 9: p[64 * blockIdx.x + t] = 1.0f; p[64 * blockIdx.x + 63 - t] += 1.0f; break;            // line 20
    case 10: outside[t % 4] = 1.0f; break;
    case 11: tile[t] = p[t]; __syncwarp(); p[t] = tile[t ^ 1]; break;
    case 12: __pipeline_memcpy_async(&tile[t], &p[t], 4); __pipeline_commit(); __pipeline_wait_prior(0);
      __syncthreads(); p[t] = tile[63 - t]; break;
    case 13: atomicAdd(p, 1.0f); break;
    case 14: p[64 * blockIdx.x + t] = tile[t] = 1.0f; __syncthreads(); p[64 * blockIdx.x + t] += tile[63 - t]; break;
    case 15: tile[t] = 1.0f; __syncthreads(); p[64 * blockIdx.x + t] = tile[63 - t];
      __pipeline_memcpy_async(&tile[t], &q[512], 4); __pipeline_commit(); __pipeline_wait_prior(0); break;
    case 16: reinterpret_cast<float2*>(p + 1)[0].x = 1.0f; break;
  }
}
extern "C" void run_case(float* p, const float* q, int what, int n, int blocks) {
  cases<<<blocks, 64>>>(p, q, what, n);
}
"""
RAW, WAR, WAW = (f"{x} race" for x in ("read-after-write", "write-after-read", "write-after-write"))
IN_FLIGHT = "access to bytes of an asynchronous copy that nobody waited for"
UNWRITTEN = "read of bytes that were never written"
HOST_ARRAY = np.ones(4096, np.float32)


@pytest.fixture
def card():
    card = Card()
    with card.options(QUIET=1):
        yield card
        card.reset()


def run(card, what, *, blocks=1, source=None):
    library = compiled(SOURCE, checks=True)
    p = card.put(np.zeros(1024, np.float32))
    library.run_case(p, source or p, what, 1024, blocks)
    error = card.rt.musaDeviceSynchronize()
    found = {(finding.kind, finding.space, finding.place, finding.against) for finding in checks.findings(card.rt)}
    card.rt.musaSimReset()
    card.free(p)
    return found, error


def at(line):
    return f"kernel.mu:{line}"


@pytest.mark.parametrize(
    ("what", "blocks", "expected"),
    [
        (
            0,
            1,
            {
                (RAW, "shared", at(10), at(10)),
                (WAR, "shared", at(10), at(10)),
                (UNWRITTEN, "shared", at(10), ""),
            },
        ),
        (1, 1, {(WAW, "shared", at(11), at(11))}),
        (2, 1, {(UNWRITTEN, "shared", at(12), "")}),
        (4, 1, {("index out of bounds", "other", at(14), "")}),
        (7, 1, {(IN_FLIGHT, "shared", at(17), at(17))}),
        (8, 2, {(WAW, "global", at(19), at(19))}),
        (9, 2, {(RAW, "global", at(20), at(20)), (WAW, "global", at(20), at(20)), (WAR, "global", at(20), at(20))}),
        (10, 1, {("write to a variable of the program, which the simulator does not keep", "other", at(21), "")}),
        (15, 2, {(WAR, "shared", at(28), at(27)), (RAW, "shared", at(27), at(28))}),
    ],
)
def test_findings(card, what, blocks, expected):
    found, error = run(card, what, blocks=blocks)
    assert error == 0
    assert found == expected


@pytest.mark.parametrize("what", [11, 12, 13, 14])
def test_no_findings(card, what):
    """Warp barriers order a warp; waits and barriers order copies; atomics do not race with each other."""
    assert run(card, what, blocks=1 if what in (11, 12) else 2) == (set(), 0)


def test_an_overrun_is_found_and_lost(card):
    found, error = run(card, 3)
    assert error == 700
    assert ("access out of bounds", "other", at(13), "") in found


def test_host_memory(card):
    """Simulated kernels could read it, a card's could not."""
    found, error = run(card, 5, source=ctypes.c_void_p(HOST_ARRAY.ctypes.data))
    assert error == 0
    assert found == {("access to host memory", "other", at(15), "")}


@pytest.mark.parametrize(("what", "line"), [(6, 16), (16, 29)])
def test_misalignment(card, what, line):
    found, error = run(card, what)
    assert error == 716
    assert found == {("misaligned access", "other", at(line), "")}


def test_text_of_a_finding(card):
    run(card, 8, blocks=2)
    finding = checks.findings(card.rt)[0]
    assert finding.kernel == "cases"
    assert {finding.block, finding.other_block} == {0, 1}
    assert finding.offset % 4 == 0
    assert finding.count > 0
    assert str(finding).startswith(
        "cases: write-after-write race, global memory at kernel.mu:19 against kernel.mu:19 [block ("
    )
    checks.clear(card.rt)
    assert checks.findings(card.rt) == []


def test_the_product_is_right_with_the_hooks_too(card):
    rng = np.random.default_rng(5)
    a, b = exact(rng, (33, 70), np.float16), exact(rng, (70, 65), np.float16)
    product, error = gemm(card, compiled(KERNELS / "gemm_wmma.mu", checks=True).gemm_wmma_f16, a, b)
    assert not error
    assert np.array_equal(product, a.astype(np.float32) @ b.astype(np.float32))
    assert checks.findings(card.rt) == []


LOCKSTEP = """#include <mma.h>
using namespace mtmusa;
__global__ void scratch(float* out) {
  __shared__ __align__(16) float tile[16 * 16];
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> f;
  wmma::fill_fragment(f, 1.0f);
  wmma::store_matrix_sync(tile, f, 16, wmma::mem_row_major);
  for (int i = threadIdx.x; i < 256; i += 32) out[i] = tile[i];
}
extern "C" void run_scratch(float* out) { scratch<<<1, 32>>>(out); }
"""


@pytest.mark.parametrize("lockstep", [0, 1])
def test_stores_of_fragments_order_nothing_unless_warps_run_in_lock_step(card, lockstep):
    library = compiled(LOCKSTEP, checks=True)
    out = card.malloc(1024)
    with card.options(LOCKSTEP=lockstep):
        library.run_scratch(out)
        card.rt.musaDeviceSynchronize()
    kinds = {(finding.kind, finding.place, finding.against) for finding in checks.findings(card.rt)}
    if lockstep:
        assert kinds == set()
    else:
        assert (RAW, at(8), at(7)) in kinds
    card.free(out)
