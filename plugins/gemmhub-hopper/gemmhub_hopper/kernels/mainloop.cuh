// The sum over a piece's part of k, by a consumer warpgroup.
//
// Tensor cores add with truncation. That is of no account beside the rounding of 16-bit operands; for operands split into
// planes (see split_planes.cuh), whose products together have float32's accuracy, it would be. So each stage's products
// are summed apart, the small ones first, and that sum is added to the accumulators by ordinary instructions, which round
// to nearest. While one consumer adds, the other one's wgmmas keep the tensor cores busy.
#pragma once
#include "epilogue.cuh"
#include "pipeline.cuh"
#include "tile_scheduler.cuh"
#include "turns.cuh"
#include "wgmma.cuh"

// A warp has read this stage for the last time.
DEVICE void release(u32 base, u32 stage, u32 lane) {
    const u32 empty = base + EMPTY_AT + 8 * stage;
    if constexpr (CLUSTER > 1) {
        if (lane < CLUSTER) barrier_arrive_cluster(empty, lane);
    } else {
        if (lane == 0) barrier_arrive(empty);
    }
}

// The sum over a piece's part of k, of the rows of the tile that are number `share` of SHARERS.
DEVICE void accumulate(Accumulators& acc, const Piece& piece, u32 base, Position<STAGES>& at, Turn& turn, u32 share,
                       u32 lane) {
    turn.wait();
    u32 before = 0;  // the stage in use by wgmmas that may still run
    for (int block = 0; block < piece.blocks; ++block) {
        barrier_wait(base + FULL_AT + 8 * at.stage, at.parity);
        const u32 stage = base + at.stage * STAGE_BYTES;
        const u64 a = descriptor(A_MN, stage + share * M_BLOCKS * SLAB_BYTES);
        const u64 b = descriptor(B_MN, stage + B_AT);
        wgmma_fence();
#pragma unroll
        for (u32 step = 0; step < K_STEPS; ++step) {
#pragma unroll
            for (u32 i = 0; i < M_BLOCKS; ++i)
                // Sums of descriptors: no address crosses the end of its field.
                wgmma(acc[i], a + (i * SLAB_BYTES + step * A_STEP) / 16, b + step * B_STEP / 16, block > 0 || step > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (block > 0) release(base, before, lane);
        before = at.stage;
        at.advance();
    }
    turn.pass_on(lane);
    wgmma_wait<0>();
    pin_all(acc);
    release(base, before, lane);
}

// Which planes of a and b (0 has the leading bits) the product number `pair` multiplies. The three products left out are
// below 2^-24 of the whole one.
constexpr u32 PAIRS = 6;
DEVICE constexpr u32 a_plane(u32 pair) { return pair == 1 ? 2 : pair == 2 || pair == 4 ? 1 : 0; }
DEVICE constexpr u32 b_plane(u32 pair) { return pair == 0 ? 2 : pair == 2 || pair == 3 ? 1 : 0; }

DEVICE void accumulate_planes(Accumulators& acc, const Piece& piece, u32 base, Position<STAGES>& at, u32 share,
                              u32 lane) {
#pragma unroll
    for (u32 i = 0; i < M_BLOCKS; ++i)
#pragma unroll
        for (u32 j = 0; j < TILE_N / 2; ++j) acc[i][j] = 0.0f;
    for (int block = 0; block < piece.blocks; ++block) {
#if __CUDACC_VER_MAJOR__ < 13
        Accumulators part = {};
#else
        Accumulators part;
#endif
        barrier_wait(base + FULL_AT + 8 * at.stage, at.parity);
        const u32 stage = base + at.stage * STAGE_BYTES;
        const u64 a = descriptor(A_MN, stage + share * M_BLOCKS * SLAB_BYTES);
        const u64 b = descriptor(B_MN, stage + B_AT);
        wgmma_fence();
#pragma unroll
        for (u32 pair = 0; pair < PAIRS; ++pair)
#pragma unroll
            for (u32 step = 0; step < K_STEPS; ++step)
#pragma unroll
                for (u32 i = 0; i < M_BLOCKS; ++i)
                    wgmma(part[i], a + (a_plane(pair) * A_BYTES + i * SLAB_BYTES + step * A_STEP) / 16,
                          b + (b_plane(pair) * B_BYTES + step * B_STEP) / 16, pair > 0 || step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        pin_all(part);
        release(base, at.stage, lane);
        at.advance();
#pragma unroll
        for (u32 i = 0; i < M_BLOCKS; ++i)
#pragma unroll
            for (u32 j = 0; j < TILE_N / 2; ++j) acc[i][j] += part[i][j];
    }
}
