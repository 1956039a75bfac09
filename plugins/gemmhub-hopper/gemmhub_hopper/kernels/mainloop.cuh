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
#include "pingpong.cuh"
#include "pipeline.cuh"
#include "tile_scheduler.cuh"
#include "wgmma.cuh"

// A warp has read this stage for the last time.
DEVICE void release(u32 base, u32 stage, u32 lane) {
    const u32 empty = base + SMEM_EMPTY_OFFSET + 8 * stage;
    if constexpr (kNumMulticast > 1) {
        if (lane < kNumMulticast) barrier_arrive_cluster(empty, cluster_rank() / kNumMulticast * kNumMulticast + lane);
    } else {
        if (lane == 0) barrier_arrive(empty);
    }
}

// The sum over a piece's part of k, of the rows of the tile that are number `share` of kWarpgroupsPerTile.
DEVICE void accumulate(Accumulators& acc, const WorkTile& work, u32 base, PipelineState<kNumStages>& at,
                       PingpongOrder& order, u32 share, u32 lane) {
    order.wait();
    u32 before = 0;  // the stage in use by wgmmas that may still run
    for (int block = 0; block < work.blocks; ++block) {
        barrier_wait(base + SMEM_FULL_OFFSET + 8 * at.stage, at.parity);
        const u32 stage = base + at.stage * SMEM_STAGE_BYTES;
        const u64 a = make_smem_desc(kMnMajorA, stage + share * kNumFragments * FRAGMENT_BYTES);
        const u64 b = make_smem_desc(kWgmmaMnMajorB, stage + SMEM_B_OFFSET);
        wgmma_fence();
#pragma unroll
        for (u32 step = 0; step < kNumKSteps; ++step) {
#pragma unroll
            for (u32 i = 0; i < kNumFragments; ++i)
                // Sums of descriptors: no address crosses the end of its field.
                wgmma(acc[i], a + (i * FRAGMENT_BYTES + step * kStepBytesA) / 16, b + step * kStepBytesB / 16,
                      block > 0 || step > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (block > 0) release(base, before, lane);
        before = at.stage;
        at.advance();
    }
    order.arrive(lane);
    wgmma_wait<0>();
    pin_all(acc);
    release(base, before, lane);
}

DEVICE void add(Accumulators& sums, const Accumulators& part) {
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i)
#pragma unroll
        for (u32 j = 0; j < BLOCK_N / 2; ++j) sums[i][j] += part[i][j];
}

// Which planes of a and b (0 has the leading bits) the product number `pair` multiplies. The three products left out are
// below 2^-24 of the whole one.
constexpr u32 PAIRS = 6;
DEVICE constexpr u32 a_plane(u32 pair) { return pair == 1 ? 2 : pair == 2 || pair == 4 ? 1 : 0; }
DEVICE constexpr u32 b_plane(u32 pair) { return pair == 0 ? 2 : pair == 2 || pair == 3 ? 1 : 0; }

DEVICE void accumulate_planes(Accumulators& acc, const WorkTile& work, u32 base, PipelineState<kNumStages>& at,
                              u32 share, u32 lane) {
    clear(acc);
    for (int block = 0; block < work.blocks; ++block) {
        Accumulators part WRITTEN_BY_WGMMA;
        barrier_wait(base + SMEM_FULL_OFFSET + 8 * at.stage, at.parity);
        const u32 stage = base + at.stage * SMEM_STAGE_BYTES;
        const u64 a = make_smem_desc(kMnMajorA, stage + share * kNumFragments * FRAGMENT_BYTES);
        const u64 b = make_smem_desc(kWgmmaMnMajorB, stage + SMEM_B_OFFSET);
        wgmma_fence();
#pragma unroll
        for (u32 pair = 0; pair < PAIRS; ++pair)
#pragma unroll
            for (u32 step = 0; step < kNumKSteps; ++step)
#pragma unroll
                for (u32 i = 0; i < kNumFragments; ++i)
                    wgmma(part[i], a + (a_plane(pair) * SMEM_A_BYTES + i * FRAGMENT_BYTES + step * kStepBytesA) / 16,
                          b + (b_plane(pair) * SMEM_B_BYTES + step * kStepBytesB) / 16, pair > 0 || step > 0);
        wgmma_commit();
        wgmma_wait<0>();
        pin_all(part);
        release(base, at.stage, lane);
        at.advance();
        add(acc, part);
    }
}

DEVICE void accumulate_tf32_fragments(Accumulators& acc, const WorkTile& work, u32 base, PipelineState<kNumStages>& at,
                                      PingpongOrder& order, u32 share, const Tf32Loader& loader, u32 lane) {
    order.wait();
    u32 before = 0;
    constexpr u32 HALF = kNumKSteps / 2;
    Fragment a[2][HALF][kNumFragments];
    for (int block = 0; block < work.blocks; ++block) {
        barrier_wait(base + SMEM_FULL_OFFSET + 8 * at.stage, at.parity);
        const u32 stage = base + at.stage * SMEM_STAGE_BYTES;
        const u64 b = make_smem_desc(kWgmmaMnMajorB, stage + SMEM_B_OFFSET);
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 step = 0; step < HALF; ++step)
#pragma unroll
                for (u32 i = 0; i < kNumFragments; ++i)
                    loader.load(a[half][step][i], stage + (share * kNumFragments + i) * ROWS_BYTES, half * HALF + step);
            wgmma_fence();
#pragma unroll
            for (u32 step = 0; step < HALF; ++step)
#pragma unroll
                for (u32 i = 0; i < kNumFragments; ++i)
                    wgmma(acc[i], a[half][step][i], b + (half * HALF + step) * kStepBytesB / 16,
                          block > 0 || half > 0 || step > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (half == 0 && block > 0) release(base, before, lane);
        }
        before = at.stage;
        at.advance();
    }
    order.arrive(lane);
    wgmma_wait<0>();
    pin_all(acc);
    release(base, before, lane);
}

