// Operands of 8 bits: e4m3 and e5m2 in any combination, and int8. Both are contiguous along K; a stage has 128 elements of it.
//
// Of 8-bit floats tensor cores keep about 14 significant bits of a sum. So the products of a stage are summed in registers
// of their own, and that sum is promoted: ordinary instructions, which round to nearest, add it to the accumulators. A
// stage is as long as a block of quantization scales along K, and with kScaled 2 the promotion multiplies by those of the
// row and of the column. Each 64-row fragment is promoted before the wgmmas of the next one are issued, so that they share
// the registers of the sum; meanwhile the wgmmas of the other consumer keep the tensor cores busy.
//
// The sums of int8 are exact int32, modulo 2^32: they need no promotion, and the plain main loop serves.
#pragma once
#include "f16_emulation.cuh"

// Scales of a warpgroup's rows and of the tile's columns in one block of K: copied to shared memory while the block before is
// multiplied. There are two buffers, used in turn.
struct SharedScales {
    static constexpr int kAhead = 1;  // blocks of K between the request and the promotion
    u32 buffer;

    // What the requests of a work tile have in common.
    struct Place : TileCoord {
        DEVICE Place(const Params&, const TileCoord& at, TileContext) : TileCoord(at) {}
    };

    // Starts to copy those of a block. `number` counts the blocks of all work tiles.
    DEVICE void request(const Params& p, const Place& at, TileContext ctx, int block, u32 number) {
        buffer = ctx.smem + SMEM_SCALES_OFFSET + (2 * ctx.warpgroup + number % 2) * SMEM_SCALES_BYTES;
        copy_side<64 * kNumFragments>(p.row_scales, buffer, at.row0, p.m, block, at.group);
        const u32 columns = buffer + 256 * kNumFragments;
        const int first = first_column(at, ctx);
        if constexpr (kGate == HALVES) {
            copy_side<TILE_N>(p.column_scales, columns, first, 2 * p.n, block, at.group);
            copy_side<TILE_N>(p.column_scales, columns + 4 * TILE_N, p.n + first, 2 * p.n, block, at.group);
        } else {
            constexpr int OF_ONE = kArity;  // columns of the product for one of D
            copy_side<BLOCK_N>(p.column_scales, columns, OF_ONE * first, OF_ONE * p.n, block, at.group);
        }
        copy_commit();
    }

    // CTAs that share K multiply whole tiles.
    DEVICE static int first_column(const TileCoord& at, TileContext ctx) {
        return at.column0 - rank_k(ctx.cta_rank) * OUT_N;
    }

    // Those of `count` rows or columns from `first` on, of which there are `end`.
    template <u32 count>
    DEVICE static void copy_side(const Scales& scales, u32 to, int first, int end, int block, int batch) {
#pragma unroll
        for (u32 i = 0; i < count; i += 128) {
            const u32 mine = i + threadIdx.x % 128;
            const int element = first + static_cast<int>(mine);
            if (mine >= count) continue;
            if (scales.at == nullptr)
                store_float(to + 4 * mine, 1.0f);
            else
                copy_word_async(to + 4 * mine, scales.find(element, block, batch), element < end);
        }
    }

    // Waits until all of them are there, and all threads have read those of the block before.
    DEVICE void arrive(TileContext ctx) const {
        copy_wait<0>();
        named_sync(1 + ctx.warpgroup, 128);
    }

    DEVICE float row(TileContext ctx, u32 fragment, u32 half) const {
        return load_float(buffer + 4 * (64 * fragment + 16 * ctx.warp + ctx.lane / 4 + 8 * half));
    }

    // Of this thread's columns of 8-column block `j`.
    DEVICE void columns_of(TileContext ctx, u32 j, float (&to)[2]) const {
        load_shared_pair(buffer + 4 * (64 * kNumFragments + 8 * j + 2 * (ctx.lane % 4)), to);
    }

