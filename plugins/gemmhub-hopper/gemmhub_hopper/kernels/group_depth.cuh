// The end of a group of elements of K (kDivided DEPTH): the last stage of a work tile also has elements of the next group, or
// what is behind the last one. Their products must be 0, and 0 times NaN is NaN: so they are cleared in both tiles.
//
// Both operands are contiguous along M (N): an element of K is a line of MN_ROW_BYTES in each box, which the swizzle permutes
// within itself; float32 that consumers split has boxes of half as many elements along M (N). Each consumer warpgroup clears
// its own rows of A and all of B: so it need not wait for another one, and what two of them clear is 0 whoever comes last.
#pragma once
#include "tile_context.cuh"

static_assert(kDivided != DEPTH || (kMnMajorA && kMnMajorB && kInputBytes == 2), "not implemented");
constexpr u32 DEPTH_BOX_BYTES = BLOCK_K * MN_ROW_BYTES;

// Elements of K of the last stage of a work tile that belong to its group.
DEVICE int last_depth(const WorkTile& work) {
    if constexpr (kDivided != DEPTH) return BLOCK_K;
    return work.end - work.begin - (work.k_blocks - 1) * static_cast<int>(BLOCK_K);
}

// Clears what a stage has from element `depth` of K on, before this warpgroup multiplies it.
DEVICE void clear_behind_depth(TileContext ctx, u32 stage, int depth) {
    constexpr u32 BOXES_A = kNumFragments * 64 * kElementBytesA / MN_ROW_BYTES;
    constexpr u32 BOXES_B = (BLOCK_N * kElementBytesB + MN_ROW_BYTES - 1) / MN_ROW_BYTES;
    const u32 a = stage + ctx.tile_part() * BOXES_A * DEPTH_BOX_BYTES, b = stage + SMEM_B_OFFSET;
#pragma unroll 1
    for (u32 k = depth + ctx.warp; k < BLOCK_K; k += 4) {
        const u32 line = k * MN_ROW_BYTES + 4 * ctx.lane;
#pragma unroll
        for (u32 box = 0; box < BOXES_A; ++box) store_staged(a + box * DEPTH_BOX_BYTES + line, 0.0f);
#pragma unroll
        for (u32 box = 0; box < BOXES_B; ++box) store_staged(b + box * DEPTH_BOX_BYTES + line, 0.0f);
    }
    async_fence();
    named_sync(1 + ctx.warpgroup, 128);
}

// The same of the last stage of a work tile.
DEVICE void clear_behind_group(const WorkTile& work, TileContext ctx, u32 stage) {
    if constexpr (kDivided == DEPTH) {
        const int depth = last_depth(work);
        if (depth < static_cast<int>(BLOCK_K)) clear_behind_depth(ctx, stage, depth);
    }
}
