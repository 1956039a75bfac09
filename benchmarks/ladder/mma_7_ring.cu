// A ring of three stages: copies are two steps ahead, and one barrier a step does for both.
//
// Waiting comes first, then the barrier, then the next copies. So the barrier says two things at once: this step's
// tiles are complete, and no thread reads those of the step before any more; their stage is the one that is written
// next. With two stages that order would leave nothing on its way while waiting; with three there is always a step's
// worth.
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 64, THREADS = 256, SHARED_BYTES = 98304;
constexpr int STAGES = 3;
constexpr int WARP_M = 64, WARP_N = 32;
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;  // pieces of 16 x 8

using Params = Operands<u16>;

// Shared memory: a, [m][k]; then b, [n][k]; rows of 8 chunks of 16 bytes, in changed places.
DEVICE u32 at(int row, int chunk) { return 16 * (row * (TILE_K / 8) + (chunk ^ row % 8)); }
constexpr u32 B_TILE = 2 * TILE_M * TILE_K, STAGE = 2 * B_TILE;

// Begins to copy a tile of each operand from global to shared memory: 128 rows of 64, `ld` elements apart.
DEVICE void load(u32 tiles, const u16* a, const u16* b, int ld) {
#pragma unroll 4  // of more, addresses take too many registers
    for (int i = 0; i < TILE_M * TILE_K / 8 / THREADS; ++i) {
        const int e = i * THREADS + threadIdx.x, place = e / 8 * ld + e % 8 * 8;
        copy_async<16>(tiles + at(e / 8, e % 8), a + place, 16);
        copy_async<16>(tiles + B_TILE + at(e / 8, e % 8), b + place, 16);
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
    const int steps = p.k / TILE_K;
    const auto fetch = [&](int step) {
        if (step < steps) load(tiles + step % STAGES * STAGE, a + step * TILE_K, b + step * TILE_K, p.k);
        copy_commit();  // a group for each step, with or without copies: so the count of open ones stays right
    };
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);
    for (int step = 0; step < steps; ++step) {
        copy_wait<STAGES - 2>();  // this step's copies have landed: this thread's,
        block_sync();             // everybody's; and everybody is done with the step before,
        fetch(step + STAGES - 1);  // so that its stage may be written
        multiply(sums, tiles + step % STAGES * STAGE, warp_row, warp_column);
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
