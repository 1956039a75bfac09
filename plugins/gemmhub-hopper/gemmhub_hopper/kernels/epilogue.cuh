// The epilogue, from accumulators to D: scales, alpha, beta * c, bias, activation, rounding, store.
//
// Accumulators of m64nNk*, thread t of the warpgroup (warp w = t / 32, lane l = t % 32): register 4 j + 2 h + e is
// row 16 w + l / 4 + 8 h, column 8 j + 2 (l % 4) + e. So a warp's registers 4 j + 2 h and the next one are exactly the
// fragment that stmatrix takes for the 8 x 8 block of rows 16 w + 8 h.. and columns 8 j..
//
// These are rows of D, except where rows are shifted (shifted_rows.cuh): there they are in the order of shifted_row().
#pragma once
#include "addend.cuh"

template <u32 count>
DEVICE void clear(Sum (&sums)[kNumFragments][count]) {
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i)
#pragma unroll
        for (u32 j = 0; j < count; ++j) sums[i][j] = 0;
}

// Whether sums are multiplied by alpha before they are finished; else finish() does it, behind the scales.
constexpr bool kScalesSums = !kInt8 && kScaled != 1;

// Multiplies sums by alpha, at run time: most products have 1. With 0 they are not read into the result (BLAS semantics).
template <u32 count>
DEVICE void multiply_by_alpha(const Params& p, Sum (&sums)[count]) {
    if (p.alpha == 1.0f || (!kScalesSums && p.alpha != 0.0f)) return;
#pragma unroll
    for (u32 j = 0; j < count; ++j) sums[j] = p.alpha == 0.0f ? Sum(0) : sums[j] * static_cast<Sum>(p.alpha);
}

DEVICE void pin_all(Accumulators& acc) {
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i)
#pragma unroll
        for (u32 j = 0; j < BLOCK_N / 2; ++j) pin(acc[i][j]);
}

// A sum as the epilogue takes it: a number, or where D is int32 its bits.
DEVICE float value_of(float sum) { return sum; }
DEVICE float value_of(int sum) {
    return kOutput == 3 ? __uint_as_float(static_cast<u32>(sum)) : static_cast<float>(sum);
}

DEVICE u32 pack(float low, float high) { return kOutput == 0 ? pack_bf16(low, high) : pack_f16(low, high); }

// Results of 8-bit floats: the factor that brings them into their range, and the largest magnitude before it. As bits
// magnitudes are in order, and NaN is above all.
struct ResultRange {
    float scale;
    u32 largest;

    DEVICE ResultRange(const Params& p) : scale(1.0f), largest(0) {
        if (kFloat8Result && p.result_scale) scale = *p.result_scale;
    }

    // `there`: the element is one of D.
    DEVICE float scaled(float v, bool there) {
        const u32 bits = there ? __float_as_uint(v) & 0x7fffffffu : 0;
        largest = largest > bits ? largest : bits;
        return v * scale;
    }

    // By all threads of a warp, when they have no more elements.
    DEVICE void close(const Params& p) const {
        if (!kFloat8Result || !p.largest) return;
        const u32 of_warp = warp_max(largest);
        if (lane_id() == 0) raise_to(p.largest, of_warp);
    }
};

// The epilogue of one 64-row fragment: what depends on this thread's rows and column, so that little is left to do for an
// element.
struct EpilogueFragment {
    int row, column;    // of this thread's first element (TileCoord)
    int rows, columns;  // from there on: of d, with kGate columns of the product
    long long c_ld, d_ld;
    long long d;       // index of its first element in d
    const void* c;     // its first element
    const void* bias;  // kBias 2: of its first column
    float bias_m[2];   // kBias 1: of its two rows
    float scale_m[2];  // kScaled 1: likewise
    int group;
    bool before = false;  // whether elements are finished but for the activation
    ResultRange range;  // kFloat8Result

