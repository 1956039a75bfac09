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
//   Where a consumer splits A, marks only select what is looked at: an element is replaced where the elements of its own
//   row and column are lossy and large. So the bits of a row of A do not depend on the rows beside it.
// - all of them where `all` is set, or a group of K has so few elements: for K of 1 to 3, whose bound of K + 2 roundings
//   leaves no room for the truncation of tensor cores.
//
// One NaN makes all sums of its row or column suspect. An inner product for each of them would take several times as
// long as all the rest. So an inner product also finds the infinities and NaNs of its row of A and its column of B
// (Span). Where these decide about other suspect sums of the warp, lanes compute those without reading all of K:
//
// - a NaN, or infinities whose products have both signs or a factor of 0: the sum is NaN, whatever else there is. An
//   inner product stops there, too.
// - infinities that are all within 32 elements of each line: the sum is that of their products.
//
// Marks show that a column of B, or a row of A, is finite, so that one infinity needs no inner product for each element.
// Still slow: infinities further apart whose products have one sign, and sums of finite products that overflow.
#pragma once
#include "source_element.cuh"
#include "epilogue.cuh"
#include "rejected_tiles.cuh"

constexpr int kRecomputedDepth = 3;  // K up to which all elements are recomputed, as launch.py has it too

DEVICE bool suspect(float sum) { return !(fabsf(sum) < 1.7e38f); }  // 2^127

DEVICE bool cross(u32 a, u32 b) { return ((a & LOSSY) && (b & LARGE)) || ((a & LARGE) && (b & LOSSY)); }

// Whether an element's row and column have marks that meet. `a`: the marks of this warp's rows, where it knows them.
DEVICE bool marked(const Params& p, int row, int column, const TileCoord& at, u32 a) {
    return cross(kRegistersA ? a : *a_word(p, row, at.batch), *b_word(p, column, at.batch));
}

// A row of A, or a column of B, as it was before it was split.
struct Line {
    const void* matrix;
    int number;
    long long step, step_k;  // from one line to the next, and along K
    int format;              // of source_element()

    // kReal: the format is known to be REAL, so that loads need no branches and are in flight together.
    template <bool kReal>
    DEVICE float at(int k) const {
        if constexpr (kReal) return static_cast<const float*>(matrix)[number * step + k * step_k];
        return source_element(matrix, number, k, step, step_k, format);
    }
};

// Where the elements of K that `at` has begin in a matrix: those of groups of K at the group's first.
DEVICE const void* from_first_k(const void* matrix, long long step_k, const TileCoord& at) {
    if constexpr (kDivided == DEPTH) return static_cast<const float*>(matrix) + at.begin * step_k;
    return matrix;
}

DEVICE Line row_of_a(const Params& p, int row, const TileCoord& at) {
    const void* const matrix = source_matrix(p.a, at.group * p.a_step, p.a_batch, p.a_source);
    return {from_first_k(matrix, p.a_k, at), row, p.a_m, p.a_k, p.a_source};
}

DEVICE Line column_of_b(const Params& p, int column, const TileCoord& at) {
    const void* const matrix = source_matrix(p.b, at.group * p.b_step, p.b_batch, p.b_source);
    return {from_first_k(matrix, p.b_k, at), column, p.b_n, p.b_k, p.b_source};
}

// The elements of K of a tile, and whether all its elements are recomputed.
DEVICE int depth(const Params& p, const TileCoord& at) { return kDivided == DEPTH ? at.end - at.begin : p.k; }
DEVICE bool recomputes_all(const Params& p, const TileCoord& at) {
    return kDivided == DEPTH ? depth(p, at) <= kRecomputedDepth : p.all;
}

DEVICE bool finite(float x) { return fabsf(x) < infinity(); }

// What is known of the elements of a line that are not finite.
struct Span {
    static constexpr u32 INFINITE = 1u << 31, UNKNOWN = 0xffffffff;
    u32 first = UNKNOWN;  // k of a NaN; else INFINITE + k of the first infinity
    u32 end = UNKNOWN;    // none is at or beyond this k; 0 where all are finite

    DEVICE u32 begin() const { return first & ~INFINITE; }

    DEVICE bool has_nan() const { return (first & INFINITE) == 0; }

    // Whether special_sum() reads all of them.
    DEVICE bool is_short() const { return end == 0 || (end != UNKNOWN && end - begin() <= 32); }

