// Elements that products of planes do not get right are recomputed from the operands that were split, by a warp each. That
// is slow and rare:
//
// - sums that are not finite, or nearly so: of infinities, NaNs and overflow. (Infinity times a plane that is 0 is NaN
//   where the truth is infinity; so all of them are suspect.)
// - where a lossy operand (below 2^-109, see split_planes.cuh) may have met a large one. A lossy one is wrong by 2^-134 at
//   most: times 256 that is within 2^-126, an error which underflow makes too and the error bound allows for every product.
//   The pre-pass marks groups of GROUP_ROWS rows of A and columns of B that have lossy or large elements. Where A is split
//   in registers, each warp knows the marks of its own rows, and where B is split in shared memory those of the tile's B
//   (b_planes.cuh); with split-K they are handed on in the same words.
// - all of them where `all` is set: for K of 1 to 3, whose bound of K + 2 roundings leaves no room for the truncation of
//   tensor cores.
#pragma once
#include "source_element.cuh"
#include "epilogue.cuh"
#include "split_planes.cuh"

DEVICE bool suspect(float sum) { return !(fabsf(sum) < 1.7e38f); }  // 2^127

DEVICE bool cross(u32 a, u32 b) { return ((a & LOSSY) && (b & LARGE)) || ((a & LARGE) && (b & LOSSY)); }

DEVICE u32* a_word(const Params& p, int row, int batch) {
    const u32 groups = (p.m + GROUP_ROWS - 1) / GROUP_ROWS;
    return p.a_marks + group_word(batch * p.a_step * groups + row / GROUP_ROWS);
}

DEVICE u32* b_word(const Params& p, int column, int batch) {
    const u32 groups = (p.n + GROUP_ROWS - 1) / GROUP_ROWS;
    return p.b_marks + group_word(batch * p.b_step * groups + column / GROUP_ROWS);
}

// Whether an element's row and column have marks that meet. `a`: the marks of this warp's rows, where it knows them.
DEVICE bool marked(const Params& p, int row, int column, int batch, u32 a) {
    return cross(kRegistersA ? a : *a_word(p, row, batch), *b_word(p, column, batch));
}

// By a whole warp: each lane sums every 32nd product, then sums of lanes are added.
DEVICE float inner_product(const Params& p, int row, int column, int batch) {
    const void* a = source_matrix(p.a, batch * p.a_step, p.a_batch, p.a_source);
    const void* b = source_matrix(p.b, batch * p.b_step, p.b_batch, p.b_source);
    float sum = 0.0f;
    if (kRegistersA || (p.a_source | p.b_source) == REAL) {
        const float* x = static_cast<const float*>(a) + row * p.a_m;
        const float* y = static_cast<const float*>(b) + column * p.b_n;
        constexpr int AT_ONCE = kRegistersA && kSplitK ? 1 : 4;  // where A goes through registers split-K leaves none
#pragma unroll AT_ONCE
        for (int k = lane_id(); k < p.k; k += 32) sum = fmaf(x[k * p.a_k], y[k * p.b_k], sum);
    } else {
#pragma unroll 1
        for (int k = lane_id(); k < p.k; k += 32)
            sum = fmaf(source_element(a, row, k, p.a_m, p.a_k, p.a_source),
                       source_element(b, column, k, p.b_n, p.b_k, p.b_source), sum);
    }
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
    return sum;
}

// The element of each lane that is `wrong`, recomputed. `row` and `column` are lane 0's: those of lane l are l / 4 rows
// below and 2 (l % 4) columns beside.
DEVICE void recompute(const Params& p, float& sum, bool wrong, int row, int column, int batch) {
    for (u32 todo = warp_or(wrong ? 1u << lane_id() : 0); todo != 0; todo &= todo - 1) {
        const u32 lane = __ffs(todo) - 1;
        const float exact = inner_product(p, row + lane / 4, column + 2 * (lane % 4), batch);
        if (lane_id() == lane) sum = exact;
    }
}

// Whether a tile may have such elements. `a`: Emulation::marks.
DEVICE bool marked_tile(const Params& p, u32 a) {
    return a != 0 && (kSplitPlanesB ? cross(a & 3, a >> 2) : cross(a, p.b_marks[0]));
}

// Whether this element, if there is one, is to be recomputed. `marks`: as marked_tile() returns.
DEVICE bool wrong(const Params& p, float sum, int row, int column, int batch, u32 a, bool marks) {
    if (row >= p.m || column >= p.n) return false;
    return p.all || suspect(sum) || (marks && (kSplitPlanesB || marked(p, row, column, batch, a)));
}

DEVICE void repair_results(const Params& p, Results& acc, const TileCoord& at, u32 a) {
    const bool marks = marked_tile(p, a);
    bool any = marks || p.all;
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i)
#pragma unroll
        for (u32 j = 0; j < OUT_N / 2; ++j) any = any || suspect(acc[i][j]);
    if (warp_or(any) == 0) return;
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i) {
#pragma unroll 1
        for (u32 r = 0; r < OUT_N / 2; ++r) {  // registers have no addresses: r is compared with each number
            const int row = at.row + 64 * i + 8 * (r / 2 % 2), column = at.column + 8 * (r / 4) + r % 2;
            float sum = 0.0f;
#pragma unroll
            for (u32 j = 0; j < OUT_N / 2; ++j)
                if (j == r) sum = acc[i][j];
            recompute(p, sum, wrong(p, sum, row, column, at.batch, a, marks), row - lane_id() / 4,
                      column - 2 * (lane_id() % 4), at.batch);
#pragma unroll
            for (u32 j = 0; j < OUT_N / 2; ++j)
                if (j == r) acc[i][j] = sum;
        }
    }
}

// The same for a quad of registers whose first element is in this row and column.
DEVICE void repair_quad(const Params& p, float (&sums)[4], int row, int column, int batch, u32 a) {
    const bool marks = marked_tile(p, a);
    bool any = marks || p.all;
#pragma unroll
    for (u32 r = 0; r < 4; ++r) any = any || suspect(sums[r]);
    if (warp_or(any) == 0) return;
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
        const int m = row + 8 * (r / 2), n = column + r % 2;
        recompute(p, sums[r], wrong(p, sums[r], m, n, batch, a, marks), m - lane_id() / 4, n - 2 * (lane_id() % 4),
                  batch);
    }
}

// The last of all consumer warpgroups clears the marks for the next pre-pass.
DEVICE void clear_marks(const Params& p, u32 warpgroup) {
    named_sync(1 + warpgroup, 128);
    if (threadIdx.x % 128 != 0 || count_up(p.finished) != gridDim.x * kNumConsumers - 1) return;
    *p.finished = 0;
    for (u32 side = 0; side < 2; ++side) {
        u32* marks = side == 0 ? p.a_marks : p.b_marks;
        if (p.kept >> side & 1) continue;
        forget_extremes(marks);  // also of an operand that has no marks, where the other one was rejected
        if (marks[0] == 0) continue;
        for (u32 i = 0; i < MARKS; ++i) marks[i] = 0;
    }
}