    DEVICE EpilogueFragment(const Params& p, const TileCoord& at, int number)
        : row(at.row + 64 * number), column(at.column), group(at.group), range(p) {
        // Opaque, so that addresses and comparisons of one fragment do not occupy registers until the next one.
        rows = at.rows_end(p) - row, columns = opaque(static_cast<int>(kArity) * at.columns_end(p) - column);
        c_ld = opaque(p.c_ld), d_ld = opaque(p.d_ld);
        d = at.batch * p.d_batch + (kTransposedD ? column * d_ld + row : row * d_ld + column);
        if constexpr (kHasAddend) {
            const long long first = kTransposedD ? column * c_ld + row : row * c_ld + column;
            c = static_cast<const char*>(p.c) + (kAddendType == 2 ? 4 : 2) * (at.batch * p.c_batch + first);
        }
        const void* of_group = p.bias;
        if constexpr (kDivided != NO_GROUPS && kBias != 0)
            of_group = static_cast<const char*>(p.bias) + (kBiasType == 2 ? 4ll : 2ll) * (group * p.bias_group);
        if constexpr (kBias == 1) {
            bias_m[0] = rows > 0 ? load_element<kBiasType>(of_group, row) : 0.0f;
            bias_m[1] = rows > kRowsApart ? load_element<kBiasType>(of_group, row + kRowsApart) : 0.0f;
        }
        if constexpr (kBias == 2) bias = static_cast<const char*>(of_group) + (kBiasType == 2 ? 4ll : 2ll) * column;
        if constexpr (kScaled == 1) {
#pragma unroll
            for (int h = 0; h < 2; ++h) scale_m[h] = scale(p, p.row_scales, row + kRowsApart * h, p.m);
        }
    }

    // The scale of a row or column, of which there are `end`; alpha == 0: scales are not read into the result.
    DEVICE float scale(const Params& p, const Scales& scales, int element, int end) const {
        const bool read = scales.at != nullptr && element < end && p.alpha != 0.0f;
        return read ? *scales.find(element, 0, group) : 1.0f;
    }
};

// The elements of C beside the four of 8-column block `j`, from memory; 0 outside of it.
DEVICE void load_addends(const EpilogueFragment& fragment, float (&c)[4], int j) {
    if constexpr (kHasAddend) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int e = i % 2, row = kRowsApart * (i / 2);
            const long long at = kTransposedD ? (8 * j + e) * fragment.c_ld + row : row * fragment.c_ld + 8 * j + e;
            const bool there = row < fragment.rows && 8 * j + e < fragment.columns;
            c[i] = there ? load_element<kAddendType>(fragment.c, at) : 0.0f;
        }
    }
}

// Four sums before the activation: rows 0 and kRowsApart from the thread's first, columns `first` and `first` + 1 from its first.
// `c`: with kHasAddend, the elements of C beside them.
DEVICE void add_terms(const Params& p, const EpilogueFragment& fragment, float (&v)[4], const float (&c)[4], int first) {
    float bias_n[2], scale_n[2];
    if constexpr (kScaled == 1) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
            scale_n[e] = fragment.scale(p, p.column_scales, fragment.column + first + e, static_cast<int>(kArity) * p.n);
    }
    if constexpr (kBias == 2) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
            bias_n[e] = fragment.rows > 0 && first + e < fragment.columns
                            ? load_element<kBiasType>(fragment.bias, first + e)
                            : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int h = i / 2, e = i % 2;
        if constexpr (kScaled == 1) v[i] *= fragment.scale_m[h] * scale_n[e];  // equal bits where operands are swapped
        if constexpr (!kScalesSums && kOutput != 3) v[i] *= p.alpha;
        if constexpr (kHasAddend) v[i] = fmaf(p.beta, c[i], v[i]);  // one rounding in every variant
        if constexpr (kBias == 1) v[i] += fragment.bias_m[h];
        if constexpr (kBias == 2) v[i] += bias_n[e];
    }
}

// Finishes the four elements of 8-column block `j`, where they have no gate.
DEVICE void finish(const Params& p, EpilogueFragment& fragment, float (&v)[4], const float (&c)[4], int j) {
    add_terms(p, fragment, v, c, 8 * j);
    if (kOutput != 3 && !(kStoresBefore && fragment.before)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = activated<kActivation>(v[i]);
            if constexpr (kFloat8Result)
                v[i] = fragment.range.scaled(v[i], kRowsApart * (i / 2) < fragment.rows && 8 * j + i % 2 < fragment.columns);
        }
    }
}

constexpr int kStored = kOutput == 3 ? 2 : kOutput;  // int32 is stored as the bits that it is

// Stores four elements that finish() has finished straight from registers: for slices of split-K.
DEVICE void store_direct(const Params& p, const EpilogueFragment& fragment, const float (&v)[4], int j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = kRowsApart * h;
        if (row >= fragment.rows) continue;
        const long long at = fragment.d + (kTransposedD ? 8 * j * fragment.d_ld + row : row * fragment.d_ld + 8 * j);
        if (!kTransposedD && p.pairs && 8 * j + 1 < fragment.columns) {
            if constexpr (kOutputBytes == 4) {
                struct alignas(8) Pair {
                    float low, high;
                };
                *reinterpret_cast<Pair*>(static_cast<float*>(p.d) + at) = {v[2 * h], v[2 * h + 1]};
            } else if constexpr (kFloat8Result) {
                store_half(static_cast<char*>(p.d) + at, pack_float8<kStored>(v[2 * h], v[2 * h + 1]));
            } else {
                *reinterpret_cast<u32*>(static_cast<u16*>(p.d) + at) = pack(v[2 * h], v[2 * h + 1]);
            }
        } else {
            if (8 * j < fragment.columns) store_element<kStored>(p.d, at, v[2 * h]);
            if (8 * j + 1 < fragment.columns)
                store_element<kStored>(p.d, at + (kTransposedD ? fragment.d_ld : 1), v[2 * h + 1]);
        }
    }
}

