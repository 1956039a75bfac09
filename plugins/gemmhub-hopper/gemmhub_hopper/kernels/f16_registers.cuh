// Float32 by float16 planes where A goes through registers (kRegistersA): consumers scale and split its rows as they read them.
// So a large A beside a short B needs no pre-pass, which would take as long as the product. B's planes come from the pre-pass.
//
// A span is two stages: 64 elements along K, of which each row shares a scale; four neighbouring lanes have all of a row's
// elements. For each span a consumer loads, scales and splits its rows, issues the wgmmas, and promotes their sums. A warp
// that issues a wgmma with operands in registers waits until it runs, so a consumer can do nothing else meanwhile. Two
// consumers take turns instead: one has the tensor cores while the other loads, splits and promotes.
//
//   turn[w]  4 arrivals, one of each warp of the other consumer, when it has issued the wgmmas of a span.
//
// Whether planes represent the rows of a tile accurately enough is known when all of them have been split. Where they do not,
// their group is marked as rejected, and the product by bfloat16 planes that is launched after this one computes its tiles
// again, or with many rejected groups every tile (rejected_tiles.cuh). Without split-K the producer then ends the CTA early:
// stop[s] is a word for each stage, which it sets instead of loading the stage.
#pragma once
#include "f16_emulation.cuh"
#include "fragments.cuh"

constexpr bool kTakesTurns = kSplitF16Rows && kNumConsumers == 2;
constexpr bool kEarlyExit = kSplitF16Rows && !kSplitK && BLOCK_N <= 96;  // wider ones have no registers for it
constexpr int CHECKED_GROUPS = 4;  // scale groups from one check of the range to the next: the warp vote is expensive
constexpr u32 SPAN_STEPS = 2 * kNumKSteps;  // K steps of wgmma in a span

// By the thread that initialises barriers.
DEVICE void init_turns(u32 smem) {
    for (u32 w = 0; kTakesTurns && w < kNumConsumers; ++w) barrier_init(smem + SMEM_TURN_OFFSET + 8 * w, 4);
    for (u32 stage = 0; kSplitF16Rows && stage < kNumStages; ++stage) store_shared(smem + SMEM_STOP_OFFSET + 4 * stage, 0);
}

// The producer's early exit: the CTA ends once too many groups of rows have been rejected.
struct EarlyExit {
    u32 count = 0;  // of them, loaded a scale group ago: it has arrived

    // When the stage is empty. Returns whether the CTA ends here. A span may have another stage, which is passed on empty, too.
    DEVICE bool taken(const Params& p, u32 smem, Pipeline& pipe, int block) {
        if (!kEarlyExit || block % SCALE_GROUP_BLOCKS != 0) return false;
        if (!many_rejected(p, count)) {
            count = load_word(p.a_marks + REJECTED_WORD);
            return false;
        }
        store_shared(smem + SMEM_STOP_OFFSET + 4 * pipe.stage, 1);
        barrier_arrive(smem + SMEM_FULL_OFFSET + 8 * pipe.stage);
        pipe.advance();
        barrier_wait(smem + SMEM_EMPTY_OFFSET + 8 * pipe.stage, pipe.parity ^ 1);
        barrier_arrive(smem + SMEM_FULL_OFFSET + 8 * pipe.stage);
        return true;
    }
};

struct Turns {
    u32 taken = 0;

    // As in pingpong.cuh: consumer 0's first wait ends at once, on a fresh barrier.
    DEVICE void wait(TileContext ctx) {
        if constexpr (kTakesTurns)
            barrier_wait(ctx.smem + SMEM_TURN_OFFSET + 8 * ctx.warpgroup, taken++ % 2 ^ (ctx.warpgroup == 0 ? 1 : 0));
    }

    // All lanes have waited: none must look at the barrier when its next phase has ended.
    DEVICE void arrive(TileContext ctx) const {
        if constexpr (kTakesTurns) sync_warp_stores();
        if (kTakesTurns && ctx.lane == 0) barrier_arrive(ctx.smem + SMEM_TURN_OFFSET + 8 * (ctx.warpgroup ^ 1));
    }
};

// A thread's elements of a span: of two rows, g = lane / 4 and g + 8.
struct SpanRows {
    float x[SPAN_STEPS][4][2];
    RowScales scale;
    float inverse[2];
    u32 stages[2];  // the second one is the first again where the span has one
    bool two;
};