    // Adds the sum of a block, times its scales, to the accumulators of a fragment.
    DEVICE void promote(Sum (&sums)[BLOCK_N / 2], const Sum (&part)[BLOCK_N / 2], const Place&, TileContext ctx,
                        u32 fragment) const {
        constexpr u32 AT_ONCE = 4;  // 8-column blocks whose scales are loaded together
        const float rows[2] = {row(ctx, fragment, 0), row(ctx, fragment, 1)};
#pragma unroll
        for (u32 first = 0; first < BLOCK_N / 8; first += AT_ONCE) {
            float column[AT_ONCE][2];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE && first + j < BLOCK_N / 8; ++j) columns_of(ctx, first + j, column[j]);
#pragma unroll
            for (u32 r = 0; r < 4 * AT_ONCE && 4 * first + r < BLOCK_N / 2; ++r) {
                const u32 at = 4 * first + r;
                sums[at] = fmaf(part[at], rows[r / 2 % 2] * column[r / 4][r % 2], sums[at]);
            }
        }
    }
};

// The same where 128 columns share a scale: a thread loads its own rows' scales, and the tile's one or two of columns, into
// registers, and promotes an element by one instruction. Nobody waits for another thread. One block is too short for the
// latency of the memory.
struct LaneScales {
    static constexpr int kAhead = 2;
    static constexpr bool kOneBlock = BLOCK_N <= 128 && 128 % BLOCK_N == 0;

    // Distances in a block of K from its first scale to those of this thread.
    struct Place {
        u32 rows[kNumFragments][2], columns[2];
        u32 of_first;  // 8-column blocks of the tile before those with the second scale
        int group;

        DEVICE Place(const Params& p, const TileCoord& at, TileContext ctx) : group(at.group) {
            static_assert(kScaled != 2 || BLOCK_N <= 128 || (BLOCK_N % 32 == 0 && BLOCK_N <= 192),
                          "columns of three scales");
            const int column0 = SharedScales::first_column(at, ctx);
            of_first = kOneBlock ? BLOCK_N / 8 : 16 - column0 / 8 % 16;
            // This thread's column, not the tile's: the compiler would keep what is the same in a warp in a uniform
            // register, into which it moves a value as soon as it is requested, and so waits for the memory.
            const int column = column0 + 2 * static_cast<int>(ctx.lane % 4);
#pragma unroll
            for (u32 i = 0; i < 2 * kNumFragments; ++i)
                rows[i / 2][i % 2] = distance(p.row_scales, at.row + 64 * (i / 2) + 8 * (i % 2), p.m);
            columns[0] = distance(p.column_scales, column, p.n);
            columns[1] = kOneBlock ? 0 : distance(p.column_scales, column + 8 * static_cast<int>(of_first), p.n);
        }

        DEVICE static u32 distance(const Scales& scales, int element, int end) {
            return static_cast<u32>(((element < end ? element : end - 1) >> scales.shift) * scales.stride);
        }
    };

    float rows[kNumFragments][2], columns[2];

    // Whether all distances have 32 bits.
    DEVICE static bool reach(const Params& p) {
        return (p.m * p.row_scales.stride | p.n * p.column_scales.stride) >> 32 == 0;
    }

    DEVICE void request(const Params& p, const Place& at, TileContext, int block, u32) {
        const float* of_rows = p.row_scales.find(0, block, at.group);
        const float* of_columns = p.column_scales.find(0, block, at.group);
#pragma unroll
        for (u32 i = 0; i < 2 * kNumFragments; ++i) rows[i / 2][i % 2] = of_rows[at.rows[i / 2][i % 2]];
        columns[0] = of_columns[at.columns[0]];
        columns[1] = !kOneBlock && at.of_first < BLOCK_N / 8 ? of_columns[at.columns[1]] : 0.0f;
    }

    DEVICE void arrive(TileContext) const {}

    DEVICE void promote(Sum (&sums)[BLOCK_N / 2], const Sum (&part)[BLOCK_N / 2], const Place& at, TileContext,
                        u32 fragment) const {
        const float* mine = rows[fragment];
        const float factors[2][2] = {{mine[0] * columns[0], mine[1] * columns[0]}, {mine[0] * columns[1], mine[1] * columns[1]}};
#pragma unroll
        for (u32 i = 0; i < BLOCK_N / 2; ++i) {
            const float factor = kOneBlock || i / 4 < at.of_first ? factors[0][i / 2 % 2] : factors[1][i / 2 % 2];
            sums[i] = fmaf(part[i], factor, sums[i]);
        }
    }
};