// Step 0 or 1 of a stage: its fragments, of all planes.
DEVICE void load_split(Fragment (&a)[kNumFragments][3], SplitLoader& loader, u32 stage, u32 share, u32 step) {
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i) loader.load(a[i], stage + (share * kNumFragments + i) * ROWS_BYTES, step);
}

// Its products, as a group of wgmmas.
DEVICE void multiply_planes(Accumulators& sums, const Fragment (&a)[kNumFragments][3], u64 b) {
    wgmma_fence();
#pragma unroll
    for (u32 pair = 0; pair < PAIRS; ++pair)
#pragma unroll
        for (u32 i = 0; i < kNumFragments; ++i)
            wgmma(sums[i], a[i][a_plane(pair)], b + b_plane(pair) * SMEM_B_BYTES / 16, pair > 0);
    wgmma_commit();
}

DEVICE void accumulate_split_fragments(Accumulators& acc, const WorkTile& work, u32 base, PipelineState<kNumStages>& at,
                                       u32 share, SplitLoader& loader, BSplitter& splitter, u32 lane) {
    Fragment a[2][kNumFragments][3];
    clear(acc);
    barrier_wait(base + SMEM_FULL_OFFSET + 8 * at.stage, at.parity);
    load_split(a[0], loader, base + at.stage * SMEM_STAGE_BYTES, share, 0);
    if constexpr (kSplitPlanesB) splitter.split(base + at.stage * SMEM_STAGE_BYTES + SMEM_B_OFFSET, set_at(base, 0));
    for (int block = 0; block < work.blocks; ++block) {
        Accumulators part[2] WRITTEN_BY_WGMMA;
        const u32 now = at.stage, stage = base + now * SMEM_STAGE_BYTES;
        const u64 b = make_smem_desc(kWgmmaMnMajorB, kSplitPlanesB ? set_at(base, block % 2) : stage + SMEM_B_OFFSET);
        if constexpr (kSplitPlanesB) splitter.publish();
        multiply_planes(part[0], a[0], b);
        load_split(a[1], loader, stage, share, 1);
        multiply_planes(part[1], a[1], b + kStepBytesB / 16);
        wgmma_wait<1>();
        if constexpr (kSplitPlanesB) release(base, now, lane);
        pin_all(part[0]);
        add(acc, part[0]);
        at.advance();
        if (block + 1 < work.blocks) {
            const u32 next = base + at.stage * SMEM_STAGE_BYTES;
            barrier_wait(base + SMEM_FULL_OFFSET + 8 * at.stage, at.parity);
            load_split(a[0], loader, next, share, 0);
            if constexpr (kSplitPlanesB) splitter.split(next + SMEM_B_OFFSET, set_at(base, (block + 1) % 2));
        }
        wgmma_wait<0>();  // were part[1] added in the next turn of the loop, ptxas would serialise the wgmmas
        if constexpr (!kSplitPlanesB) release(base, now, lane);
        pin_all(part[1]);
        add(acc, part[1]);
    }
}