// The four elements of 8-column block `j` of D, finished. With HALVES gates are in that block of the accumulators, ups in the
// one that is half of them further.
DEVICE void finish_quad(const Params& p, EpilogueFragment& fragment, const Sum (&acc)[SUM_N / 2], float (&v)[4],
                        float (&c)[4], int j) {
#pragma unroll
    for (int r = 0; r < 4; ++r) v[r] = value_of(acc[4 * j + r]);
    if constexpr (kGate == HALVES) {
        float up[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) up[r] = value_of(acc[4 * j + r + SUM_N / 4]);
        add_terms(p, fragment, v, c, 8 * j);
        add_terms(p, fragment, up, c, p.n + 8 * j);
#pragma unroll
        for (int r = 0; r < 4; ++r) v[r] = activated<kActivation>(v[r]) * up[r];
        return;
    }
    if constexpr (!kStagedAddend) load_addends(fragment, c, j);
    finish(p, fragment, v, c, j);
}

// Where this lane's row of stmatrix goes, for the 16 columns from 8-column block `j` of the buffer on. Matrix q is the
// block of rows 8 (q % 2).. of the warp's 16 and columns 8 (j + q / 2)..; its row r is 16 bytes of the buffer.
template <bool transposed = kTransposedD>
DEVICE u32 staging_offset(u32 warp, u32 lane, u32 j) {
    const u32 q = lane / 8, r = lane % 8;
    if constexpr (transposed)  // row of the buffer: a column of the tile; in it, 8 of the 64 rows of the tile
        return swizzled((8 * (j + q / 2) + r) * 128 + (2 * warp + q % 2) * 16, 128);
    else
        return swizzled((16 * warp + 8 * (q % 2) + r) * STORE_ROW_BYTES + (j + q / 2) * 16, STORE_ROW_BYTES);
}

// Fills the staging buffer at `address` with 16-bit elements, from 8-column block `eight` of the tile on.
DEVICE void stage_16_bits(const Params& p, EpilogueFragment& fragment, const Sum (&acc)[SUM_N / 2], u32 eight,
                          u32 address) {
    const u32 warp = threadIdx.x % 128 / 32, lane = lane_id();
#pragma unroll
    for (u32 j = 0; j < STORE_BLOCK_N / 8; j += 2) {
        float v[2][4], c[2][4];
        const u32 row = address + staging_offset(warp, lane, j);
        const auto word = [&](u32 i) {  // of the buffer: a thread's two rows of D, neighbours, where the loop below stores them
            const u32 column = 8 * (j + i / 2) + 2 * (lane % 4) + i % 2;
            return address + swizzled(column * 128 + 2 * fragment_row(warp, lane), 128);
        };
        if constexpr (kStagedAddend) {
            u32 w[4];
            if constexpr (kTransposedD && kShiftedRows) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) w[i] = load_shared(word(i));
            } else if constexpr (kTransposedD) {
                load_matrices_transposed(row, w);
            } else {
                load_matrices(row, w);
            }
#pragma unroll
            for (u32 i = 0; i < 8; ++i) {
                const u16 bits = static_cast<u16>(w[i / 2] >> 16 * (i % 2));
                // Of word i / 2 the neighbours are in one row, of those above in one column.
                constexpr bool COLUMNS = kTransposedD && kShiftedRows;
                c[i / 4][COLUMNS ? i / 2 % 2 + 2 * (i % 2) : i % 4] = kAddendType == 0 ? from_bf16(bits) : from_f16(bits);
            }
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) finish_quad(p, fragment, acc, v[side], c[side], eight + j + side);
        if constexpr (kTransposedD && kShiftedRows) {
            // Up to four lanes share a bank.
#pragma unroll
            for (u32 i = 0; i < 4; ++i) store_shared(word(i), pack(v[i / 2][i % 2], v[i / 2][2 + i % 2]));
            continue;
        }
        const u32 w0 = pack(v[0][0], v[0][1]), w1 = pack(v[0][2], v[0][3]);
        const u32 w2 = pack(v[1][0], v[1][1]), w3 = pack(v[1][2], v[1][3]);
        if constexpr (kTransposedD)
            store_matrices_transposed(row, w0, w1, w2, w3);
        else
            store_matrices(row, w0, w1, w2, w3);
        if constexpr (kSymmetric)
            store_matrices_transposed(address + SMEM_STORE_BYTES + staging_offset<true>(warp, lane, j), w0, w1, w2, w3);
    }
}