constexpr u32 NONE = 0xffffffff;  // the smallest of numbers that all are 0

struct RowSplitter {
    Turns turns;
    u32 scale_groups = 0;      // of B that this warpgroup has used
    u32 smallest = NONE;       // twice the bits of the smallest scaled magnitude that is not 0, less 1
    float largest = 0.0f;      // magnitude, or NaN

    // Waits for a span's stages and loads its rows. Returns false where the CTA ends early.
    DEVICE bool load(SpanRows& rows, const FragmentLoader& loader, TileContext ctx, Pipeline& pipe, bool two) {
        rows.two = two;
        rows.stages[0] = rows.stages[1] = pipe.stage;
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            if (half == 0 || two) {
                rows.stages[half] = pipe.stage;
                barrier_wait(ctx.full_barrier(pipe.stage), pipe.parity);
                const u32 from = ctx.stage_address(pipe.stage) + ctx.tile_part() * ROWS_BYTES;
#pragma unroll
                for (u32 step = 0; step < kNumKSteps; ++step) loader.load(rows.x[half * kNumKSteps + step], from, step);
                pipe.advance();
            } else {
#pragma unroll
                for (u32 step = 0; step < kNumKSteps; ++step)
#pragma unroll
                    for (u32 i = 0; i < 8; ++i) rows.x[half * kNumKSteps + step][i / 2][i % 2] = 0.0f;
            }
        }
        if (kEarlyExit && load_shared(ctx.smem + SMEM_STOP_OFFSET + 4 * rows.stages[0]) != 0) return false;
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            float of_row = 0.0f;
            u32 smallest_of_row = NONE;
#pragma unroll
            for (u32 step = 0; step < SPAN_STEPS; ++step)
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const float x = rows.x[step][i / 2 * 2 + h][i % 2];
                    of_row = max_or_nan(of_row, fabsf(x));
                    const u32 twice = (__float_as_uint(x) << 1) - 1;
                    if (twice < smallest_of_row) smallest_of_row = twice;
                }
            of_row = max_or_nan(of_row, shuffle_xor(of_row, 1));
            of_row = max_or_nan(of_row, shuffle_xor(of_row, 2));
            largest = max_or_nan(largest, of_row);
            const int exponent = scale_exponent(__float_as_uint(of_row));
            rows.scale[0][h] = power_of_two(exponent), rows.inverse[h] = power_of_two(-exponent);
            note(smallest_of_row, rows.inverse[h]);
        }
        return true;
    }

    // The planes of one K step.
    DEVICE void split(const SpanRows& rows, u32 step, Fragment (&planes)[2]) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float low = rows.x[step][i][0] * rows.inverse[i % 2], high = rows.x[step][i][1] * rows.inverse[i % 2];
            planes[0][i] = pack_f16(low, high);
            planes[1][i] = pack_f16((low - from_f16(static_cast<u16>(planes[0][i]))) * (1.0f / CROSS_SCALE),
                                    (high - from_f16(static_cast<u16>(planes[0][i] >> 16))) * (1.0f / CROSS_SCALE));
        }
    }

    // The smallest of a thread's elements of a row, which scaling may make 0.
    DEVICE void note(u32 smallest_of_row, float inverse) {
        if (smallest_of_row == NONE) return;
        const u32 twice = __float_as_uint(__uint_as_float((smallest_of_row + 1) / 2) * inverse) << 1;
        const u32 scaled = twice == 0 ? 0 : twice - 1;
        if (scaled < smallest) smallest = scaled;
    }

    // The word of the marks of this warpgroup's rows.
    DEVICE static u32* group(const Params& p, const WorkTile& work, TileContext ctx) {
        return a_word(p, TileCoord(work, ctx).row0, work.batch);
    }

    // Rejects the tile's rows where elements of this warp are out of the range that float16 planes represent accurately.
    DEVICE void check_range(const Params& p, const WorkTile& work, TileContext ctx) const {
        const bool in_range = largest < power_of_two(LARGEST_EXPONENT + 1) && smallest >= 2 * __float_as_uint(p.min_scaled) - 1;
        if (warp_or(in_range ? 0 : 1) == 0 || ctx.lane != 0) return;
        mark(p.a_marks, REJECTED);
        if (mark_first(group(p, work, ctx), REJECTED)) count_up(p.a_marks + REJECTED_WORD);
    }

    // The exponent of the largest element, by which A is scaled if it is rejected. Where CTAs may end early it is that of each CTA's
    // first span, which is always read: what else is read depends on time, and bits must not. Larger elements have room.
    DEVICE void publish_largest(const Params& p, TileContext ctx) const {
        const u32 exponent = largest_of_lanes<32>(largest < infinity() ? __float_as_uint(largest) >> 23 : 0);
        if (ctx.lane == 0 && exponent != 0) raise_to(p.a_marks + LARGEST_WORD, exponent);
    }

    // At the end of a tile: what rejected() and split_exponent() need to know of its rows.
    DEVICE void finish(const Params& p, const WorkTile& work, TileContext ctx) {
        check_range(p, work, ctx);
        SplitError error;
        if (smallest != NONE) error.smallest = fminf(error.smallest, __uint_as_float((smallest + 1) / 2));
        if constexpr (!kEarlyExit) publish_largest(p, ctx);
        const u32 small = largest_of_lanes<32>(error.small());
        if (ctx.lane == 0 && small != 0) {
            raise_to(p.a_marks + SMALL_WORD, small);
            mark(p.a_marks, SMALL);
            mark(group(p, work, ctx), small_bits(small));
        }
        smallest = NONE, largest = 0.0f;
    }
};

