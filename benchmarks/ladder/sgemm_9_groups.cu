// Groups of tiles: blocks that run at the same time share more of what they load, and L2 has it.
//
// Some 264 blocks run at once on 132 multiprocessors. In order of rows of 32 tiles they cover 8 x 32 tiles and read
// 40 different strips of a and b; as 16 x 16 they read 32. The wider the matrix the more it gains: with 128 tiles in
// a row 2 + 128 strips become 32. As long as all operands fit in L2 it gains nothing.
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

// A thread's part of one k.
struct Fragment {
    float a[8], b[8];

    DEVICE void load(u32 tiles, int k, int ty, int tx) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            load4(a + 4 * half, tiles + a_at(k, ty + 16 * half));
            load4(b + 4 * half, tiles + b_at(k, tx + 32 * half));
        }
    }
};

DEVICE void multiply(float (&sums)[8][8], const Fragment& f) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] += f.a[i] * f.b[j];
}

constexpr int GROUP = 16;  // rows of tiles

// Blocks, in the order in which they start, go down the rows of a group and then to the next column; the last group
// may be lower. (gridDim.x is tiles beside each other, gridDim.y below each other.)
DEVICE void tile_here(int& row, int& column) {
    const int number = blockIdx.y * gridDim.x + blockIdx.x, in_group = GROUP * gridDim.x;
    const int first = number / in_group * GROUP, rest = number % in_group;
    const int below = gridDim.y - first, height = below < GROUP ? below : GROUP;
    row = first + rest % height;
    column = rest / height;
}

GLOBAL_KERNEL void __launch_bounds__(THREADS, 2) gemm(const __grid_constant__ Params p) {
    const u32 shared = dynamic_shared();
    // Where in the tile a thread's elements begin: a warp has 32 x 64, its lanes are 4 below and 8 beside each other.
    // Lanes 1 apart have the same rows, lanes 2 apart the same columns.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int ty = warp / 2 * 32 + 4 * ((lane >> 1 & 1) | (lane >> 3 & 2));
    const int tx = warp % 2 * 64 + 4 * ((lane & 1) | (lane >> 1 & 6));
    int tile_row, tile_column;
    tile_here(tile_row, tile_column);
    const long long row = tile_row * TILE_M, column = tile_column * TILE_N;
    const float *a = p.a + row * p.k, *b = p.b + column;
    float sums[8][8] = {};
    u32 tiles = shared;  // the stage that is read
    Next next;
    next.fetch(p, a, b);
    next.store(tiles);
    block_sync();
    Fragment fragment[2];
    fragment[0].load(tiles, 0, ty, tx);
    for (int k0 = TILE_K; k0 < p.k; k0 += TILE_K) {
        a += TILE_K, b += static_cast<long long>(TILE_K) * p.n;
        next.fetch(p, a, b);  // on its way while the tile before is multiplied
#pragma unroll
        for (int k = 0; k < TILE_K - 1; ++k) {
            fragment[(k + 1) % 2].load(tiles, k + 1, ty, tx);
            multiply(sums, fragment[k % 2]);
        }
        tiles = 2 * shared + STAGE - tiles;  // the other stage: it was last read before the last barrier
        next.store(tiles);
        block_sync();
        fragment[0].load(tiles, 0, ty, tx);
        multiply(sums, fragment[1]);  // the last k of the tile before
    }
#pragma unroll
    for (int k = 0; k < TILE_K; ++k) {
        if (k + 1 < TILE_K) fragment[(k + 1) % 2].load(tiles, k + 1, ty, tx);
        multiply(sums, fragment[k % 2]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float* four = sums[i] + 4 * half;
            float* to = p.c + (row + ty + i % 4 + 16 * (i / 4)) * p.n + column + tx + 32 * half;
            store_global(reinterpret_cast<Float4*>(to), Float4{four[0], four[1], four[2], four[3]});
        }
}