// Where this lane's float32 elements of 8-column block `j` of the buffer go, those of its row 8 h: both columns (8
// bytes), or transposed column `e` (4 bytes).
//
// Banks, by units of 16 bytes: where buffers are 128 bytes wide, row r of one has unit x at x ^ (r % 8).
//   transposed  a lane's row is 8 j + 2 (l % 4) + e, its unit 4 (w % 2) + 2 h + l / 16: in one store the low bit of
//               the unit is due to l / 16, the others to l % 4, and lanes l / 4 % 4 have the four words of a unit.
//               All 32 banks. (Where rows are shifted, up to eight lanes share a bank.)
//   else        8 bytes a lane, so half a warp at a time: rows r = 0..3 (or 4..7), units 2 j + l % 4 / 2. The upper
//               two bits of the unit are j ^ r / 2, the same for rows r and r ^ 1, which would share banks. So odd
//               rows store block j ^ 2 meanwhile, and each of the four rows has two units of its own.
//               64 bytes wide (STORE_BLOCK_N 16), the unit is at 4 (r % 2) + ((2 j + l % 4 / 2) ^ (r / 2 % 4)): rows r and
//               r ^ 2 would share banks, and rows with r & 2 store block j ^ 1 meanwhile.
template <bool transposed = kTransposedD>
DEVICE u32 staging_offset(u32 warp, u32 lane, u32 j, u32 h, u32 e) {
    const u32 column = 8 * j + 2 * (lane % 4) + e;
    const u32 row = fragment_row(warp, lane) + h;  // where rows are shifted
    if constexpr (transposed && kShiftedRows)
        return row / 32 * MIRROR_BOX_BYTES + swizzled(column * 128 + row % 32 * 4, 128);
    else if constexpr (transposed)
        return warp / 2 * MIRROR_BOX_BYTES + swizzled(column * 128 + 64 * (warp % 2) + 32 * h + lane / 4 * 4, 128);
    else
        return swizzled((16 * warp + 8 * h + lane / 4) * STORE_ROW_BYTES + 32 * j + 8 * (lane % 4), STORE_ROW_BYTES);
}

// Fills the staging buffer at `address` with float32 elements, from 8-column block `eight` of the tile on.
DEVICE void stage_floats(const Params& p, EpilogueFragment& fragment, const Sum (&acc)[SUM_N / 2], u32 eight,
                         u32 address) {
    const u32 warp = threadIdx.x % 128 / 32, lane = lane_id();
    if constexpr (kTransposedD) {
#pragma unroll
        for (u32 j = 0; j < STORE_BLOCK_N / 8; ++j) {
            float v[4], c[4];
            if constexpr (kStagedAddend) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) c[i] = load_float(address + staging_offset(warp, lane, j, i / 2, i % 2));
            }
            finish_quad(p, fragment, acc, v, c, eight + j);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) store_staged(address + staging_offset(warp, lane, j, i / 2, i % 2), v[i]);
        }
    } else {
        constexpr u32 APART = STORE_BLOCK_N / 16;
        const bool trades = lane / 4 & (STORE_BLOCK_N == 32 ? 1 : 2);  // stores block j + APART first
#pragma unroll
        for (u32 j = 0; j < APART; ++j) {
            float a[4], b[4], c_a[4], c_b[4];
            const u32 first = trades ? j + APART : j, second = trades ? j : j + APART;
            if constexpr (kStagedAddend) {
#pragma unroll
                for (u32 h = 0; h < 2; ++h) {
                    float x[2], y[2];
                    load_shared_pair(address + staging_offset(warp, lane, first, h, 0), x);
                    load_shared_pair(address + staging_offset(warp, lane, second, h, 0), y);
#pragma unroll
                    for (u32 e = 0; e < 2; ++e)
                        c_a[2 * h + e] = trades ? y[e] : x[e], c_b[2 * h + e] = trades ? x[e] : y[e];
                }
            }
            finish_quad(p, fragment, acc, a, c_a, eight + j);
            finish_quad(p, fragment, acc, b, c_b, eight + j + APART);
#pragma unroll
            for (u32 i = 0; i < 4; i += 2) {
                store_staged(address + staging_offset(warp, lane, first, i / 2, 0), trades ? b[i] : a[i],
                             trades ? b[i + 1] : a[i + 1]);
                store_staged(address + staging_offset(warp, lane, second, i / 2, 0), trades ? a[i] : b[i],
                             trades ? a[i + 1] : b[i + 1]);
            }
            if constexpr (kSymmetric) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {  // eight rows further on, the swizzle is the same
                    const u32 mirror = address + SMEM_STORE_BYTES + staging_offset<true>(warp, lane, 0, i / 2, i % 2);
                    store_staged(mirror + 8 * 128 * j, a[i]);
                    store_staged(mirror + 8 * 128 * (j + APART), b[i]);
                }
            }
        }
    }
}

