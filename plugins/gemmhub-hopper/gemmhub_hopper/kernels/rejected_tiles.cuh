// Which of two kernels computes a tile of float32: that by float16 planes, or where these are not accurate enough that by
// bfloat16 planes, which is launched after it.
//
// A cell is a group of GROUP_ROWS rows by one of as many columns, counted from 0 whatever the tiles are. It is rejected by the
// marks of both groups. The first kernel computes the tiles that have a cell which is not rejected, then the second one those
// that have one which is. What both compute is that of the second one in the end. Where c is added, which may be the result,
// no tile may be computed twice: then each tile of either kernel lies in one cell.
//
// Clusters take tiles by their numbers, so tiles that a kernel skips seldom save a wave: half of the tiles take most waves of
// both kernels. So if more than one of MANY cells is rejected, the second kernel computes all tiles, and the first one none.
//
// Where the first kernel splits A in registers it marks groups of A while it multiplies, so it computes all tiles. If more than
// one of MANY groups is rejected, or B is, the second one computes all of them, too.
#pragma once
#include "split_planes.cuh"
#include "tile_context.cuh"

constexpr bool kByFloat16 = kInput == F16X3_INPUT;
constexpr bool kByBfloat16 = kInput == SPLIT_INPUT && (!kRegistersA || kRescaled);

// The words of the marks of an element's groups.
DEVICE u32* a_word(const Params& p, int row, int batch) {
    const u32 groups = (p.m + GROUP_ROWS - 1) / GROUP_ROWS;
    return p.a_marks + group_word(batch * p.a_step * groups + row / GROUP_ROWS);
}

DEVICE u32* b_word(const Params& p, int column, int batch) {
    const u32 groups = (p.n + GROUP_ROWS - 1) / GROUP_ROWS;
    return p.b_marks + group_word(batch * p.b_step * groups + column / GROUP_ROWS);
}

// Whether so many rejected groups of A are more than one of MANY.
DEVICE bool many_rejected(const Params& p, u32 count) { return count > static_cast<u32>(p.m / (MANY * GROUP_ROWS)); }

// Clears the marks where nothing is rejected: those of what is small and of the largest elements. By the first CTA; for
// those that look later nothing is rejected either.
DEVICE void forget_small(const Params& p) {
    if (blockIdx.x != 0) return;
    for (u32 side = 0; side < 2; ++side) {
        if (p.kept >> side & 1) continue;
        u32* marks = side == 0 ? p.a_marks : p.b_marks;
        const bool any = load_word(marks) != 0;
        block_sync();  // all have looked
        if (any)
            for (u32 i = threadIdx.x; i < MARKS; i += kNumThreads) marks[i] = 0;
        else if (threadIdx.x == 0)
            forget_extremes(marks);
    }
}

// What this kernel leaves to the other one. Uniform in the grid.
struct LeftTiles {
    bool all = false;   // the whole product
    bool some = false;  // some tiles

    DEVICE explicit LeftTiles(const Params& p) {
        if constexpr (kByFloat16 && kRegistersA) all = rejected(p.b_marks, p.small_limit);
        if constexpr ((kByFloat16 && !kRegistersA) || kByBfloat16) {
            if (kByBfloat16 && !(p.redo & ONLY_REJECTED)) return;
            const bool any = rejected(p.a_marks, p.b_marks, p.small_limit);
            some = any && (p.redo & BY_TILES);
            if constexpr (kRescaled)
                some = some && !rejected(p.b_marks, p.small_limit) && !many_rejected(p, load_word(p.a_marks + REJECTED_WORD));
            else
                some = some && few_rejected(p.a_marks, p.b_marks, p.marked_groups);
            all = kByFloat16 ? any && !some : !any;
            if (kByBfloat16 && all) forget_small(p);
            // The last CTA to end clears the marks: before one of its tiles is known to be left, all threads have looked.
            if (some) block_sync();
        }
    }

    // Whether a work tile is one of them. Uniform in the cluster.
    DEVICE bool has(const Params& p, const WorkTile& work) const {
        if constexpr (!kByFloat16 && !kByBfloat16) return false;
        if (!some) return false;
        constexpr int HEIGHT = kClusterM * BLOCK_M, WIDTH = kClusterN * BLOCK_N;
        const int row = work.m_tile * HEIGHT, column = work.n_tile * WIDTH;
        const int row_end = row + HEIGHT < p.m ? row + HEIGHT : p.m, column_end = column + WIDTH < p.n ? column + WIDTH : p.n;
#pragma unroll 1
        for (int m = row / GROUP_ROWS * GROUP_ROWS; m < row_end; m += GROUP_ROWS) {
            const u32 a = load_word(a_word(p, m, work.batch));
#pragma unroll 1
            for (int n = column / GROUP_ROWS * GROUP_ROWS; n < column_end; n += GROUP_ROWS)
                if (rejected_groups(a, load_word(b_word(p, n, work.batch)), p.small_limit) == kByBfloat16) return false;
        }
        return true;
    }
};
