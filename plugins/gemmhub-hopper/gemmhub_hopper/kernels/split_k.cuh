// Split-K: the CTAs of a tile's splits add their partial sums through global memory, in the order of K, so the bits are the
// same whichever CTA adds.
//
// With few splits, the last CTA of a tile to arrive adds all of them while the others go on. With many splits that
// reduction is long and serial. So where there are many, and all run at once, each CTA waits for the others and reduces one
// slice of the tile's registers; CTAs beyond the MAX_SLICES first have none, and do not wait. No wait is long: a CTA that has
// polled MAX_POLLS times gives its slice up, and the last CTA to arrive reduces what was given up besides its own; so none
// depends on a CTA that may not be running.
//
// The counter of a consumer warpgroup's part of a tile, 0 before and after: bits 0-7 splits that have arrived, 8-15 slices
// whose CTAs look at it no more, 32-63 slices that were given up. Atomic additions to it have one order for all: a CTA that
// gives up and finds that all have arrived has not given up, as the last one did not see it.
#pragma once
#include "emulation.cuh"
#include "mirror.cuh"

// Slices: from so many splits on, and so many quads of registers of all splits; at most so many, a bit each in the counter.
// candidate.py has the same.
constexpr int MIN_SPLITS = 6, MIN_WORK = 40, MAX_SLICES = 32;
constexpr u32 MAX_POLLS = 64;  // each takes about 0.4 us
constexpr u32 ARRIVED = 1, TAKEN = 1 << 8;
constexpr int FRAGMENT_QUADS = SUM_N / 8;  // quads of registers of a 64-row fragment
constexpr int TILE_QUADS = kNumFragments * FRAGMENT_QUADS;
constexpr long long PARTIAL_SIZE =
    TILE_QUADS * 128;  // Float4s of a split: [register / 4][thread], as its readers hold it
// Splits, and quads of each, of a slice that are loaded at once: as many as the registers left by ShiftedLoader,
// repair_sums() and int32 sums allow. With kCrowdedSlices kernels of some epilogues would spill.
constexpr bool kRoomForSlices = kNumPlanes == 1 && !kShifted && !kInt8;
constexpr bool kCrowdedSlices = kSplitPlanesB && kNumConsumers > 1 && BLOCK_N > 32;
constexpr int SLICE_SPLITS = kRoomForSlices && TILE_QUADS <= 16 ? 8 : !kCrowdedSlices ? 4 : kClusterK == 1 ? 2 : 1;
constexpr int SLICE_QUADS = kRoomForSlices && TILE_QUADS <= 24 ? 2 : 1;

// With kPingpong what runs at once keeps half of the slices idle. The two columns of a gated pair may be in two slices; and slices
// store D alone.
DEVICE bool reduces_by_slices(const Params& p) {
    return !kPingpong && kGate == UNGATED && !kStoresBefore && TILE_QUADS >= 4 && p.schedule.splits >= MIN_SPLITS &&
           p.schedule.splits * TILE_QUADS >= MIN_WORK && p.schedule.work_tiles * kClusterSize <= gridDim.x;
}

DEVICE u32 arrived(u64 counter) { return counter & 255; }

// Number `split` of the tile's partial sums. Thread 0 then arrives at the counter.
DEVICE void store_partials(const Results& acc, Float4* partials, int split, u32 warpgroup) {
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i)
#pragma unroll
        for (int j = 0; j < FRAGMENT_QUADS; ++j) {
            store_partial(partials + split * PARTIAL_SIZE + (i * FRAGMENT_QUADS + j) * 128, quad_of(&acc[i][4 * j]));
        }
    device_fence();
    named_sync(1 + warpgroup, 128);
}

// What thread 0 has written to `flag`, a word of shared memory.
DEVICE u32 broadcast_flag(u32 flag, u32 warpgroup) {
    named_sync(1 + warpgroup, 128);
    const u32 word = load_shared(flag);
    if (word != 0) device_fence();
    return word;
}