    // In ascending order of k; `end` is 0 before.
    DEVICE void add(float x, u32 k) {
        if (finite(x)) return;
        const u32 position = x != x ? k : INFINITE + k;
        if (position < first) first = position;
        end = k + 1;
    }

    // What is known now that `other` is, of the same line. Returns whether it is more.
    DEVICE bool learn(const Span& other) {
        const bool more = other.first < first || other.end < end;
        if (other.first < first) first = other.first;
        if (other.end < end) end = other.end;
        return more;
    }
};

constexpr bool kMarksLines = kRegistersA && !kRescaled;

// An inner product, and the spans and marks of its two lines; marks with kMarksLines.
struct Product {
    float sum = 0.0f;
    Span a, b;
    u32 a_marks = 0, b_marks = 0;

    DEVICE void mark(float x, float y) {
        u16 planes[3];
        split_planes(x, planes, a_marks);
        split_planes(y, planes, b_marks);
    }

    // Whether it replaces `sum` of the same row and column.
    DEVICE bool replaces(const Params& p, const TileCoord& at, float sum) const {
        return !kMarksLines || recomputes_all(p, at) || suspect(sum) || cross(a_marks, b_marks);
    }
};

// By a whole warp: each lane sums every 32nd product, then sums of lanes are added. A sum that is NaN stays NaN: then
// the rest is not read, and the ends of spans remain unknown.
template <bool kReal>
DEVICE Product multiply_lines(const Line& a, const Line& b, int count) {
    constexpr int AT_ONCE = kReal ? 8 : 1;
    Product product;
    product.a.end = product.b.end = 0;
    bool stopped = false;
#pragma unroll 1
    for (int first = 0; first < count && !stopped; first += 32 * AT_ONCE) {
        float x[AT_ONCE], y[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int k = first + 32 * i + lane_id();
            x[i] = k < count ? a.at<kReal>(k) : 0.0f;
            y[i] = k < count ? b.at<kReal>(k) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int k = first + 32 * i + lane_id();
            product.a.add(x[i], k);
            product.b.add(y[i], k);
            if constexpr (kMarksLines) product.mark(x[i], y[i]);
            product.sum = fmaf(x[i], y[i], product.sum);
        }
        stopped = warp_or(product.sum != product.sum) != 0;
    }
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) product.sum += shuffle_xor(product.sum, lanes);
    if constexpr (kMarksLines) product.a_marks = warp_or(product.a_marks), product.b_marks = warp_or(product.b_marks);
    product.a = {warp_min(product.a.first), stopped ? Span::UNKNOWN : ~warp_min(~product.a.end)};
    product.b = {warp_min(product.b.first), stopped ? Span::UNKNOWN : ~warp_min(~product.b.end)};
    return product;
}

DEVICE Product inner_product(const Params& p, int row, int column, const TileCoord& at) {
    const Line a = row_of_a(p, row, at), b = column_of_b(p, column, at);
    if (kSplitPlanesB || (p.a_source | p.b_source) == REAL) return multiply_lines<true>(a, b, depth(p, at));
    return multiply_lines<false>(a, b, depth(p, at));
}

// By each lane for itself: the sum of those products within a span, or within its first 32 elements, that have a
// factor which is not finite. 0: there are none. NaN: the whole inner product is NaN, too.
DEVICE float special_sum(const Params& p, int row, int column, const TileCoord& at, const Span& span) {
    const Line a = row_of_a(p, row, at), b = column_of_b(p, column, at);
    float sum = 0.0f;
#pragma unroll 1
    for (u32 k = span.begin(); k < depth(p, at) && k < span.end && k < span.begin() + 32 && sum == sum; ++k) {
        const float x = a.at<kRegistersA>(k), y = b.at<kSplitPlanesB>(k);
        if (!finite(x) || !finite(y)) sum += x * y;
    }
    return sum;
}

// Whether a tile may have such elements. `a`: Emulation::marks.
DEVICE bool marked_tile(const Params& p, u32 a) {
    return a != 0 && (kSplitPlanesB ? cross(a & 3, a >> 2) : cross(a, p.b_marks[0]));
}

