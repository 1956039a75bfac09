// Adding up the parts of a split k, always in the same order.
#pragma once
#include "ptx.cuh"
#include "tile.cuh"

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
    // Parts outside, registers inside: a thread has all of a part's loads in flight.
#pragma unroll 1
    for (int part = 0; part < p.splits; ++part) {
#pragma unroll
        for (int i = 0; i < count / 4; ++i) {
            const Float4 next = load_partial(parts + part * PART + i * THREADS);
            acc[4 * i] += next.x, acc[4 * i + 1] += next.y, acc[4 * i + 2] += next.z, acc[4 * i + 3] += next.w;
        }
    }
    return true;
}
