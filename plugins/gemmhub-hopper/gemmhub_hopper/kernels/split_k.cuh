// Adding up the parts of a split k, through memory: all add in the order of k, so the bits are the same whoever does.
//
// Few parts of a tile are added by whoever comes last, while the others go on. Many take him long, one after the other. So
// where they are many, and all run at once, each waits for the others and adds one slice of the tile's registers. Nobody
// waits for long: whoever has looked LOOKS times gives its slice up, and whoever comes last adds what was given up besides
// its own; so nobody depends on a part that may not be running.
//
// The counter of a tile's warpgroup, 0 before and after: bits 0-7 parts that have come, 8-15 slices whose adders look at it
// no more, 32-63 slices that were given up. Adding to it is one order for all: a part that gives up and finds all come has
// not given up, as the last one did not see it.
#pragma once
#include "repair.cuh"

constexpr int MANY = 6, MUCH = 40;  // parts, of which there are at most 32; and fours of registers that they have
constexpr u32 LOOKS = 64;           // each takes about 0.4 us
constexpr u32 COME = 1, LOOKED = 1 << 8;
constexpr int FOURS = OUT_N / 8;  // of registers in a block of 64 rows
constexpr int ALL_FOURS = M_BLOCKS * FOURS;
constexpr long long PART = ALL_FOURS * 128;  // Float4s: [register / 4][thread], as its readers hold it
// Parts, and fours of registers of each, of a slice that are loaded at once: as there are registers.
constexpr int SLICE_PARTS = PLANES == 1 && ALL_FOURS <= 16 ? 8 : 4, SLICE_FOURS = PLANES == 1 && ALL_FOURS <= 24 ? 2 : 1;

// With three consumers there are no registers for it, and with PINGPONG what runs at once keeps half of them idle. choice.py
// has the same rule.
DEVICE bool in_slices(const Params& p) {
    return CONSUMERS < 3 && !PINGPONG && ALL_FOURS >= 4 && p.walk.splits >= MANY && p.walk.splits * ALL_FOURS >= MUCH &&
           p.walk.pieces * CLUSTER <= gridDim.x;
}

DEVICE u32 come(u64 counter) { return counter & 255; }

// Of the thread's `parts` number `split`. Thread 0 then does what there is to tell others.
DEVICE void write_part(const Results& acc, Float4* parts, int split, u32 warpgroup) {
#pragma unroll
    for (u32 block = 0; block < M_BLOCKS; ++block)
#pragma unroll
        for (int j = 0; j < FOURS; ++j) {
            const float* v = &acc[block][4 * j];
            store_partial(parts + split * PART + (block * FOURS + j) * 128, {v[0], v[1], v[2], v[3]});
        }
    device_fence();
    named_sync(1 + warpgroup, 128);
}

// What thread 0 has written to `flag`.
DEVICE u32 told(u32 flag, u32 warpgroup) {
    named_sync(1 + warpgroup, 128);
    const u32 word = load_shared(flag);
    if (word != 0) device_fence();
    return word;
}

// True for the last part, with the sum of all in `acc`; the others are done. `flag`: a word of shared memory.
DEVICE bool add_parts(const Params& p, Results& acc, Float4* parts, int split, u64* counter, u32 warpgroup, u32 flag) {
    write_part(acc, parts, split, warpgroup);
    if (threadIdx.x % 128 == 0) {
        const bool last = come(add_to_counter(counter, COME)) == p.walk.splits - 1;
        if (last) *counter = 0;
        store_shared(flag, last);
    }
    if (told(flag, warpgroup) == 0) return false;
    // Parts outside, registers inside: a thread has all of a part's loads in flight, and of small tiles those of several
    // parts: what is waited for is the memory, part after part.
    constexpr int REGISTERS = 4 * ALL_FOURS;
    constexpr int AT_ONCE = M_BLOCKS > 1 ? 1 : REGISTERS <= 8 ? 8 : REGISTERS <= 16 ? 4 : REGISTERS <= 32 ? 2 : 1;
#pragma unroll 1
    for (int part = 0; part < p.walk.splits; part += AT_ONCE) {
        Float4 next[AT_ONCE][M_BLOCKS][FOURS];
        if constexpr (AT_ONCE > 1) {
#pragma unroll
            for (int i = 0; i < AT_ONCE * FOURS; ++i)
                if (part + i / FOURS < p.walk.splits)
                    next[i / FOURS][0][i % FOURS] = load_partial(parts + (part + i / FOURS) * PART + i % FOURS * 128);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (part + i >= p.walk.splits) break;
#pragma unroll
            for (u32 block = 0; block < M_BLOCKS; ++block)
#pragma unroll
                for (int j = 0; j < FOURS; ++j) {
                    if constexpr (AT_ONCE == 1)
                        next[0][block][j] = load_partial(parts + part * PART + (block * FOURS + j) * 128);
                    add_four(&acc[block][4 * j], next[i][block][j], part + i == 0);
                }
        }
    }
    return true;
}

