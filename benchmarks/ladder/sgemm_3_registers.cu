// A thread computes 8 x 8 elements, as outer products in registers.
//
// For each k a thread loads 8 elements of a and 8 of b and does 64 multiply-adds with them: a quarter of a load for
// each instead of two. Its rows and columns are 16 apart, so neighbouring lanes still have neighbouring columns. The
// block's tile grows to 128 x 128, so L2 delivers 1 byte for 32 FLOP. Of k only 8 are in shared memory at a time: the
// depth of a tile changes how often there is a barrier, not how much is loaded.
// What is bad here: 16 loads for 64 multiply-adds; each takes the place of one. (Of those from a, neighbours along k,
// the compiler makes one of 16 bytes for four; of those from b, 16 apart, it cannot.)
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 8, THREADS = 256, SHARED_BYTES = 8192;

using Params = Operands<float>;

// Shared memory: a as it is in global memory, [m][k]; then b, [k][n].
DEVICE u32 a_at(int m, int k) { return 4 * (m * TILE_K + k); }
DEVICE u32 b_at(int k, int n) { return 4 * (TILE_M * TILE_K + k * TILE_N + n); }

// A tile of each operand from global to shared memory; `a` and `b` are where they begin.
DEVICE void load(u32 tiles, const Params& p, const float* a, const float* b) {
    constexpr int LOADS = TILE_M * TILE_K / THREADS;  // of a thread from each
    float of_a[LOADS], of_b[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        const int e = i * THREADS + threadIdx.x;
        of_a[i] = load_global(a + e / TILE_K * p.k + e % TILE_K);
        of_b[i] = load_global(b + e / TILE_N * p.n + e % TILE_N);
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        const int e = i * THREADS + threadIdx.x;
        store_shared(tiles + a_at(e / TILE_K, e % TILE_K), of_a[i]);
        store_shared(tiles + b_at(e / TILE_N, e % TILE_N), of_b[i]);
    }
}

DEVICE void multiply(float (&sums)[8][8], u32 tiles, int ty, int tx) {
#pragma unroll 4  // with all 8 the compiler asks for too much at once, and runs out of registers
    for (int k = 0; k < TILE_K; ++k) {
        float a[8], b[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] = load_shared<float>(tiles + a_at(ty + 16 * i, k));
#pragma unroll
        for (int j = 0; j < 8; ++j) b[j] = load_shared<float>(tiles + b_at(k, tx + 16 * j));
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) sums[i][j] += a[i] * b[j];
    }
}

GLOBAL_KERNEL void __launch_bounds__(THREADS, 2) gemm(const __grid_constant__ Params p) {
    const u32 tiles = dynamic_shared();
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const long long row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N;
    const float *a = p.a + row * p.k, *b = p.b + column;
    float sums[8][8] = {};
    for (int k0 = 0; k0 < p.k; k0 += TILE_K) {
        load(tiles, p, a, b);
        a += TILE_K, b += static_cast<long long>(TILE_K) * p.n;
        block_sync();
        multiply(sums, tiles, ty, tx);
        block_sync();
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) store_global(p.c + (row + ty + 16 * i) * p.n + column + tx + 16 * j, sums[i][j]);
}
