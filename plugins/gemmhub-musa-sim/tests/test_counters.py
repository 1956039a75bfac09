"""The counters against counts made by hand."""

import numpy as np
import pytest
from gemmhub_musa_sim import counters
from simulated import KERNELS, Card, compiled

SOURCE = """
#include <musa_runtime.h>

__global__ void copy(const float* from, float* to, int stride) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = from[i * stride];
}
extern "C" void launch_copy(const float* from, float* to, int threads, int stride) {
  copy<<<threads / 128, 128>>>(from, to, stride);
}

__global__ void transpose(float* out, int pitch) {
  extern __shared__ float tile[];
  const int x = threadIdx.x, y = threadIdx.y;
  tile[y * pitch + x] = 1.0f;
  __syncthreads();
  out[y * 32 + x] = tile[x * pitch + y];
}
extern "C" void launch_transpose(float* out, int pitch, musaStream_t stream) {
  musaFuncSetSharedMemConfig(transpose, musaSharedMemBankSizeEightByte);
  transpose<<<1, dim3(32, 32), 32 * pitch * 4, stream>>>(out, pitch);
}
"""


@pytest.fixture(scope="module")
def kernels():
    card = Card()
    yield card, compiled(SOURCE, checks=True)
    card.reset()


def sites(kernel):
    return {(site.space, site.operation): site for site in kernel.sites}


@pytest.mark.parametrize("stride", [1, 2, 32])
def test_transactions_of_strided_reads(kernels, stride):
    card, library = kernels
    threads = 256
    source, target = card.put(np.zeros(threads * stride, np.float32)), card.malloc(threads * 4)
    with counters.counting(card.rt):
        library.launch_copy(source, target, threads, stride)
    (kernel,) = counters.read(card.rt)
    card.free(source, target)
    assert (kernel.kernel, kernel.launches, kernel.blocks, kernel.threads) == ("copy", 1, 2, 256)
    read, written = sites(kernel)["global", "read"], sites(kernel)["global", "write"]
    assert (read.requests, read.lane_bytes, read.distinct_bytes) == (2, 1024, 1024)
    assert read.transactions == min(8 * stride, threads)  # 32 floats to a line, until each lane needs its own
    assert read.ideal_transactions == written.transactions == 8
    assert read.coalesced == pytest.approx(1 / min(stride, 32))
    assert (kernel.minimum_read_bytes, kernel.minimum_written_bytes) == (1024, 1024)
    assert kernel.read_bytes == 128 * read.transactions
    assert kernel.moved_over_minimum == pytest.approx((min(stride, 32) + 1) / 2)


@pytest.mark.parametrize(
    ("pitch", "four", "eight"),
    [
        # A warp of 128 lanes reads 4 neighbouring columns of 32 rows: with 32 words to a row from 4 banks, each with
        # 32 words to give, where 4 turns would do; with banks of 8 bytes from 4 banks with 16 words each, for 2.
        (32, 8 * (32 - 4), 8 * (16 - 2)),
        (33, 0, 0),  # a row further is a bank further
    ],
)
def test_bank_conflicts_of_a_transposition(kernels, pitch, four, eight):
    card, library = kernels
    out = card.malloc(32 * 32 * 4)
    with counters.counting(card.rt):
        library.launch_transpose(out, pitch, None)
    (kernel,) = counters.read(card.rt)
    card.free(out)
    assert kernel.kernel == "transpose"
    assert kernel.barriers == 1
    assert kernel.bank_bytes == 8
    read = sites(kernel)["shared", "read"]
    assert read.requests == 8
    assert sites(kernel)["shared", "write"].bank_conflicts(4) == 0
    assert (read.bank_conflicts(4), read.bank_conflicts(8)) == (four, eight)


def test_a_matrix_product(kernels):
    """The pipelined kernel: 64x64 tiles, a step of 32, two copies of 16 bytes for each thread and step."""
    card, _ = kernels
    library = compiled(KERNELS / "gemm_wmma.mu", checks=True)
    m, n, k = 128, 128, 64
    a, b = card.put(np.zeros((m, k), np.float16)), card.put(np.zeros((k, n), np.float16))
    c = card.malloc(m * n * 4)
    with counters.counting(card.rt):
        library.gemm_wmma_f16(a, b, c, m, n, k, None)
    (kernel,) = counters.read(card.rt)
    card.free(a, b, c)
    blocks, steps = 4, 2
    assert kernel.blocks == blocks
    assert kernel.barriers == blocks * (2 * steps + 4)
    assert (kernel.async_copies, kernel.async_bytes) == (blocks * steps * 512, blocks * steps * 512 * 16)
    assert kernel.minimum_read_bytes == 2 * (m * k + k * n)
    assert kernel.minimum_written_bytes == 4 * m * n
    # A step reads half a line of each of 64 rows of A, and a line of each of 32 rows of B.
    assert kernel.read_bytes == blocks * steps * (64 + 32) * 128
    assert "barriers 32" in kernel.table()


def test_nothing_is_counted_unless_asked_for(kernels):
    card, library = kernels
    card.rt.musaSimClear()
    source, target = card.put(np.zeros(256, np.float32)), card.malloc(1024)
    library.launch_copy(source, target, 256, 1)
    card.rt.musaDeviceSynchronize()
    card.free(source, target)
    assert counters.read(card.rt) == []