// Returns false where the CTA ends early: then there are no results.
DEVICE bool accumulate_f16_rows(Accumulators& acc, const Params& p, const WorkTile& work, TileContext ctx, Pipeline& pipe,
                                RowSplitter& splitter) {
    static_assert(!kSplitF16Rows || kNumFragments == 1, "there are registers for 64 rows");
    const FragmentLoader loader(ctx.warp, ctx.lane);
    TileScales scales(p, work, ctx);
    clear(acc);
    const int end = work.first_k_block + work.k_blocks;
    int group = -1;
    for (int block = work.first_k_block; block < end;) {
        // Spans lie in one scale group of B.
        const bool fresh = block / SCALE_GROUP_BLOCKS != group;
        if (fresh) scales.copy(p, ctx, group = block / SCALE_GROUP_BLOCKS, splitter.scale_groups++);
        SpanRows rows;
        if (!splitter.load(rows, loader, ctx, pipe, block % 2 == 0 && block + 1 < end)) {
            scales.arrive(ctx);
            return false;
        }
        Fragment planes[SPAN_STEPS][2];
#pragma unroll
        for (u32 step = 0; step < SPAN_STEPS; ++step) splitter.split(rows, step, planes[step]);
        Accumulators leading WRITTEN_BY_WGMMA, cross WRITTEN_BY_WGMMA;
        splitter.turns.wait(ctx);
        wgmma_fence();
#pragma unroll
        for (u32 step = 0; step < SPAN_STEPS; ++step) {
            const u32 stage = ctx.stage_address(rows.stages[step / kNumKSteps]);
            const u64 b = make_smem_desc(kWgmmaMnMajorB, stage + SMEM_B_OFFSET) + step % kNumKSteps * kStepBytesB / 16;
            const u64 b1 = b + SMEM_B_BYTES / 16;
            wgmma(cross[0], planes[step][0], b1, step > 0);
            wgmma(cross[0], planes[step][1], b, 1);
            wgmma(leading[0], planes[step][0], b, step > 0);
        }
        wgmma_commit();
        splitter.turns.arrive(ctx);
        if (fresh) scales.arrive(ctx);
        wgmma_wait<0>();
        pin_all(leading);
        pin_all(cross);
        ctx.release(rows.stages[0]);
        if (rows.two) ctx.release(rows.stages[1]);
        promote_scaled(acc, leading, cross, scales, ctx, rows.scale);
        if (kEarlyExit && fresh && splitter.scale_groups == 1) splitter.publish_largest(p, ctx);
        if (kEarlyExit && group % CHECKED_GROUPS == 0 && fresh) splitter.check_range(p, work, ctx);
        block += rows.two ? 2 : 1;
    }
    splitter.finish(p, work, ctx);
    return true;
}
