// Padding: rows in shared memory are 16 bytes longer, and 8 of them begin in 8 different places of the banks.
//
// 144 bytes are 36 banks: each row begins 4 banks after the one before, so the 8 rows of 16 bytes that ldmatrix loads
// in one go cover all 32 once: one cycle instead of 8. Of all changes in this ladder the one with the shortest diff.
// It costs an eighth of shared memory.
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 64, THREADS = 256, SHARED_BYTES = 36864;
constexpr int WARP_M = 64, WARP_N = 32;
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;  // pieces of 16 x 8

using Params = Operands<u16>;

// Shared memory: a, [m][k]; then b, [n][k]; rows of 8 chunks of 16 bytes, and one to spare.
DEVICE u32 at(int row, int chunk) { return 16 * (row * (TILE_K / 8 + 1) + chunk); }
constexpr u32 B_TILE = 2 * TILE_M * (TILE_K + 8);

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

// `row` and `column`: of the warp in the tile.
DEVICE void multiply(float (&sums)[BLOCKS_M][BLOCKS_N][4], u32 tiles, int row, int column) {
    const u32 lane = threadIdx.x % 32, b_tile = tiles + B_TILE;
#pragma unroll
    for (int step = 0; step < TILE_K / 16; ++step) {
        // Lane 8 q + r names row r of matrix q. Of a: 0 and 1 are below each other, 2 and 3 beside them. Of b: 0 and 1
        // beside each other, they are b0 and b1 of 8 columns; 2 and 3 are those of the next 8.
        u32 a[BLOCKS_M][4], b[BLOCKS_N / 2][4];
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i)
            load_matrices(a[i], tiles + at(row + 16 * i + lane % 16, 2 * step + lane / 16));
#pragma unroll
        for (int j = 0; j < BLOCKS_N / 2; ++j)
            load_matrices(b[j], b_tile + at(column + 16 * j + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i)
#pragma unroll
            for (int j = 0; j < BLOCKS_N; ++j) {
                const u32* pair = &b[j / 2][j % 2 * 2];
                multiply_add<0>(sums[i][j], a[i], pair[0], pair[1]);
            }
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