// True for the last split to arrive, with the sum of all in `acc`; the others are done.
DEVICE bool reduce_by_last(const Params& p, Results& acc, Float4* partials, int split, u64* counter, u32 warpgroup,
                           u32 flag) {
    store_partials(acc, partials, split, warpgroup);
    if (threadIdx.x % 128 == 0) {
        const bool last = arrived(add_to_counter(counter, ARRIVED)) == p.schedule.splits - 1;
        if (last) *counter = 0;
        store_shared(flag, last);
    }
    if (broadcast_flag(flag, warpgroup) == 0) return false;
    // Splits outside, registers inside: a thread has all loads of a split in flight, and of small tiles those of several
    // splits, as it waits for memory once for each of these.
    constexpr int REGISTERS = 4 * TILE_QUADS;
    constexpr int AT_ONCE = kNumFragments > 1 ? 1 : REGISTERS <= 8 ? 8 : REGISTERS <= 16 ? 4 : REGISTERS <= 32 ? 2 : 1;
#pragma unroll 1
    for (int part = 0; part < p.schedule.splits; part += AT_ONCE) {
        Float4 next[AT_ONCE][kNumFragments][FRAGMENT_QUADS];
        if constexpr (AT_ONCE > 1) {
#pragma unroll
            for (int i = 0; i < AT_ONCE * FRAGMENT_QUADS; ++i)
                if (part + i / FRAGMENT_QUADS < p.schedule.splits)
                    next[i / FRAGMENT_QUADS][0][i % FRAGMENT_QUADS] =
                        load_partial(partials + (part + i / FRAGMENT_QUADS) * PARTIAL_SIZE + i % FRAGMENT_QUADS * 128);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (part + i >= p.schedule.splits) break;
#pragma unroll
            for (u32 block = 0; block < kNumFragments; ++block)
#pragma unroll
                for (int j = 0; j < FRAGMENT_QUADS; ++j) {
                    if constexpr (AT_ONCE == 1)
                        next[0][block][j] =
                            load_partial(partials + part * PARTIAL_SIZE + (block * FRAGMENT_QUADS + j) * 128);
                    add_quad(&acc[block][4 * j], next[i][block][j], part + i == 0);
                }
        }
    }
    return true;
}

// The slices that this CTA is to reduce, a bit for each, once all splits have arrived. `own`: 0 for splits beyond the slices,
// which reduce only what was given up, and only where they arrive last.
DEVICE u32 claim_slices(u64* counter, u32 splits, u32 own) {
    const u64 before = add_to_counter(counter, ARRIVED);
    if (arrived(before) == splits - 1) return own | static_cast<u32>(before >> 32);
    if (own == 0) return 0;
    for (u32 poll = 0; poll < MAX_POLLS; ++poll)
        if (arrived(load_counter(counter)) == splits) return own;
    return arrived(add_to_counter(counter, static_cast<u64>(own) << 32)) == splits ? own : 0;
}

// The sums of SLICE_QUADS quads of the tile's registers from number `first` on, or of as many as there are before `end`: to
// D.
DEVICE void reduce_quads(const Params& p, const Float4* partials, const TileCoord& at, int first, int end,
                         const Emulation& emulation) {
    Sum sums[SLICE_QUADS][4];
#pragma unroll 1
    for (int part = 0; part < p.schedule.splits; part += SLICE_SPLITS) {
        Float4 next[SLICE_SPLITS][SLICE_QUADS];
#pragma unroll
        for (int i = 0; i < SLICE_SPLITS * SLICE_QUADS; ++i)
            if (part + i / SLICE_QUADS < p.schedule.splits && first + i % SLICE_QUADS < end)
                next[i / SLICE_QUADS][i % SLICE_QUADS] =
                    load_partial(partials + (part + i / SLICE_QUADS) * PARTIAL_SIZE + (first + i % SLICE_QUADS) * 128);
#pragma unroll
        for (int i = 0; i < SLICE_SPLITS * SLICE_QUADS; ++i)
            if (part + i / SLICE_QUADS < p.schedule.splits)
                add_quad(sums[i % SLICE_QUADS], next[i / SLICE_QUADS][i % SLICE_QUADS], part + i / SLICE_QUADS == 0);
    }
#pragma unroll
    for (int i = 0; i < SLICE_QUADS; ++i) {
        if (first + i >= end) break;
        const int fragment = (first + i) / FRAGMENT_QUADS, j = (first + i) % FRAGMENT_QUADS;
        emulation.repair(p, sums[i], at.row + 64 * fragment, at.column + 8 * j, at);
        multiply_by_alpha(p, sums[i]);
        EpilogueFragment epilogue(p, at, fragment);
        float v[4], c[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) v[r] = value_of(sums[i][r]);
        load_addends(epilogue, c, j);
        finish(p, epilogue, v, c, j);
        if constexpr (kSymmetric)
            store_both(p, epilogue, v, j);
        else
            store_direct(p, epilogue, v, j);
        epilogue.range.close(p);
    }
}