// With NEIGHBOURS: fills the staging buffer at `address`, from `column` of the tile on. Of an 8-column block of the accumulators
// a thread has one pair of each of its rows, and so an element of D. Lanes of a store share no bank, but for those with the
// halves of a word.
DEVICE void stage_neighbours(const Params& p, const EpilogueFragment& fragment, const Sum (&acc)[SUM_N / 2], u32 column,
                             u32 address) {
    const u32 warp = threadIdx.x % 128 / 32, lane = lane_id();
#pragma unroll
    for (u32 j = 0; j < STORE_BLOCK_N / 4; ++j) {
        float v[4], c[4];
        const u32 pairs = column / 4 + j;  // the 8-column block
#pragma unroll
        for (u32 r = 0; r < 4; ++r) v[r] = value_of(acc[4 * pairs + r]);
        add_terms(p, fragment, v, c, 8 * pairs);
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            const float value = activated<kActivation>(v[2 * h]) * v[2 * h + 1];
            const u32 row = fragment_row(warp, lane) + kRowsApart * h, element = 4 * j + lane % 4;
            constexpr u32 ROWS = 128 / kOutputBytes;  // of a box, where D is transposed
            const u32 box = kTransposedD ? row / ROWS * STORE_BOX_BYTES : 0;
            const u32 line = kTransposedD ? element : row, at = kTransposedD ? row % ROWS : element;
            const u32 to = address + box + swizzled(line * STORE_ROW_BYTES + at * kOutputBytes, STORE_ROW_BYTES);
            if constexpr (kOutputBytes == 4)
                store_staged(to, value);
            else
                store_shared_half(to, static_cast<u16>(pack(value, 0.0f)));
        }
    }
}

// Fills the staging buffer at `address` with 8-bit floats, from 8-column block `eight` of the tile on: two at a time.
//
// Transposed, two neighbours are rows of a column. Where a thread has rows that are eight apart, it gives the lane with the row
// above or below its elements of one column for those of the other.
//
// Banks: a buffer that is 64 bytes wide has unit x of its row r at 4 (r % 2) + (x ^ r / 2 % 4), so the eight rows of a store
// are in eight different units of 16 bytes; transposed, four columns are, each with eight neighbours.
DEVICE void stage_8_bits(const Params& p, EpilogueFragment& fragment, const Sum (&acc)[SUM_N / 2], u32 eight, u32 address) {
    const u32 warp = threadIdx.x % 128 / 32, lane = lane_id();
#pragma unroll
    for (u32 j = 0; j < STORE_BLOCK_N / 8; ++j) {
        float v[4], c[4];
        finish_quad(p, fragment, acc, v, c, eight + j);
        const u32 column = 8 * j + 2 * (lane % 4);
        if constexpr (!kTransposedD) {
#pragma unroll
            for (u32 h = 0; h < 2; ++h)
                store_staged(address + swizzled((16 * warp + 8 * h + lane / 4) * STORE_ROW_BYTES + column, STORE_ROW_BYTES),
                             pack_float8<kStored>(v[2 * h], v[2 * h + 1]));
        } else if constexpr (kShiftedRows) {
#pragma unroll
            for (u32 e = 0; e < 2; ++e)
                store_staged(address + swizzled((column + e) * STORE_ROW_BYTES + fragment_row(warp, lane), STORE_ROW_BYTES),
                             pack_float8<kStored>(v[e], v[2 + e]));
        } else {
            const u32 odd = lane / 4 % 2;  // keeps its elements of the second column
            const u32 kept = pack_float8<kStored>(odd ? v[1] : v[0], odd ? v[3] : v[2]);
            const u32 given = pack_float8<kStored>(odd ? v[0] : v[1], odd ? v[2] : v[3]);
            const u32 taken = __float_as_uint(shuffle_xor(__uint_as_float(given), 4));
            const u32 above = odd ? taken : kept, below = odd ? kept : taken;
#pragma unroll
            for (u32 h = 0; h < 2; ++h)
                store_staged(address + swizzled((column + odd) * STORE_ROW_BYTES + 16 * warp + 8 * h + lane / 8 * 2,
                                                STORE_ROW_BYTES),
                             static_cast<u16>((above >> 8 * h & 0xff) | (below >> 8 * h & 0xff) << 8));
        }
    }
}