// Whether this element, if there is one, is to be recomputed. `marks`: as marked_tile() returns.
DEVICE bool wrong(const Params& p, float sum, int row, int column, const TileCoord& at, u32 a, bool marks) {
    if (row >= at.rows_end(p) || column >= at.columns_end(p)) return false;
    return recomputes_all(p, at) || suspect(sum) || (marks && (kSplitPlanesB || marked(p, row, column, at, a)));
}

// Whether marks show that a column of B is finite. Where consumers split B, infinities and NaNs have no mark of their
// own, but are large to Extremes.
DEVICE bool finite_column(const Params& p, int column, const TileCoord& at, u32 a) {
    if constexpr (kSplitPlanesB) return (a >> 2 & LARGE) == 0;
    return (*b_word(p, column, at.batch) & NOT_FINITE) == 0;
}

// Whether marks show that a row of A is finite. Where consumers split A they keep marks only if B has some.
DEVICE bool finite_row(const Params& p, int row, const TileCoord& at, u32 a) {
    if constexpr (kRegistersA) return (kSplitPlanesB || *p.b_marks != 0) && (a & LARGE) == 0;
    return (*a_word(p, row, at.batch) & NOT_FINITE) == 0;
}

// The element of each lane that is `wrong`, recomputed. `row` and `column` are lane 0's: those of lane l are l / 4 rows
// below and 2 (l % 4) columns beside. `of_row`, `of_column`: what is known of each lane's lines.
DEVICE void recompute(const Params& p, float& sum, bool wrong, int row, int column, const TileCoord& at, Span& of_row,
                      Span& of_column) {
    bool look = true;  // whether more is known of this lane's row or column than before
#pragma unroll 1
    while (true) {
        if (look && wrong && suspect(sum)) {
            const int m = row + lane_id() / 4, n = column + 2 * (lane_id() % 4);
            float exact = __uint_as_float(0x7fffffff);  // NaN, which needs no loads
            if (!of_row.has_nan() && !of_column.has_nan()) exact = special_sum(p, m, n, at, of_row);
            if (exact == exact) exact += special_sum(p, m, n, at, of_column);
            if (exact != exact || (exact != 0.0f && of_row.is_short() && of_column.is_short()))
                sum = exact, wrong = false;
        }
        const u32 todo = warp_or(wrong ? 1u << lane_id() : 0);
        if (todo == 0) return;
        const u32 lane = __ffs(todo) - 1;
        Product exact = inner_product(p, row + lane / 4, column + 2 * (lane % 4), at);
        if (!exact.replaces(p, at, sum)) exact.sum = sum;
        if (lane_id() == lane) sum = exact.sum, wrong = false;
        look = lane_id() / 4 == lane / 4 && of_row.learn(exact.a);
        look = (lane_id() % 4 == lane % 4 && of_column.learn(exact.b)) || look;
    }
}

// Recomputes what is wrong of a lane's sums; the first one is in this row and column, and their order is that of
// accumulators (epilogue.cuh). `a`: Emulation::marks.
template <u32 count>
DEVICE void repair_sums(const Params& p, float (&sums)[count], int row, int column, const TileCoord& at, u32 a) {
    const bool marks = marked_tile(p, a);
    bool any = marks || recomputes_all(p, at);
#pragma unroll
    for (u32 r = 0; r < count; ++r) any = any || suspect(sums[r]);
    if (warp_or(any) == 0) return;
    const bool finite_rows = finite_row(p, row, at, a);  // all are of one group
    Span rows[2], of_column;
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) {  // both rows of a column, one after the other
        const u32 h = i % 2, r = i / 4 * 4 + 2 * h + i / 2 % 2;
        const int m = row + 8 * h, n = column + 8 * (i / 4) + i / 2 % 2;
        float sum = 0.0f;  // registers have no addresses: r is compared with each number
#pragma unroll
        for (u32 j = 0; j < count; ++j)
            if (j == r) sum = sums[j];
        const bool again = wrong(p, sum, m, n, at, a, marks);
        if (h == 0) of_column = Span();
        if (again && finite_column(p, n, at, a)) of_column.end = 0;
        Span of_row = rows[0];
        if (again && finite_rows) of_row.end = 0;
        recompute(p, sum, again, m - lane_id() / 4, n - 2 * (lane_id() % 4), at, of_row, of_column);
        rows[0] = rows[1], rows[1] = of_row;  // the other row is next
#pragma unroll
        for (u32 j = 0; j < count; ++j)
            if (j == r) sums[j] = sum;
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
