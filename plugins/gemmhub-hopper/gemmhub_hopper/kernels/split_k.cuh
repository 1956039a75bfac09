// Adding up the parts of a split k, through memory: all add in the order of k, so the bits are the same whoever does.
//
// Few parts of a tile are added by whoever comes last, while the others go on. Many take him long, one after the other. So
// where they are many, and all run at once, each waits for the others and adds one slice of the tile's registers. Nobody
// waits for long: whoever has looked MAX_POLLS times gives its slice up, and whoever comes last adds what was given up besides
// its own; so nobody depends on a part that may not be running.
//
// The counter of a tile's warpgroup, 0 before and after: bits 0-7 parts that have come, 8-15 slices whose adders look at it
// no more, 32-63 slices that were given up. Adding to it is one order for all: a part that gives up and finds all come has
// not given up, as the last one did not see it.
#pragma once
#include "repair.cuh"

constexpr int MIN_SPLITS = 6,
              MIN_WORK = 40;   // parts, of which there are at most 32; and fours of registers that they have
constexpr u32 MAX_POLLS = 64;  // each takes about 0.4 us
constexpr u32 ARRIVED = 1, TAKEN = 1 << 8;
constexpr int kQuadsPerFragment = OUT_N / 8;  // of registers in a block of 64 rows
constexpr int kNumQuads = kNumFragments * kQuadsPerFragment;
constexpr long long PARTIALS = kNumQuads * 128;  // Float4s: [register / 4][thread], as its readers hold it
// Parts, and fours of registers of each, of a slice that are loaded at once: as there are registers.
constexpr int SLICE_SPLITS = kNumPlanes == 1 && kNumQuads <= 16 ? 8 : 4,
              SLICE_QUADS = kNumPlanes == 1 && kNumQuads <= 24 ? 2 : 1;

// With three consumers there are no registers for it, and with kPingpong what runs at once keeps half of them idle. choice.py
// has the same rule.
DEVICE bool reduces_by_slices(const Params& p) {
    return kNumConsumers < 3 && !kPingpong && kNumQuads >= 4 && p.schedule.splits >= MIN_SPLITS &&
           p.schedule.splits * kNumQuads >= MIN_WORK && p.schedule.work_tiles * kClusterSize <= gridDim.x;
}

DEVICE u32 arrived(u64 counter) { return counter & 255; }

// Of the thread's `parts` number `split`. Thread 0 then does what there is to tell others.
DEVICE void store_partials(const Results& acc, Float4* parts, int split, u32 warpgroup) {
#pragma unroll
    for (u32 block = 0; block < kNumFragments; ++block)
#pragma unroll
        for (int j = 0; j < kQuadsPerFragment; ++j) {
            const float* v = &acc[block][4 * j];
            store_partial(parts + split * PARTIALS + (block * kQuadsPerFragment + j) * 128, {v[0], v[1], v[2], v[3]});
        }
    device_fence();
    named_sync(1 + warpgroup, 128);
}

// What thread 0 has written to `flag`.
DEVICE u32 broadcast_flag(u32 flag, u32 warpgroup) {
    named_sync(1 + warpgroup, 128);
    const u32 word = load_shared(flag);
    if (word != 0) device_fence();
    return word;
}

// True for the last part, with the sum of all in `acc`; the others are done. `flag`: a word of shared memory.
DEVICE bool reduce_by_last(const Params& p, Results& acc, Float4* parts, int split, u64* counter, u32 warpgroup,
                           u32 flag) {
    store_partials(acc, parts, split, warpgroup);
    if (threadIdx.x % 128 == 0) {
        const bool last = arrived(add_to_counter(counter, ARRIVED)) == p.schedule.splits - 1;
        if (last) *counter = 0;
        store_shared(flag, last);
    }
    if (broadcast_flag(flag, warpgroup) == 0) return false;
    // Parts outside, registers inside: a thread has all of a part's loads in flight, and of small tiles those of several
    // parts: what is waited for is the memory, part after part.
    constexpr int REGISTERS = 4 * kNumQuads;
    constexpr int AT_ONCE = kNumFragments > 1 ? 1 : REGISTERS <= 8 ? 8 : REGISTERS <= 16 ? 4 : REGISTERS <= 32 ? 2 : 1;
#pragma unroll 1
    for (int part = 0; part < p.schedule.splits; part += AT_ONCE) {
        Float4 next[AT_ONCE][kNumFragments][kQuadsPerFragment];
        if constexpr (AT_ONCE > 1) {
#pragma unroll
            for (int i = 0; i < AT_ONCE * kQuadsPerFragment; ++i)
                if (part + i / kQuadsPerFragment < p.schedule.splits)
                    next[i / kQuadsPerFragment][0][i % kQuadsPerFragment] =
                        load_partial(parts + (part + i / kQuadsPerFragment) * PARTIALS + i % kQuadsPerFragment * 128);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (part + i >= p.schedule.splits) break;
#pragma unroll
            for (u32 block = 0; block < kNumFragments; ++block)
#pragma unroll
                for (int j = 0; j < kQuadsPerFragment; ++j) {
                    if constexpr (AT_ONCE == 1)
                        next[0][block][j] =
                            load_partial(parts + part * PARTIALS + (block * kQuadsPerFragment + j) * 128);
                    add_quad(&acc[block][4 * j], next[i][block][j], part + i == 0);
                }
        }
    }
    return true;
}