// Fills the staging buffer at `address` with STORE_BLOCK_N columns of a fragment, from `column` of the tile on.
DEVICE void stage(const Params& p, EpilogueFragment& fragment, const Sum (&acc)[SUM_N / 2], u32 column, u32 address) {
    if constexpr (kGate == NEIGHBOURS)
        stage_neighbours(p, fragment, acc, column, address);
    else if constexpr (kOutputBytes == 4)
        stage_floats(p, fragment, acc, column / 8, address);
    else if constexpr (kFloat8Result)
        stage_8_bits(p, fragment, acc, column / 8, address);
    else
        stage_16_bits(p, fragment, acc, column / 8, address);
}

// First column of a store block: the last one may begin within the one before.
DEVICE constexpr u32 store_column(u32 block) {
    return block + 1 < kNumStoreBlocks ? block * STORE_BLOCK_N : OUT_N - STORE_BLOCK_N;
}

// The threads that share a staging buffer see what they have written: a warp has rows of its own, but those of a
// transposed buffer have elements of all warps.
DEVICE void sync_staged(TileContext ctx) {
    if constexpr (kTransposedD)
        sync_stores(1 + ctx.warpgroup, 128);
    else
        sync_warp_stores();
}

// Stores through shared memory: 64 rows x STORE_BLOCK_N columns at a time, while TMA still stores the ones before.
//
// `sent` counts the buffers that this warpgroup has stored; it uses its kNumStoreStages buffers in turn. Issuing a TMA store
// takes about as long as filling a buffer: so lane 0 of the first warp issues those of buffer 0, lane 0 of the second warp
// those of buffer 1. A buffer is filled again once that thread has seen that TMA has read it; the named barrier informs the
// others. (With kSplitK there is no register for a count: `sent` is the number of the next buffer.)
DEVICE void store_by_tma(const Params& p, const TensorMap* map, Results& acc, const TileCoord& at, TileContext ctx,
                         u32& sent) {
    const u32 thread = threadIdx.x % 128;
    const u32 staging = ctx.smem + SMEM_STORE_OFFSET + ctx.warpgroup * kNumStoreStages * SMEM_STORE_BYTES;
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i) {
        EpilogueFragment fragment(p, at, i);
#pragma unroll
        for (u32 block = 0; block < kNumStoreBlocks; ++block) {
            const u32 column = store_column(block);
            const u32 buffer = sent % kNumStoreStages, address = staging + buffer * SMEM_STORE_BYTES;
            const bool stores = thread == 32 * buffer;
            if (kSplitK || sent++ >= kNumStoreStages) {
                if (stores) tma_store_wait_read();
                named_sync(1 + ctx.warpgroup, 128);
            }
            if (kSplitK) sent = (sent + 1) % kNumStoreStages;
            if constexpr (kStagedAddend) {
                fill_addend(p, address, at.row0 + 64 * i, at.column0 + column, at.batch, ctx);
                sync_staged(ctx);
            }
            stage(p, fragment, acc[i], column, address);
            async_fence();  // by every thread that has written: one thread's fence is only for its own
            named_sync(1 + ctx.warpgroup, 128);
            if (stores) {
                const int m = at.row0 + 64 * i, n = at.column0 + column;
                if constexpr (kTransposedD) {
#pragma unroll
                    for (u32 box = 0; box < kNumStoreBoxes; ++box)
                        tma_store(map, address + box * STORE_BOX_BYTES, m + 64 / kNumStoreBoxes * box, n, at.batch,
                                  p.streamed);
                } else {
                    tma_store(map, address, n, m, at.batch, p.streamed);
                }
                tma_store_commit();
            }
        }
        fragment.range.close(p);
    }
}

// Stores one element of the row at `from` of a box of a staging buffer, whose first one goes to `at`.
template <u32 row_bytes>
DEVICE void store_staged_element(char* at, u32 box, u32 from, u32 element) {
    const u32 address = box + swizzled(from + kOutputBytes * element, row_bytes);
    if constexpr (kOutputBytes == 4)
        store_word(at + 4 * element, load_shared(address));
    else if constexpr (kFloat8Result)
        store_byte(at + element, load_shared_byte(address));
    else
        store_half(at + 2 * element, load_shared_half(address));
}

// A matrix that warps store: D, or what the activation is applied to.
struct StoredMatrix {
    void* matrix;
    long long ld, batch;
    bool before;

