// The main loop: a consumer warpgroup accumulates its rows of a tile over the K of a work tile.
//
// accumulate_shared() is the plain one: wgmma reads both operands from shared memory. accumulate_registers() loads A through
// registers: half a stage at a time, while the wgmmas of the half before run, so each half has registers of its own.
// Emulated float32 has main loops of its own in emulation.cuh, 8-bit floats in eight_bit.cuh.
#pragma once
#include "eight_bit.cuh"
#include "emulation.cuh"
#include "group_depth.cuh"
#include "pingpong.cuh"
#include "shifted_rows.cuh"
#include "bf16x3.cuh"

using RegisterLoader = Select<kShiftedRows, ShiftedLoader, Select<kShiftedColumns, ShiftedColumnsLoader, Tf32Loader>>;

// Blocks [begin, end) of a work tile. `before`: the stage that wgmmas which may still run read. `depth`: with groups of elements
// of K, those that the last block has.
DEVICE void accumulate_blocks(Accumulators& acc, int begin, int end, TileContext ctx, Pipeline& pipe, u32& before,
                              int depth = BLOCK_K) {
    for (int block = begin; block < end; ++block) {
        barrier_wait(ctx.full_barrier(pipe.stage), pipe.parity);
        const u32 stage = ctx.stage_address(pipe.stage);
        if (kDivided == DEPTH && block + 1 == end && depth < static_cast<int>(BLOCK_K))
            clear_behind_depth(ctx, stage, depth);
        const u64 a = make_smem_desc(kMnMajorA, stage + ctx.tile_part() * kNumFragments * FRAGMENT_BYTES);
        const u64 b = make_smem_desc(kWgmmaMnMajorB, stage + SMEM_B_OFFSET);
        wgmma_fence();
#pragma unroll
        for (u32 step = 0; step < kNumKSteps; ++step) {
#pragma unroll
            for (u32 i = 0; i < kNumFragments; ++i)
                // Sums of descriptors: no address overflows its field. The first wgmma of a tile ignores `acc`.
                wgmma(acc[i], a + (i * FRAGMENT_BYTES + step * kStepBytesA) / 16, b + step * kStepBytesB / 16,
                      block > 0 || step > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();  // one group stays in flight: the stage before has been read
        if (block > 0) ctx.release(before);
        before = pipe.stage;
        pipe.advance();
    }
}

DEVICE void accumulate_shared(Accumulators& acc, const WorkTile& work, TileContext ctx, Pipeline& pipe,
                              PingpongOrder& order) {
    order.wait();
    u32 before = 0;
    Cleared cleared;
    constexpr int SMALL = kNumProducts - 1;
    if constexpr (kBf16x3) {
        accumulate_blocks(acc, 0, SMALL * work.k_blocks, ctx, pipe, before);
        wgmma_wait<0>();
        pin_all(acc);
        cleared.clear(acc);
    }
    accumulate_blocks(acc, SMALL * work.k_blocks, kNumProducts * work.k_blocks, ctx, pipe, before, last_depth(work));
    order.arrive(ctx.lane);
    wgmma_wait<0>();
    pin_all(acc);
    ctx.release(before);
    if constexpr (kBf16x3) cleared.restore_nonfinite(acc);
}

DEVICE void accumulate_registers(Accumulators& acc, const Params& p, const WorkTile& work, TileContext ctx, Pipeline& pipe,
                                 PingpongOrder& order, const RegisterLoader& loader) {
    order.wait();
    u32 before = 0;
    constexpr u32 HALF = kNumKSteps / 2;
    Fragment a[2][HALF][kNumFragments];
    for (int block = 0; block < work.k_blocks; ++block) {
        barrier_wait(ctx.full_barrier(pipe.stage), pipe.parity);
        const u32 stage = ctx.stage_address(pipe.stage);
        const u64 b = make_smem_desc(kWgmmaMnMajorB, stage + SMEM_B_OFFSET);
        const int left = p.k - (work.first_k_block + block) * static_cast<int>(BLOCK_K);
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
#pragma unroll
            for (u32 step = 0; step < HALF; ++step)
#pragma unroll
                for (u32 i = 0; i < kNumFragments; ++i)
                    loader.load(a[half][step][i], stage, ctx.tile_part() * kNumFragments + i, half * HALF + step, left);
            wgmma_fence();
#pragma unroll
            for (u32 step = 0; step < HALF; ++step)
#pragma unroll
                for (u32 i = 0; i < kNumFragments; ++i)
                    wgmma(acc[i], a[half][step][i], b + (half * HALF + step) * kStepBytesB / 16,
                          block > 0 || half > 0 || step > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (half == 0 && block > 0) ctx.release(before);
        }
        before = pipe.stage;
        pipe.advance();
    }
    order.arrive(ctx.lane);
    wgmma_wait<0>();
    pin_all(acc);
    ctx.release(before);
}

// The main loop of this variant. Returns false where the CTA ends early (f16_registers.cuh).
DEVICE bool accumulate(Accumulators& acc, const Params& p, const WorkTile& work, TileContext ctx, Pipeline& pipe,
                       PingpongOrder& order, const RegisterLoader& loader, Emulation& emulation) {
    if constexpr (kSplitF16Rows) return accumulate_f16_rows(acc, p, work, ctx, pipe, emulation.rows);
    if constexpr (kFloat8)
        accumulate_float8(acc, p, work, ctx, pipe, emulation.stagger, emulation.scale_groups);
    else if constexpr (kNumPlanes > 1)
        emulation.accumulate(acc, p, work, ctx, pipe);
    else if constexpr (kRegistersA)
        accumulate_registers(acc, p, work, ctx, pipe, order, loader);
    else
        accumulate_shared(acc, work, ctx, pipe, order);
    return true;
}