// The slices that this part is to add, a bit for each, once all parts have come.
DEVICE u32 slices_to_add(u64* counter, u32 all, u32 own) {
    const u64 before = add_to_counter(counter, COME);
    if (come(before) == all - 1) return own | static_cast<u32>(before >> 32);
    for (u32 look = 0; look < LOOKS; ++look)
        if (come(load_counter(counter)) == all) return own;
    return come(add_to_counter(counter, static_cast<u64>(own) << 32)) == all ? own : 0;
}

// The sums from four number `first` of the tile's registers on, SLICE_FOURS of them or as many as there are before `end`,
// to d. `marks`: as repair() has them.
DEVICE void add_fours(const Params& p, const Float4* parts, const Place& at, int first, int end, u32 marks) {
    float sums[SLICE_FOURS][4];
#pragma unroll 1
    for (int part = 0; part < p.walk.splits; part += SLICE_PARTS) {
        Float4 next[SLICE_PARTS][SLICE_FOURS];
#pragma unroll
        for (int i = 0; i < SLICE_PARTS * SLICE_FOURS; ++i)
            if (part + i / SLICE_FOURS < p.walk.splits && first + i % SLICE_FOURS < end)
                next[i / SLICE_FOURS][i % SLICE_FOURS] =
                    load_partial(parts + (part + i / SLICE_FOURS) * PART + (first + i % SLICE_FOURS) * 128);
#pragma unroll
        for (int i = 0; i < SLICE_PARTS * SLICE_FOURS; ++i)
            if (part + i / SLICE_FOURS < p.walk.splits)
                add_four(sums[i % SLICE_FOURS], next[i / SLICE_FOURS][i % SLICE_FOURS], part + i / SLICE_FOURS == 0);
    }
#pragma unroll
    for (int i = 0; i < SLICE_FOURS; ++i) {
        if (first + i >= end) break;
        const int rows = (first + i) / FOURS, j = (first + i) % FOURS;
        if constexpr (PLANES > 1) repair_four(p, sums[i], at.row + 64 * rows, at.column + 8 * j, at.batch, marks);
        if (SCALED && p.alpha == 0.0f) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.0f;
        const Block block(p, at, rows);
        finish(p, block, sums[i], j);
        store_direct(p, block, sums[i], j);
    }
}

// Where in_slices(): from a part's sums to d. Of float32 `of_a` and `of_b` are the words through which the parts of a tile
// tell each other of marks.
DEVICE void add_slices(const Params& p, const Results& acc, Float4* parts, const Place& at, int split, u64* counter,
                       u32 warpgroup, u32 flag, const u32* of_a, const u32* of_b, u32 marks) {
    const u32 all = p.walk.splits;
    write_part(acc, parts, split, warpgroup);
    if (threadIdx.x % 128 == 0) store_shared(flag, slices_to_add(counter, all, 1u << split));
    u32 mine = told(flag, warpgroup);
    if (mine == 0) return;
    const u32 slices = __popc(mine);
    u64 looked = 0;
    if (threadIdx.x % 128 == 0) looked = add_to_counter(counter, slices * LOOKED);
    marks = all_marks(of_a, of_b, marks);
    for (; mine != 0; mine &= mine - 1) {
        const int slice = __ffs(mine) - 1, end = ALL_FOURS * (slice + 1) / all;
#pragma unroll 1
        for (int four = ALL_FOURS * slice / all; four < end; four += SLICE_FOURS)
            add_fours(p, parts, at, four, end, marks);
    }
    if (threadIdx.x % 128 == 0 && (looked >> 8 & 255) + slices == all) *counter = 0;
}
