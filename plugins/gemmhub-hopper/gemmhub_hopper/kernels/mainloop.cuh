// The sum over a piece's part of k, by a consumer warpgroup.
//
// Tensor cores add with truncation. That is of no account beside the rounding of 16-bit operands; for operands split into
// planes (see split_planes.cuh), whose products together have float32's accuracy, it would be. So each stage's products
// are summed apart, the small ones first, and that sum is added to the accumulators by ordinary instructions, which round
// to nearest. While one consumer adds, the other one's wgmmas keep the tensor cores busy.
//
// With a through registers (fragments.cuh) half a stage is loaded, and split, while the wgmmas of the half before run:
// its fragments, and the sums of its products, have registers of their own. With b split here (b_planes.cuh) the next
// stage's b is split then, too; and as wgmma does not read the ring, a stage is released earlier.
#pragma once
#include "b_planes.cuh"
#include "epilogue.cuh"
#include "pipeline.cuh"
#include "tile_scheduler.cuh"
#include "turns.cuh"
#include "wgmma.cuh"

// A warp has read this stage for the last time.
DEVICE void release(u32 base, u32 stage, u32 lane) {
    const u32 empty = base + EMPTY_AT + 8 * stage;
    if constexpr (SHARING > 1) {
        if (lane < SHARING) barrier_arrive_cluster(empty, cluster_rank() / SHARING * SHARING + lane);
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
        const u64 b = descriptor(B_READ_MN, stage + B_AT);
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

DEVICE void add(Accumulators& sums, const Accumulators& part) {
#pragma unroll
    for (u32 i = 0; i < M_BLOCKS; ++i)
#pragma unroll
        for (u32 j = 0; j < TILE_N / 2; ++j) sums[i][j] += part[i][j];
}

// Which planes of a and b (0 has the leading bits) the product number `pair` multiplies. The three products left out are
// below 2^-24 of the whole one.
constexpr u32 PAIRS = 6;
DEVICE constexpr u32 a_plane(u32 pair) { return pair == 1 ? 2 : pair == 2 || pair == 4 ? 1 : 0; }
DEVICE constexpr u32 b_plane(u32 pair) { return pair == 0 ? 2 : pair == 2 || pair == 3 ? 1 : 0; }

DEVICE void accumulate_planes(Accumulators& acc, const Piece& piece, u32 base, Position<STAGES>& at, u32 share,
                              u32 lane) {
    clear(acc);
    for (int block = 0; block < piece.blocks; ++block) {
#if __CUDACC_VER_MAJOR__ < 13
        Accumulators part = {};
#else
        Accumulators part;
#endif
        barrier_wait(base + FULL_AT + 8 * at.stage, at.parity);
        const u32 stage = base + at.stage * STAGE_BYTES;
        const u64 a = descriptor(A_MN, stage + share * M_BLOCKS * SLAB_BYTES);
        const u64 b = descriptor(B_READ_MN, stage + B_AT);
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
        add(acc, part);
    }
}

DEVICE void accumulate_tf32_fragments(Accumulators& acc, const Piece& piece, u32 base, Position<STAGES>& at, Turn& turn,
                                      u32 share, const Tf32Loader& loader, u32 lane) {
    turn.wait();
    u32 before = 0;
    constexpr u32 HALF = K_STEPS / 2;
    Fragment a[2][HALF][M_BLOCKS];
    for (int block = 0; block < piece.blocks; ++block) {
        barrier_wait(base + FULL_AT + 8 * at.stage, at.parity);
        const u32 stage = base + at.stage * STAGE_BYTES;
        const u64 b = descriptor(B_READ_MN, stage + B_AT);
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 step = 0; step < HALF; ++step)
#pragma unroll
                for (u32 i = 0; i < M_BLOCKS; ++i)
                    loader.load(a[half][step][i], stage + (share * M_BLOCKS + i) * ROWS_BYTES, half * HALF + step);
            wgmma_fence();
#pragma unroll
            for (u32 step = 0; step < HALF; ++step)
#pragma unroll
                for (u32 i = 0; i < M_BLOCKS; ++i)
                    wgmma(acc[i], a[half][step][i], b + (half * HALF + step) * B_STEP / 16,
                          block > 0 || half > 0 || step > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (half == 0 && block > 0) release(base, before, lane);
        }
        before = at.stage;
        at.advance();
    }
    turn.pass_on(lane);
    wgmma_wait<0>();
    pin_all(acc);
    release(base, before, lane);
}

// Step 0 or 1 of a stage: its fragments, of all planes.
DEVICE void load_split(Fragment (&a)[M_BLOCKS][3], SplitLoader& loader, u32 stage, u32 share, u32 step) {
#pragma unroll
    for (u32 i = 0; i < M_BLOCKS; ++i) loader.load(a[i], stage + (share * M_BLOCKS + i) * ROWS_BYTES, step);
}

// Its products, as a group of wgmmas.
DEVICE void multiply_planes(Accumulators& sums, const Fragment (&a)[M_BLOCKS][3], u64 b) {
    wgmma_fence();
#pragma unroll
    for (u32 pair = 0; pair < PAIRS; ++pair)
#pragma unroll
        for (u32 i = 0; i < M_BLOCKS; ++i)
            wgmma(sums[i], a[i][a_plane(pair)], b + b_plane(pair) * B_BYTES / 16, pair > 0);
    wgmma_commit();
}

DEVICE void accumulate_split_fragments(Accumulators& acc, const Piece& piece, u32 base, Position<STAGES>& at, u32 share,
                                       SplitLoader& loader, BSplitter& splitter, u32 lane) {
    Fragment a[2][M_BLOCKS][3];
    clear(acc);
    barrier_wait(base + FULL_AT + 8 * at.stage, at.parity);
    load_split(a[0], loader, base + at.stage * STAGE_BYTES, share, 0);
    if constexpr (B_SPLIT) splitter.split(base + at.stage * STAGE_BYTES + B_AT, set_at(base, 0));
    for (int block = 0; block < piece.blocks; ++block) {
#if __CUDACC_VER_MAJOR__ < 13
        Accumulators part[2] = {};
#else
        Accumulators part[2];
#endif
        const u32 now = at.stage, stage = base + now * STAGE_BYTES;
        const u64 b = descriptor(B_READ_MN, B_SPLIT ? set_at(base, block % 2) : stage + B_AT);
        if constexpr (B_SPLIT) splitter.publish();
        multiply_planes(part[0], a[0], b);
        load_split(a[1], loader, stage, share, 1);
        multiply_planes(part[1], a[1], b + B_STEP / 16);
        wgmma_wait<1>();
        if constexpr (B_SPLIT) release(base, now, lane);
        pin_all(part[0]);
        add(acc, part[0]);
        at.advance();
        if (block + 1 < piece.blocks) {
            const u32 next = base + at.stage * STAGE_BYTES;
            barrier_wait(base + FULL_AT + 8 * at.stage, at.parity);
            load_split(a[0], loader, next, share, 0);
            if constexpr (B_SPLIT) splitter.split(next + B_AT, set_at(base, (block + 1) % 2));
        }
        wgmma_wait<0>();  // were part[1] added in the next turn of the loop, ptxas would serialise the wgmmas
        if constexpr (!B_SPLIT) release(base, now, lane);
        pin_all(part[1]);
        add(acc, part[1]);
    }
}
