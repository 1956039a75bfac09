// No bank conflicts: a thread's 8 x 8 elements are four pieces of 4 x 4, and rows of a are padded.
//
// Shared memory has 32 banks, a word of 4 bytes each in a cycle; two lanes that want different words of one bank take
// two cycles. A quarter of a warp loads 8 x 16 bytes in a cycle, all banks, if they are neighbours. So the threads'
// columns are 4 tx and 64 + 4 tx instead of 8 tx and 8 tx + 4: the same words, dealt out in another way. Rows of a
// that are 4 words longer than 128 put the stores of lanes with different k into different banks.
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 8, THREADS = 256, SHARED_BYTES = 8320;

using Params = Operands<float>;

constexpr int A_ROW = TILE_M + 4;  // elements: 4 rows further on, 16 banks further on

// Shared memory: a transposed, [k][m]; then b, [k][n].
DEVICE u32 a_at(int k, int m) { return 4 * (k * A_ROW + m); }
DEVICE u32 b_at(int k, int n) { return 4 * (TILE_K * A_ROW + k * TILE_N + n); }

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
            load4(a + 4 * half, tiles + a_at(k, 4 * ty + 64 * half));
            load4(b + 4 * half, tiles + b_at(k, 4 * tx + 64 * half));
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
            float* to = p.c + (row + 4 * ty + i % 4 + 64 * (i / 4)) * p.n + column + 4 * tx + 64 * half;
            store_global(reinterpret_cast<Float4*>(to), Float4{four[0], four[1], four[2], four[3]});
        }
}