// The slices that this part is to add, a bit for each, once all parts have come.
DEVICE u32 claim_slices(u64* counter, u32 all, u32 own) {
    const u64 before = add_to_counter(counter, ARRIVED);
    if (arrived(before) == all - 1) return own | static_cast<u32>(before >> 32);
    for (u32 look = 0; look < MAX_POLLS; ++look)
        if (arrived(load_counter(counter)) == all) return own;
    return arrived(add_to_counter(counter, static_cast<u64>(own) << 32)) == all ? own : 0;
}

// The sums from four number `first` of the tile's registers on, SLICE_QUADS of them or as many as there are before `end`,
// to d. `marks`: as repair() has them.
DEVICE void reduce_quads(const Params& p, const Float4* parts, const TileCoord& at, int first, int end, u32 marks) {
    float sums[SLICE_QUADS][4];
#pragma unroll 1
    for (int part = 0; part < p.schedule.splits; part += SLICE_SPLITS) {
        Float4 next[SLICE_SPLITS][SLICE_QUADS];
#pragma unroll
        for (int i = 0; i < SLICE_SPLITS * SLICE_QUADS; ++i)
            if (part + i / SLICE_QUADS < p.schedule.splits && first + i % SLICE_QUADS < end)
                next[i / SLICE_QUADS][i % SLICE_QUADS] =
                    load_partial(parts + (part + i / SLICE_QUADS) * PARTIALS + (first + i % SLICE_QUADS) * 128);
#pragma unroll
        for (int i = 0; i < SLICE_SPLITS * SLICE_QUADS; ++i)
            if (part + i / SLICE_QUADS < p.schedule.splits)
                add_quad(sums[i % SLICE_QUADS], next[i / SLICE_QUADS][i % SLICE_QUADS], part + i / SLICE_QUADS == 0);
    }
#pragma unroll
    for (int i = 0; i < SLICE_QUADS; ++i) {
        if (first + i >= end) break;
        const int rows = (first + i) / kQuadsPerFragment, j = (first + i) % kQuadsPerFragment;
        if constexpr (kNumPlanes > 1) repair_quad(p, sums[i], at.row + 64 * rows, at.column + 8 * j, at.batch, marks);
        if (kHasAlpha && p.alpha == 0.0f) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
        const EpilogueFragment block(p, at, rows);
        finish(p, block, sums[i], j);
        store_direct(p, block, sums[i], j);
    }
}

// Where reduces_by_slices(): from a part's sums to d. Of float32 `of_a` and `of_b` are the words through which the parts of a tile
// tell each other of marks.
DEVICE void reduce_by_slices(const Params& p, const Results& acc, Float4* parts, const TileCoord& at, int split,
                             u64* counter, u32 warpgroup, u32 flag, const u32* of_a, const u32* of_b, u32 marks) {
    const u32 all = p.schedule.splits;
    store_partials(acc, parts, split, warpgroup);
    if (threadIdx.x % 128 == 0) store_shared(flag, claim_slices(counter, all, 1u << split));
    u32 mine = broadcast_flag(flag, warpgroup);
    if (mine == 0) return;
    const u32 slices = __popc(mine);
    u64 taken = 0;
    if (threadIdx.x % 128 == 0) taken = add_to_counter(counter, slices * TAKEN);
    marks = all_marks(of_a, of_b, marks);
    for (; mine != 0; mine &= mine - 1) {
        const int slice = __ffs(mine) - 1, end = kNumQuads * (slice + 1) / all;
#pragma unroll 1
        for (int four = kNumQuads * slice / all; four < end; four += SLICE_QUADS)
            reduce_quads(p, parts, at, four, end, marks);
    }
    if (threadIdx.x % 128 == 0 && (taken >> 8 & 255) + slices == all) *counter = 0;
}
