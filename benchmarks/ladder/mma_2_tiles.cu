// Tiles of 128 x 128 in shared memory; a warp computes 64 x 32 of it.
//
// The block loads 64 of k at a time, 16 bytes a thread and load, so L2 delivers 1 byte for 64 FLOP. A warp's
// fragments serve several multiplications: each of a four, each of b as well. Eight warps, 2 x 4.
// What is bad here: rows in shared memory are 128 bytes apart, which is all 32 banks once. The 8 rows that a
// fragment's load touches all begin in the same bank, and take 8 cycles instead of one.
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 64, THREADS = 256, SHARED_BYTES = 32768;
constexpr int WARP_M = 64, WARP_N = 32;
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;  // pieces of 16 x 8

using Params = Operands<u16>;

// Shared memory: a, [m][k]; then b, [n][k]; rows of 8 chunks of 16 bytes.
DEVICE u32 at(int row, int chunk) { return 16 * (row * (TILE_K / 8) + chunk); }
constexpr u32 B_TILE = 2 * TILE_M * TILE_K;

// A tile of each operand from global to shared memory: 128 rows of 64, `ld` elements apart, 8 elements a load. All
// loads come before the first store, so that there is one wait for all of them.
DEVICE void load(u32 tiles, const u16* a, const u16* b, int ld) {
    constexpr int LOADS = TILE_M * TILE_K / 8 / THREADS;  // of a thread from each
    Word4 of_a[LOADS], of_b[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        const int e = i * THREADS + threadIdx.x, place = e / 8 * ld + e % 8 * 8;
        of_a[i] = load_global(reinterpret_cast<const Word4*>(a + place));
        of_b[i] = load_global(reinterpret_cast<const Word4*>(b + place));
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        const int e = i * THREADS + threadIdx.x;
        store_shared(tiles + at(e / 8, e % 8), of_a[i]);
        store_shared(tiles + B_TILE + at(e / 8, e % 8), of_b[i]);
    }
}

// Lane's pairs of a fragment: rows lane / 4 (and 8 below), elements 2 (lane % 4) of the chunk.
DEVICE u32 pair(u32 tile, int row, int chunk) {
    const int lane = threadIdx.x % 32;
    return load_shared<u32>(tile + at(row + lane / 4, chunk) + 4 * (lane % 4));
}

// `row` and `column`: of the warp in the tile.
DEVICE void multiply(float (&sums)[BLOCKS_M][BLOCKS_N][4], u32 tiles, int row, int column) {
#pragma unroll
    for (int step = 0; step < TILE_K / 16; ++step) {
        u32 a[BLOCKS_M][4], b[BLOCKS_N][2];
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
            for (int q = 0; q < 4; ++q) a[i][q] = pair(tiles, row + 16 * i + q % 2 * 8, 2 * step + q / 2);
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j)
#pragma unroll
            for (int q = 0; q < 2; ++q) b[j][q] = pair(tiles + B_TILE, column + 8 * j, 2 * step + q);
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
            for (int j = 0; j < BLOCKS_N; ++j) multiply_add<0>(sums[i][j], a[i], b[j][0], b[j][1]);
    }
}

GLOBAL_KERNEL void __launch_bounds__(THREADS, 2) gemm(const __grid_constant__ Params p) {
    const u32 tiles = dynamic_shared();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / (TILE_N / WARP_N) * WARP_M, warp_column = warp % (TILE_N / WARP_N) * WARP_N;
    const long long row = blockIdx.y * TILE_M, column = blockIdx.x * TILE_N;
    const u16 *a = p.a + row * p.k, *b = p.b + column * p.k;
    float sums[BLOCKS_M][BLOCKS_N][4] = {};
    for (int k = 0; k < p.k; k += TILE_K) {
        load(tiles, a + k, b + k, p.k);
        block_sync();  // both tiles are complete
        multiply(sums, tiles, warp_row, warp_column);
        block_sync();  // no thread reads them any more
    }
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const long long r = row + warp_row + 16 * i + lane / 4 + 8 * half;
                u16* to = p.c + r * p.n + column + warp_column + 8 * j + 2 * (lane % 4);
                const float* both = &sums[i][j][2 * half];
                store_global(reinterpret_cast<u32*>(to), pack_bf16(both[0], both[1]));
            }
}
