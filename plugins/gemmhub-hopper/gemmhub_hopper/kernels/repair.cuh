// Elements that products of planes do not get right are computed anew from the operands that were split, by one thread
// and in order of k. That is slow and rare:
//
// - sums that are not finite, or nearly so: of infinities, NaNs and overflow. (Infinity times a plane that is 0 is NaN
//   where the truth is infinity; so all of them are suspect.)
// - where a lossy operand (below 2^-109, see split_planes.cuh) may have met a large one. A lossy one is wrong by 2^-134 at
//   most: times 256 that is within 2^-126, an error which underflow makes too and the error bound allows for every product.
//   The pre-pass marks groups of GROUP_ROWS rows of a and columns of b that have lossy or large elements.
// - all of them where `all` is set: for k of 1 to 3, whose bound of k + 2 roundings leaves no room for what tensor cores
//   cut off.
#pragma once
#include "epilogue.cuh"
#include "split_planes.cuh"

DEVICE bool suspect(float sum) { return !(fabsf(sum) < 1.7e38f); }  // 2^127

DEVICE bool cross(u32 a, u32 b) { return ((a & LOSSY) && (b & LARGE)) || ((a & LARGE) && (b & LOSSY)); }

// Whether any group of a may meet one of b that it must not.
DEVICE bool marked(const Params& p) { return cross(p.a_marks[0], p.b_marks[0]); }

DEVICE bool marked(const Params& p, int row, int column, int batch) {
    const u32 groups_m = (p.m + GROUP_ROWS - 1) / GROUP_ROWS, groups_n = (p.n + GROUP_ROWS - 1) / GROUP_ROWS;
    const u32 a = group_word(batch * p.a_step * groups_m + row / GROUP_ROWS);
    const u32 b = group_word(batch * p.b_step * groups_n + column / GROUP_ROWS);
    return cross(p.a_marks[a], p.b_marks[b]);
}

DEVICE float inner_product(const Params& p, int row, int column, int batch) {
    const float* a = p.a + batch * p.a_step * p.a_batch + row * p.a_m;
    const float* b = p.b + batch * p.b_step * p.b_batch + column * p.b_n;
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < p.k; ++k) sum = fmaf(a[k * p.a_k], b[k * p.b_k], sum);
    return sum;
}

// `marks`: marked(p).
DEVICE void repair(const Params& p, Accumulators& acc, const Place& at, bool marks) {
    bool any = marks || p.all;
#pragma unroll
    for (u32 i = 0; i < M_BLOCKS; ++i)
#pragma unroll
        for (u32 j = 0; j < TILE_N / 2; ++j) any = any || suspect(acc[i][j]);
    if (!any) return;
#pragma unroll
    for (u32 i = 0; i < M_BLOCKS; ++i) {
#pragma unroll 1
        for (u32 r = 0; r < TILE_N / 2; ++r) {  // registers have no addresses: r is compared with each number
            const int row = at.row + 64 * i + 8 * (r / 2 % 2), column = at.column + 8 * (r / 4) + r % 2;
            if (row >= p.m || column >= p.n) continue;
            float sum = 0.0f;
#pragma unroll
            for (u32 j = 0; j < TILE_N / 2; ++j)
                if (j == r) sum = acc[i][j];
            if (!p.all && !suspect(sum) && !(marks && marked(p, row, column, at.batch))) continue;
            sum = inner_product(p, row, column, at.batch);
#pragma unroll
            for (u32 j = 0; j < TILE_N / 2; ++j)
                if (j == r) acc[i][j] = sum;
        }
    }
}

// Whoever is the last of all consumer warpgroups leaves the marks as the next pre-pass must find them.
DEVICE void clear_marks(const Params& p, u32 warpgroup) {
    named_sync(1 + warpgroup, 128);
    if (threadIdx.x % 128 != 0 || count_up(p.finished) != gridDim.x * CONSUMERS - 1) return;
    *p.finished = 0;
    for (u32 side = 0; side < 2; ++side) {
        u32* marks = side == 0 ? p.a_marks : p.b_marks;
        if (p.kept >> side & 1 || marks[0] == 0) continue;
        for (u32 i = 0; i < MARKS; ++i) marks[i] = 0;
    }
}
