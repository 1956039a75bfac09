// Tiles of 32 x 32 in shared memory: a block loads each element once and uses it 32 times.
//
// The block of 32 x 32 threads loads 32 of k at a time, so L2 delivers 8 bytes for 64 FLOP: 8 FLOP a byte instead of
// 0.48. Every multiply-add still needs two loads, now from shared memory. That delivers 128 bytes, one row of 32
// words, in a cycle: two cycles for the 64 FLOP of a warp, 32 FLOP a cycle, an eighth of what a multiprocessor of
// Hopper can do.
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 32, TILE_N = 32, TILE_K = 32, THREADS = 1024, SHARED_BYTES = 8192;

using Params = Operands<float>;

DEVICE u32 at(int row, int column) { return 4 * (row * 32 + column); }  // in a tile, bytes

GLOBAL_KERNEL void __launch_bounds__(THREADS) gemm(const __grid_constant__ Params p) {
    const u32 a_tile = dynamic_shared(), b_tile = a_tile + 4 * TILE_M * TILE_K;
    const int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
    const long long row = blockIdx.y * TILE_M + ty, column = blockIdx.x * TILE_N + tx;
    float sum = 0.0f;
    for (int k0 = 0; k0 < p.k; k0 += TILE_K) {
        const float of_a = load_global(p.a + row * p.k + k0 + tx);
        const float of_b = load_global(p.b + static_cast<long long>(k0 + ty) * p.n + column);
        store_shared(a_tile + at(ty, tx), of_a);
        store_shared(b_tile + at(ty, tx), of_b);
        block_sync();  // both tiles are complete
#pragma unroll
        for (int k = 0; k < TILE_K; ++k)
            sum += load_shared<float>(a_tile + at(ty, k)) * load_shared<float>(b_tile + at(k, tx));
        block_sync();  // no thread reads them any more
    }
    store_global(p.c + row * p.n + column, sum);
}
