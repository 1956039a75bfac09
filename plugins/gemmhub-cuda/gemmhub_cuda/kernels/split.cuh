// Adding up the parts of a split k, always in the same order.
#pragma once
#include "ptx.cuh"
#include "tile.cuh"

DEVICE void add(float* acc, const Float4& v) { acc[0] += v.x, acc[1] += v.y, acc[2] += v.z, acc[3] += v.w; }

// Every part of a tile is written to memory, and whichever block comes last adds all parts in the order of k, its own
// too: the same bits whichever that is. True for the last block, with the sums in `acc`; the others are done.
//
// `count`, a multiple of 4, is how many of the tile's elements each of the THREADS threads has. A part is
// [count / 4][thread] x 4 floats. `flag` is the shared address of a word.
template <int count>
DEVICE bool add_parts(const Params& p, const Piece& piece, float (&acc)[count], u32 flag) {
    static_assert(count % 4 == 0, "parts are written in fours");
    constexpr long long PART = count / 4 * THREADS;
    Float4* parts = static_cast<Float4*>(p.partials) + piece.tile * static_cast<long long>(p.splits) * PART + threadIdx.x;
#pragma unroll
    for (int i = 0; i < count / 4; ++i)
        store_partial(parts + piece.split * PART + i * THREADS,
                      {acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]});
    device_fence();
    block_sync();
    if (threadIdx.x == 0) {
        const bool last = count_up(p.counters + piece.tile) == static_cast<u32>(p.splits) - 1;
        if (last) store_global(p.counters + piece.tile, 0u);
        store_shared(flag, static_cast<u32>(last));
    }
    block_sync();
    if (!load_shared<u32>(flag)) return false;
    device_fence();
#pragma unroll
    for (int i = 0; i < count; ++i) acc[i] = 0.0f;
    // Parts outside, registers inside: a thread has all of a part's loads in flight, of several parts where they are
    // few. Where they are many, registers are: then they are added as they come.
    constexpr int AT_ONCE = count <= 16 ? 4 : count <= 32 ? 2 : 1;
#pragma unroll 1
    for (int part = 0; part < p.splits; part += AT_ONCE) {
        const Float4* first = parts + part * PART;
        if constexpr (AT_ONCE == 1) {
#pragma unroll
            for (int i = 0; i < count / 4; ++i) add(acc + 4 * i, load_partial(first + i * THREADS));
        } else {
            Float4 next[AT_ONCE][count / 4] = {};
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j)
                if (part + j < p.splits) {
#pragma unroll
                    for (int i = 0; i < count / 4; ++i) next[j][i] = load_partial(first + j * PART + i * THREADS);
                }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
                for (int i = 0; i < count / 4; ++i) add(acc + 4 * i, next[j][i]);
        }
    }
    return true;
}
