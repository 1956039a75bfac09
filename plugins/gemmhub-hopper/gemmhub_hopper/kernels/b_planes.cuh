// B split into planes by the kernel (kSplitPlanesB): its tile comes as float32, and the consumers of a tile split it in
// shared memory. That is for small products, for which a pre-pass would take as long as the product: every CTA splits its
// tile's B, though others do the same.
//
// Of the two sets of planes one is written while wgmmas read the other. Planes are K-major whichever order B has: plane p of
// a set is at SMEM_B_BYTES p, in it column n of B at 64 n, with a swizzle of 64 bytes. Each thread splits four elements that
// are consecutive along K at a time; neighbouring lanes take those of the same column, or where B is contiguous along N
// those of other columns.
//
// Marks are those of the tile, not of 128 columns. Each warp leaves a word for the others, with the marks of its rows of A
// and of what it has split of B; with kClusterK, in each CTA that shares K.
#pragma once
#include "fragments.cuh"

constexpr u32 TILE_SYNC = 4;  // named barrier of all consumers of a tile

DEVICE u32 planes_address(u32 smem, u32 set) { return smem + SMEM_PLANES_B_OFFSET + set * SMEM_PLANES_B_BYTES; }

struct BSplitter {
    u32 thread;     // of those that share the tile
    Extremes seen;  // by this thread

    DEVICE explicit BSplitter(u32 tile_part) : thread(tile_part * 128 + threadIdx.x % 128) {}

    // `tile`: of float32. `set`: where its planes go.
    DEVICE void split(u32 tile, u32 set) {
        constexpr u32 QUADS = BLOCK_K / 4, TASKS = BLOCK_N * QUADS, AT_ONCE = 128 * kWarpgroupsPerTile;
#pragma unroll
        for (u32 first = 0; first < TASKS; first += AT_ONCE) {
            const u32 task = first + thread;
            if (first + AT_ONCE > TASKS && task >= TASKS) break;
            const u32 row = kMnMajorB ? task % BLOCK_N : task / QUADS, four = kMnMajorB ? task / BLOCK_N : task % QUADS;
            float x[4];
            if constexpr (kMnMajorB) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) x[i] = load_float(tile + element_offset(true, row, 4 * four + i));
            } else {
                const Float4 v = load_four(tile + element_offset(false, row, 4 * four));
                x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
            }
#pragma unroll
            for (u32 i = 0; i < 4; ++i) seen.note(x[i]);
            const u32 to = set + swizzled(row * BLOCK_K_BYTES + four * 8, BLOCK_K_BYTES);
#pragma unroll
            for (u32 plane = 0; plane < kNumPlanes; ++plane) {
                const u32 low = pack_bf16(x[0], x[1]), high = pack_bf16(x[2], x[3]);
                store_staged(to + plane * SMEM_B_BYTES, __uint_as_float(low), __uint_as_float(high));
                take_plane(low, x[0], x[1]);
                take_plane(high, x[2], x[3]);
            }
        }
    }

    // What all have split may be read by wgmma.
    DEVICE void publish() const {
        async_fence();
        named_sync(TILE_SYNC, 128 * kWarpgroupsPerTile);
    }
};

// A warp's marks of a, and 4 times those of b.
DEVICE u32 mark_word(const SplitLoader& a, const BSplitter& b) { return warp_or(a.seen.marks() | b.seen.marks() << 2); }

DEVICE u32 mark_address(u32 smem, u32 part, u32 warp) {
    return smem + SMEM_MARKS_OFFSET + part * SMEM_MARKS_BYTES + 16 * warp;
}

// Of the words that have come: the marks of this warp's rows, and 4 times those of b.
DEVICE u32 gathered_marks(u32 smem, u32 warp, u32 lane) {
    u32 word = 0;
#pragma unroll
    for (u32 first = 0; first < kClusterK * 4 * kWarpgroupsPerTile; first += 32) {
        const u32 i = first + lane, from = i % (4 * kWarpgroupsPerTile);
        if (i < kClusterK * 4 * kWarpgroupsPerTile)
            word |= load_shared(mark_address(smem, i / (4 * kWarpgroupsPerTile), from)) & (from == warp ? 15u : 12u);
    }
    return warp_or(word);
}
