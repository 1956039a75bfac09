// Tensor cores: a warp for 16 x 8 elements of c, its fragments straight from global memory.
//
// The instruction mma.m16n8k16 multiplies 16 x 16 by 16 x 8, 4096 FLOP, by the 32 lanes of a warp. Each holds a part
// of every matrix, in 32-bit registers of two neighbours along k: four of a, two of b, and four sums. That is why b
// comes as n x k: its neighbours along k are neighbours in memory. A lane knows its rows, and loads the pairs itself.
// 768 bytes for 4096 FLOP are 5.3 FLOP a byte, far from what tensor cores could do with them.
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 32, TILE_N = 16, TILE_K = 16, THREADS = 128, SHARED_BYTES = 0;

using Params = Operands<u16>;  // bfloat16; b is n x k

DEVICE u32 pair(const u16* first) { return load_global(reinterpret_cast<const u32*>(first)); }

GLOBAL_KERNEL void __launch_bounds__(THREADS) gemm(const __grid_constant__ Params p) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long row = blockIdx.y * TILE_M + warp / 2 * 16 + lane / 4;  // and the one 8 below
    const long long column = blockIdx.x * TILE_N + warp % 2 * 8 + lane / 4;
    const int t = 2 * (lane % 4);
    const u16 *a = p.a + row * p.k + t, *a_below = a + 8LL * p.k, *b = p.b + column * p.k + t;
    float sums[4] = {};
    for (int k = 0; k < p.k; k += TILE_K) {
        const u32 of_a[4] = {pair(a + k), pair(a_below + k), pair(a + k + 8), pair(a_below + k + 8)};
        multiply_add<0>(sums, of_a, pair(b + k), pair(b + k + 8));
    }
    u16* c = p.c + row * p.n + column - lane / 4 + t;
    store_global(reinterpret_cast<u32*>(c), pack_bf16(sums[0], sums[1]));
    store_global(reinterpret_cast<u32*>(c + 8LL * p.n), pack_bf16(sums[2], sums[3]));
}
