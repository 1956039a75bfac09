// Two stages of shared memory: the next tile is on its way while this one is multiplied.
//
// Global memory answers after some 500 to 800 cycles, and the multiply-adds of a tile take a multiprocessor 1024.
// Loading, barrier, multiplying, barrier adds the two up, as far as the other block on the multiprocessor does not
// fill the gap. Now a tile is loaded to registers, this one is multiplied, and only then is the next one stored,
// where no thread reads: one barrier a tile instead of two. It costs 8 registers a thread and 8 KiB of shared memory.
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 8, THREADS = 256, SHARED_BYTES = 16640;

using Params = Operands<float>;

constexpr int A_ROW = TILE_M + 4;                             // elements: 4 rows further on, 16 banks further on
constexpr u32 STAGE = 4 * (TILE_K * A_ROW + TILE_K * TILE_N);  // bytes: a tile of each operand

// Shared memory: a transposed, [k][m]; then b, [k][n].
DEVICE u32 a_at(int k, int m) { return 4 * (k * A_ROW + m); }
DEVICE u32 b_at(int k, int n) { return 4 * (TILE_K * A_ROW + k * TILE_N + n); }

// What a thread brings from global to shared memory: four neighbours along k of a, four along n of b.
struct Next {
    Float4 a, b;

    DEVICE void fetch(const Params& p, const float* a_tile, const float* b_tile) {
        a = load_global(reinterpret_cast<const Float4*>(a_tile + threadIdx.x / 2 * p.k + threadIdx.x % 2 * 4));
        b = load_global(reinterpret_cast<const Float4*>(b_tile + threadIdx.x / 32 * p.n + threadIdx.x % 32 * 4));
    }

    DEVICE void store(u32 tiles) const {
        const int a_row = threadIdx.x / 2, a_column = threadIdx.x % 2 * 4;
        store_shared(tiles + a_at(a_column, a_row), a.x);
        store_shared(tiles + a_at(a_column + 1, a_row), a.y);
        store_shared(tiles + a_at(a_column + 2, a_row), a.z);
        store_shared(tiles + a_at(a_column + 3, a_row), a.w);
        store_shared(tiles + b_at(threadIdx.x / 32, threadIdx.x % 32 * 4), b);
    }
};

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
    const u32 shared = dynamic_shared();
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const long long row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N;
    const float *a = p.a + row * p.k, *b = p.b + column;
    float sums[8][8] = {};
    u32 tiles = shared;  // the stage that is read
    Next next;
    next.fetch(p, a, b);
    next.store(tiles);
    block_sync();
    for (int k0 = TILE_K; k0 < p.k; k0 += TILE_K) {
        a += TILE_K, b += static_cast<long long>(TILE_K) * p.n;
        next.fetch(p, a, b);  // on its way while the tile before is multiplied
        multiply(sums, tiles, ty, tx);
        tiles = 2 * shared + STAGE - tiles;  // the other stage: it was last read before the last barrier
        next.store(tiles);
        block_sync();
    }
    multiply(sums, tiles, ty, tx);
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float* four = sums[i] + 4 * half;
            float* to = p.c + (row + 4 * ty + i % 4 + 64 * (i / 4)) * p.n + column + 4 * tx + 64 * half;
            store_global(reinterpret_cast<Float4*>(to), Float4{four[0], four[1], four[2], four[3]});
        }
}