    DEVICE static StoredMatrix d(const Params& p) { return {p.d, p.d_ld, p.d_batch, false}; }
    DEVICE static StoredMatrix before_d(const Params& p) { return {p.before, p.before_ld, p.before_batch, true}; }
};

// Stores a box of a staging buffer by ordinary stores, for results whose rows TMA cannot take: adjacent lanes store adjacent
// units of 16 bytes. `row`, `column`: of d, where the box begins; `rows`, `columns`: of d from there on.
//
// Where rows are shifted, those of a buffer that is not transposed are in the order of wgmma's fragment.
//
// In d a row begins anywhere; what it has before its first multiple of 16 bytes, and behind the last one, is stored element
// by element, so that nothing beside the row is written. A unit between is shifted out of two units of the buffer.
template <u32 row_bytes = STORE_ROW_BYTES, u32 box_bytes = STORE_BOX_BYTES>
DEVICE void store_rows(const StoredMatrix& to, u32 box, long long row, int column, int rows, int columns, int batch,
                       TileContext ctx) {
    constexpr u32 UNITS = row_bytes / 16, AT_ONCE = 32 / UNITS;  // units of a row; rows that a warp stores at once
    constexpr u32 ROWS = box_bytes / row_bytes / 4;              // of a warp
    constexpr int ELEMENTS = row_bytes / kOutputBytes, PER_UNIT = 16 / kOutputBytes;
    static_assert(ROWS % AT_ONCE == 0 || kFloat8Result, "all lanes have rows");
    if (AT_ONCE > ROWS && ctx.lane / UNITS >= ROWS) return;
    const u32 unit = ctx.lane % UNITS, first = ctx.warp * ROWS + ctx.lane / UNITS;
    const int end = columns < ELEMENTS ? columns : ELEMENTS;
    const long long ld = kOutputBytes * to.ld;
    constexpr int UNROLLED = kNumFragments * OUT_N <= 256 ? 2 : 1;  // as there are registers
    constexpr bool REORDERS = kShiftedRows && !kTransposedD;
    char* next = static_cast<char*>(to.matrix) + kOutputBytes * opaque(batch * to.batch + row * to.ld + column) +
                 (REORDERS ? 0 : first * ld);
#pragma unroll UNROLLED
    for (u32 done = 0; done < ROWS; done += AT_ONCE, next += REORDERS ? 0 : AT_ONCE * ld) {
        const u32 from = (first + done) * row_bytes;
        const u32 into = REORDERS ? shifted_row(first + done) : first + done;  // the row of d
        char* const at = REORDERS ? next + into * ld : next;
        u32 w[8], x[4];
        load_words(box + swizzled(from + 16 * unit, row_bytes), w[0], w[1], w[2], w[3]);
        load_words(box + swizzled(from + 16 * ((unit + 1) % UNITS), row_bytes), w[4], w[5], w[6], w[7]);
        if (static_cast<int>(into) >= rows) continue;
        const u32 shift = (0u - static_cast<u32>(reinterpret_cast<u64>(at))) & 15;  // bytes to the first unit of d
#pragma unroll
        for (int i = 0; i < 6; ++i) w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < 5; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = kOutputBytes == 4 ? w[i] : shift_pair(w[i], w[i + 1], 8 * (shift & (kFloat8Result ? 3 : 2)));
        const int head = shift / kOutputBytes, element = head + PER_UNIT * unit;
        if (element + PER_UNIT <= end) store_words(at + kOutputBytes * element, x[0], x[1], x[2], x[3]);
        const int tail = end < head ? end : end - (end - head & PER_UNIT - 1);
#pragma unroll
        for (int i = 0; i < PER_UNIT; i += UNITS) {
            const int before = unit + i, behind = tail + unit + i;
            if (before < head && before < end) store_staged_element<row_bytes>(at, box, from, before);
            if (behind < end) store_staged_element<row_bytes>(at, box, from, behind);
        }
    }
}