// Where reduces_by_slices(): from the partial sums of a split to D.
DEVICE void reduce_by_slices(const Params& p, const Results& acc, Float4* partials, const TileCoord& at, int split,
                             u64* counter, u32 warpgroup, u32 flag, const SplitMarks& words, Emulation emulation) {
    const u32 splits = p.schedule.splits, count = splits < MAX_SLICES ? splits : MAX_SLICES;  // of slices
    store_partials(acc, partials, split, warpgroup);
    if (threadIdx.x % 128 == 0) store_shared(flag, claim_slices(counter, splits, split < MAX_SLICES ? 1u << split : 0));
    u32 mine = broadcast_flag(flag, warpgroup);
    if (mine == 0) return;
    const u32 slices = __popc(mine);
    u64 taken = 0;
    if (threadIdx.x % 128 == 0) taken = add_to_counter(counter, slices * TAKEN);
    emulation.collect(words);
    for (; mine != 0; mine &= mine - 1) {
        const int slice = __ffs(mine) - 1, end = TILE_QUADS * (slice + 1) / count;
#pragma unroll 1
        for (int quad = TILE_QUADS * slice / count; quad < end; quad += SLICE_QUADS)
            reduce_quads(p, partials, at, quad, end, emulation);
    }
    if (threadIdx.x % 128 == 0 && (taken >> 8 & 255) + slices == count) *counter = 0;
}

// What is left for a warpgroup to do with a tile.
enum Reduced {
    TO_STORE,  // the sums of all of K are in its accumulators: K was not split, or this split arrived last
    DONE,      // nothing
    ALL_DONE   // nothing, and it has no other tile: the compiler then keeps no registers of the loop over tiles
};

DEVICE Reduced reduce_split_k(const Params& p, Results& acc, const WorkTile& work, TileContext ctx,
                              Emulation& emulation) {
    if constexpr (kSplitK) {
        if (p.schedule.splits > 1) {
            const SplitMarks words = emulation.publish(p, work, ctx);
            const long long matrix = static_cast<long long>(work.batch) * p.schedule.matrix_tiles;
            const long long slot =
                ((matrix + work.tile) * kClusterSize + ctx.cta_rank) * kWarpgroupsPerTile + ctx.tile_part();
            Float4* partials = p.partials + slot * p.schedule.splits * PARTIAL_SIZE + threadIdx.x % 128;
            const u32 flag = ctx.smem + SMEM_FLAG_OFFSET + 4 * ctx.warpgroup;
            if (reduces_by_slices(p)) {
                const TileCoord at(work, ctx);
                reduce_by_slices(p, acc, partials, at, work.split, p.counters + slot, ctx.warpgroup, flag, words,
                                 emulation);
                return ALL_DONE;
            }
            if (!reduce_by_last(p, acc, partials, work.split, p.counters + slot, ctx.warpgroup, flag)) return DONE;
            emulation.collect(words);
        }
    }
    return TO_STORE;
}