// No scales in the main loop.
struct NoScales {
    static constexpr int kAhead = 1;
    struct Place {
        DEVICE Place(const Params&, const TileCoord&, TileContext) {}
    };

    DEVICE void request(const Params&, const Place&, TileContext, int, u32) {}
    DEVICE void arrive(TileContext) const {}

    DEVICE void promote(Sum (&sums)[BLOCK_N / 2], const Sum (&part)[BLOCK_N / 2], const Place&, TileContext, u32) const {
#pragma unroll
        for (u32 i = 0; i < BLOCK_N / 2; ++i) sums[i] += part[i];
    }
};

template <class BlockScales>
DEVICE void accumulate_blocks(Accumulators& acc, const Params& p, const WorkTile& work, TileContext ctx, Pipeline& pipe,
                              Stagger& stagger, u32& blocks) {
    const typename BlockScales::Place at(p, TileCoord(work, ctx), ctx);
    constexpr int ahead = BlockScales::kAhead;
    BlockScales scales[ahead + 1];  // of this block, and of the next ones
    clear(acc);
    stagger.wait(ctx, work.k_blocks);
#pragma unroll
    for (int i = 0; i < ahead; ++i)
        scales[i + 1].request(p, at, ctx, work.first_k_block + (i < work.k_blocks ? i : 0), blocks++);
    for (int block = 0; block < work.k_blocks; ++block) {
#pragma unroll
        for (int i = 0; i < ahead; ++i) scales[i] = scales[i + 1];
        barrier_wait(ctx.full_barrier(pipe.stage), pipe.parity);
        const u32 stage = ctx.stage_address(pipe.stage);
        const u64 a = make_smem_desc(false, stage + ctx.tile_part() * kNumFragments * FRAGMENT_BYTES);
        const u64 b = make_smem_desc(false, stage + SMEM_B_OFFSET);
#pragma unroll
        for (u32 i = 0; i < kNumFragments; ++i) {
            Sum part[BLOCK_N / 2] WRITTEN_BY_WGMMA;
            wgmma_fence();
#pragma unroll
            for (u32 step = 0; step < kNumKSteps; ++step)
                wgmma(part, a + (i * FRAGMENT_BYTES + step * kStepBytesA) / 16, b + step * kStepBytesB / 16, step > 0);
            wgmma_commit();
            if (i + 1 == kNumFragments) stagger.issued(ctx, block, work.k_blocks);
            if (i == 0) {
                scales[0].arrive(ctx);
                if (block + ahead < work.k_blocks)
                    scales[ahead].request(p, at, ctx, work.first_k_block + block + ahead, blocks++);
            }
            wgmma_wait<0>();
#pragma unroll
            for (u32 j = 0; j < BLOCK_N / 2; ++j) pin(part[j]);
            if (i + 1 == kNumFragments) ctx.release(pipe.stage);
            scales[0].promote(acc[i], part, at, ctx, i);
        }
        pipe.advance();
    }
}

DEVICE void accumulate_float8(Accumulators& acc, const Params& p, const WorkTile& work, TileContext ctx, Pipeline& pipe,
                              Stagger& stagger, u32& blocks) {
    if constexpr (kScaled != 2) {
        accumulate_blocks<NoScales>(acc, p, work, ctx, pipe, stagger, blocks);
        return;
    }
    // Where D is transposed, the columns are mostly rows of the caller's a, and have a scale each. With split-K and c a thread
    // has too few registers. Groups of columns, and the second half of gated ones, begin within a block.
    constexpr bool possible = !kTransposedD && !(kSplitK && kHasAddend) && kDivided != COLUMNS && kGate == UNGATED;
    if (possible && p.column_scales.shift != 0 && p.row_scales.at != nullptr && LaneScales::reach(p))
        accumulate_blocks<LaneScales>(acc, p, work, ctx, pipe, stagger, blocks);
    else
        accumulate_blocks<SharedScales>(acc, p, work, ctx, pipe, stagger, blocks);
}