// As store_by_tma(), but warps store the rows of a buffer. No barrier precedes the filling of one of two buffers: its
// readers have met the other threads since, when the other buffer was full.
DEVICE void store_by_rows(const Params& p, const StoredMatrix& to, Results& acc, const TileCoord& at, TileContext ctx, u32& sent) {
    const u32 staging = ctx.smem + SMEM_STORE_OFFSET + ctx.warpgroup * kNumStoreStages * SMEM_STORE_BYTES;
    const int rows_end = at.rows_end(p), columns_end = at.columns_end(p);
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i) {
        EpilogueFragment fragment(p, at, i);
        fragment.before = to.before;
        const int m = at.row0 + 64 * i;
#pragma unroll
        for (u32 block = 0; block < kNumStoreBlocks; ++block) {
            const u32 column = store_column(block), address = staging + sent * SMEM_STORE_BYTES;
            const int n = at.column0 + column;
            if (kNumStoreStages == 1) sync_staged(ctx);
            sent = (sent + 1) % kNumStoreStages;
            if constexpr (kStagedAddend) {
                fill_addend(p, address, m, n, at.batch, ctx);
                sync_staged(ctx);
            }
            stage(p, fragment, acc[i], column, address);
            sync_staged(ctx);
            if constexpr (kTransposedD) {
#pragma unroll
                for (u32 box = 0; box < kNumStoreBoxes; ++box) {
                    const int first = m + 64 / kNumStoreBoxes * box;
                    store_rows(to, address + box * STORE_BOX_BYTES, n, first, columns_end - n, rows_end - first, at.batch, ctx);
                }
            } else {
                store_rows(to, address, m, n, rows_end - m, columns_end - n, at.batch, ctx);
            }
        }
        fragment.range.close(p);
    }
}

// Where TMA stores other tiles or matrices: of the last tile of a group TMA would store rows of the next group too.
DEVICE void store_beside_tma(const Params& p, const StoredMatrix& to, Results& acc, const TileCoord& at, TileContext ctx) {
    if (ctx.lane == 0) tma_store_wait_read();  // each of the threads that issue TMA stores, before buffers are filled
    named_sync(1 + ctx.warpgroup, 128);
    u32 buffer = 0;
    store_by_rows(p, to, acc, at, ctx, buffer);
    named_sync(1 + ctx.warpgroup, 128);
}

// Rows (columns) of D behind the last group, which ends at `end`: zeros, stored by the consumers of all CTAs.
DEVICE void clear_behind_groups(const Params& p, int end, TileContext ctx) {
    const int row = kDivided == ROWS ? end : 0, column = kDivided == COLUMNS ? end : 0;
    const int first = kTransposedD ? column : row, last = kTransposedD ? p.n : p.m;     // lines of D
    const int begin = kTransposedD ? row : column, behind = kTransposedD ? p.m : p.n;  // elements of a line
    const int warp = (blockIdx.x * kNumConsumers + ctx.warpgroup) * 4 + ctx.warp;
#pragma unroll 1
    for (long long line = first + warp; line < last; line += gridDim.x * kNumConsumers * 4)
#pragma unroll 1
        for (int i = begin + ctx.lane; i < behind; i += 32) store_element<kStored>(p.d, line * p.d_ld + i, 0.0f);
}

DEVICE void store_tile(const Params& p, const TensorMap* map, Results& acc, const TileCoord& at, TileContext ctx,
                       u32& sent) {
#pragma unroll
    for (u32 i = 0; i < kNumFragments; ++i) multiply_by_alpha(p, acc[i]);
    if constexpr (kStoresBefore) {  // first, as D may be C
        if constexpr (kTmaStore)
            store_beside_tma(p, StoredMatrix::before_d(p), acc, at, ctx);
        else
            store_by_rows(p, StoredMatrix::before_d(p), acc, at, ctx, sent);
    }
    if constexpr (kTmaStore && kWalksGroups) {
        if (!at.inside_group()) {
            store_beside_tma(p, StoredMatrix::d(p), acc, at, ctx);
            return;
        }
    }
    if constexpr (kTmaStore)
        store_by_tma(p, map, acc, at, ctx, sent);
    else
        store_by_rows(p, StoredMatrix::d(p), acc, at, ctx, sent);
}

// Four sums as their bits, as CTAs exchange them.
DEVICE Float4 quad_of(const float* v) { return {v[0], v[1], v[2], v[3]}; }
DEVICE Float4 quad_of(const int* v) {
    return {__uint_as_float(static_cast<u32>(v[0])), __uint_as_float(static_cast<u32>(v[1])),
            __uint_as_float(static_cast<u32>(v[2])), __uint_as_float(static_cast<u32>(v[3]))};
}

// Adds a quad of another CTA's partial sums to four registers; `first`: to 0.
DEVICE void add_quad(float* v, Float4 x, bool first) {
    if (first) v[0] = v[1] = v[2] = v[3] = 0.0f;
    v[0] += x.x, v[1] += x.y, v[2] += x.z, v[3] += x.w;
}
DEVICE void add_quad(int* v, Float4 x, bool first) {
    const u32 words[4] = {__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w)};
    if (first) v[0] = v[1] = v[2] = v[3] = 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) v[r] = static_cast<int>(static_cast<u32>(v[r]) + words[r]);  // modulo 2^32
}
