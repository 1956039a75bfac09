// A thread for each element of c.
//
// A warp has 32 neighbours of a row of c. For each k it reads one element of a (all lanes the same) and 32 neighbours
// of b: whole lines, which is the best that this shape can do. Still every multiply-add needs two loads, and a warp
// asks for 4 + 128 bytes to do 64 FLOP: 0.48 FLOP a byte. Caches answer most of that, but the load units have to
// carry all of it.
// Takes m, n and k that are multiples of the tile.
#include "common.cuh"

constexpr int TILE_M = 8, TILE_N = 32, TILE_K = 1, THREADS = 256, SHARED_BYTES = 0;

using Params = Operands<float>;

GLOBAL_KERNEL void __launch_bounds__(THREADS) gemm(const __grid_constant__ Params p) {
    const long long row = blockIdx.y * TILE_M + threadIdx.x / TILE_N;
    const long long column = blockIdx.x * TILE_N + threadIdx.x % TILE_N;
    float sum = 0.0f;
    for (long long k = 0; k < p.k; ++k) sum += load_global(p.a + row * p.k + k) * load_global(p.b + k * p.n + column);
    store_global(p.c + row * p.n + column, sum);
}
