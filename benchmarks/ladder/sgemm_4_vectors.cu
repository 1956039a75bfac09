// Four neighbours at a time, from global and from shared memory; a is transposed on its way.
//
// A load of 16 bytes is one instruction for four elements: 4 instead of 16 for 64 multiply-adds, which leaves room for
// them to be issued. A thread's 8 columns, and its 8 rows, become neighbours. An outer product wants neighbours along m
// from a, and in memory they are neighbours along k; so what a thread loads from a is stored as four single words, to
// [k][m]: once for a tile, while reading is done 16 times.
// What this spoils: lanes whose 16 bytes are 32 apart (b) use every other four of the banks only, and the transposing
// stores of two lanes meet in one bank. The next step mends that.
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 8, THREADS = 256, SHARED_BYTES = 8192;

using Params = Operands<float>;

// Shared memory: a transposed, [k][m]; then b, [k][n].
DEVICE u32 a_at(int k, int m) { return 4 * (k * TILE_M + m); }
DEVICE u32 b_at(int k, int n) { return 4 * (TILE_K * TILE_M + k * TILE_N + n); }

// A thread has four neighbours along k of a and four along n of b: its `row` and `column` of them.
DEVICE void load(u32 tiles, const Params& p, const float* a, const float* b) {
    const int a_row = threadIdx.x / 2, a_column = threadIdx.x % 2 * 4;
    const int b_row = threadIdx.x / 32, b_column = threadIdx.x % 32 * 4;
    const Float4 of_a = load_global(reinterpret_cast<const Float4*>(a + a_row * p.k + a_column));
    const Float4 of_b = load_global(reinterpret_cast<const Float4*>(b + b_row * p.n + b_column));
    store_shared(tiles + a_at(a_column, a_row), of_a.x);
    store_shared(tiles + a_at(a_column + 1, a_row), of_a.y);
    store_shared(tiles + a_at(a_column + 2, a_row), of_a.z);
    store_shared(tiles + a_at(a_column + 3, a_row), of_a.w);
    store_shared(tiles + b_at(b_row, b_column), of_b);
}

DEVICE void load4(float* to, u32 from) {
    const Float4 four = load_shared<Float4>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

DEVICE void multiply(float (&sums)[8][8], u32 tiles, int ty, int tx) {
#pragma unroll
    for (int k = 0; k < TILE_K; ++k) {
        float a[8], b[8];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            load4(a + 4 * half, tiles + a_at(k, 8 * ty + 4 * half));
            load4(b + 4 * half, tiles + b_at(k, 8 * tx + 4 * half));
        }
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
        for (int half = 0; half < 2; ++half) {
            const float* four = sums[i] + 4 * half;
            float* to = p.c + (row + 8 * ty + i) * p.n + column + 8 * tx + 4 * half;
            store_global(reinterpret_cast<Float4*>(to), Float4{four[0], four[1], four[2], four[3]});
        }
}
