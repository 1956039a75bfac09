// A few vectors times a matrix: d (m x n) = x (m x k) times w (k x n), for each matrix of a batch, m at most VECTORS.
//
// Every element of w is used once by each vector, so there is nothing to share: each thread reads its part of w, UNROLL
// loads under way at a time, and multiplies. SPREAD threads of a block share the k of a column of results, those of
// CLUSTER blocks if need be. So a result is one sum for each thread, and these are added in the order of lanes, warps and
// blocks.
//
//     INPUT     0 bfloat16, 1 float16, 2 float32
//     VECTORS   1, 2, 4 or 8
//     N_MAJOR   1: neighbours along n are neighbours in memory; 0: neighbours along k are
//     X_STRIDED 1: neighbours along k are no neighbours in x, whose elements are loaded one by one
//     LOAD      bytes of a load, of WIDTH elements. Rows of w begin at multiples of it and are as long
//     SPREAD    as said, a power of two. With N_MAJOR, ACROSS = GEMV_THREADS / SPREAD neighbouring lanes read a row
//     CLUSTER   blocks that share the k of a result
//     AHEAD     1: loads go to shared memory, each asked for as soon as the one UNROLL before it is taken, so that some are
//               under way at all times; 0: to registers, and all are there before more are asked for. With N_MAJOR and
//               loads of 16 bytes
//     RESIDENT  blocks that a multiprocessor has room for, two or with AHEAD four
//
//     n-major   a thread has WIDTH columns of results, of neighbouring elements, and every STRIDE-th row
//     k-major   a thread has ROWS columns of results, and of their rows of w every STRIDE-th load
#include "early.cuh"
#include "elements.cuh"

constexpr u32 GEMV_THREADS = 256, ROWS = 4, UNROLL = VECTORS < 8 ? 8 : 4;
constexpr u32 WIDTH = LOAD / (INPUT == 2 ? 4 : 2);
constexpr u32 ACROSS = N_MAJOR ? GEMV_THREADS / SPREAD : 1;
constexpr u32 MINE = N_MAJOR ? WIDTH : ROWS;
constexpr u32 COLUMNS = GEMV_THREADS / SPREAD * MINE;  // of results, of a block
constexpr u32 RESULTS = VECTORS * COLUMNS;
constexpr u32 IN_WARP = SPREAD * ACROSS < 32 ? SPREAD * ACROSS : 32;  // lanes among which sums are added
constexpr u32 PARTS = SPREAD * ACROSS / IN_WARP;                      // warps that have a share of a result
constexpr u32 STRIDE = SPREAD * CLUSTER;

// Dynamic shared memory: the loads of AHEAD, [load][thread]; sums of warps, and in the first block of a cluster those of
// its blocks.
constexpr u32 SUMS_AT = AHEAD * UNROLL * GEMV_THREADS * LOAD, BLOCKS_AT = SUMS_AT + 4 * PARTS * RESULTS;
constexpr u32 END_AT = BLOCKS_AT + (CLUSTER > 1 ? 4 * CLUSTER * RESULTS : 0);
static_assert(END_AT == SHARED_BYTES, "gemv.py counts as this file does");

struct GemvParams {
    const void *x, *w;
    void* d;
    const void *c, *bias;  // null: there is none
    // Elements from one row, element along k or column, matrix to the next.
    long long x_m, x_k, x_batch;
    long long w_ld, w_batch;
    long long d_m, d_n, d_batch;
    long long c_m, c_n, c_batch;
    int bias_m, bias_n;
    int m, n, k;
    int strips;  // of COLUMNS columns, of one matrix
    int output, addend, bias_type, activation;
    float alpha, beta;
    int next;  // when the next kernel may begin: STARTED, SUMMED or else at the end
    int padding;
};
static_assert(sizeof(GemvParams) == 184, "gemv_launch.py has the same structure");

#if INPUT == 2
using Element = float;
#else
using Element = u16;
#endif

// Neighbouring elements, as they are loaded.
template <u32 bytes>
struct Elements {
    u32 words[bytes < 4 ? 1 : bytes / 4];

    // Zeros where `there` is false.
    DEVICE void load(const Element* from, bool there) {
        if constexpr (bytes == 2)
            load_half_if(from, there, words);
        else
            load_if(from, there, words);
    }

    DEVICE float operator[](u32 i) const {
        if constexpr (INPUT == 2) return __uint_as_float(words[i]);
        const u32 word = words[i / 2];
        if constexpr (INPUT == 0) return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
        return from_f16(static_cast<u16>(i % 2 ? word >> 16 : word));
    }
};

using Sums = float[VECTORS][MINE];

// Where the vectors begin; those that there are not are read as the last one.
using Vectors = const Element* [VECTORS];
// Elements of the vectors for UNROLL rows.
using Factors = Elements<sizeof(Element)>[UNROLL][VECTORS];

// Each of the following adds up the share of a thread, `first` of STRIDE, in the columns from `column` on.

#if AHEAD
DEVICE void load_factors(const GemvParams& p, const Vectors& x, int base, int first, Factors& factors) {
#pragma unroll
    for (u32 u = 0; u < UNROLL; ++u) {
        const int at = base + u * STRIDE + first;
#pragma unroll
        for (u32 v = 0; v < VECTORS; ++v) factors[u][v].load(x[v] + at * p.x_k, at < p.k);
    }
}

// The thread's loads are from `place` on in shared memory, where nobody else looks.
DEVICE void add_rows(const GemvParams& p, const Vectors& x, const Element* w, int first, int column, u32 place,
                     Sums& sums) {
    constexpr u32 APART = GEMV_THREADS * LOAD;
    const Element* from = w + first * p.w_ld + column;
    const long long stride = STRIDE * p.w_ld;
    int row = column < p.n ? first : p.k;  // to ask for next
    const auto ask = [&](u32 u) {
        copy_async(place + u * APART, from, row < p.k);
        copy_commit();
        from += stride, row += STRIDE;
    };
#pragma unroll
    for (u32 u = 0; u < UNROLL; ++u) ask(u);
    Factors factors, next;
    load_factors(p, x, 0, first, factors);
#pragma unroll 1
    for (int base = 0; base < p.k; base += UNROLL * STRIDE) {
        load_factors(p, x, base + UNROLL * STRIDE, first, next);
#pragma unroll
        for (u32 u = 0; u < UNROLL; ++u) {
            copy_wait<UNROLL - 1>();
            const Float4 four = load_four(place + u * APART);
            const Elements<LOAD> loaded = {
                {__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z), __float_as_uint(four.w)}};
            ask(u);
#pragma unroll
            for (u32 v = 0; v < VECTORS; ++v)
#pragma unroll
                for (u32 i = 0; i < WIDTH; ++i) sums[v][i] += factors[u][v][0] * loaded[i];
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; ++u)
#pragma unroll
            for (u32 v = 0; v < VECTORS; ++v) factors[u][v] = next[u][v];
    }
}
#else
DEVICE void add_rows(const GemvParams& p, const Vectors& x, const Element* w, int first, int column, u32, Sums& sums) {
    const bool there = column < p.n;
#pragma unroll 1
    for (int base = 0; base < p.k; base += UNROLL * STRIDE) {
        Elements<LOAD> loaded[UNROLL];
        Factors factors;
#pragma unroll
        for (u32 u = 0; u < UNROLL; ++u) {
            const int at = base + u * STRIDE + first;
            loaded[u].load(w + at * p.w_ld + column, there && at < p.k);
#pragma unroll
            for (u32 v = 0; v < VECTORS; ++v) factors[u][v].load(x[v] + at * p.x_k, at < p.k);
        }
#pragma unroll
        for (u32 u = 0; u < UNROLL; ++u)
#pragma unroll
            for (u32 v = 0; v < VECTORS; ++v)
#pragma unroll
                for (u32 i = 0; i < WIDTH; ++i) sums[v][i] += factors[u][v][0] * loaded[u][i];
    }
}
#endif

DEVICE void add_columns(const GemvParams& p, const Vectors& x, const Element* w, int first, int column, Sums& sums) {
    constexpr u32 STEPS = UNROLL / ROWS;
    long long row[ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) row[r] = (column + static_cast<int>(r) < p.n ? column + r : p.n - 1) * p.w_ld;
#pragma unroll 1
    for (int base = 0; base < p.k; base += STEPS * STRIDE * WIDTH) {
        Elements<LOAD> loaded[STEPS][ROWS], factors[STEPS][VECTORS];
        Elements<sizeof(Element)> single[STEPS][VECTORS][WIDTH];  // with X_STRIDED in place of factors
#pragma unroll
        for (u32 s = 0; s < STEPS; ++s) {
            const int here = base + (s * STRIDE + first) * WIDTH;
#pragma unroll
            for (u32 v = 0; v < VECTORS; ++v) {
                if constexpr (X_STRIDED) {
#pragma unroll
                    for (u32 i = 0; i < WIDTH; ++i) single[s][v][i].load(x[v] + (here + i) * p.x_k, here < p.k);
                } else {
                    factors[s][v].load(x[v] + here, here < p.k);
                }
            }
#pragma unroll
            for (u32 r = 0; r < ROWS; ++r) loaded[s][r].load(w + row[r] + here, here < p.k);
        }
#pragma unroll
        for (u32 s = 0; s < STEPS; ++s)
#pragma unroll
            for (u32 i = 0; i < WIDTH; ++i)
#pragma unroll
                for (u32 v = 0; v < VECTORS; ++v) {
                    const float factor = X_STRIDED ? single[s][v][i][0] : factors[s][v][i];
#pragma unroll
                    for (u32 r = 0; r < ROWS; ++r) sums[v][r] += factor * loaded[s][r][i];
                }
    }
}

// The first load of a thread.
DEVICE void prefetch_first(const GemvParams& p, const Element* w, int first, int column) {
    const int at = N_MAJOR ? first : first * static_cast<int>(WIDTH);
    if (at < p.k && column < p.n) prefetch(w + (N_MAJOR ? at * p.w_ld + column : column * p.w_ld + at));
}

DEVICE void add_up(const GemvParams& p, const Element* x, const Element* w, int first, int column, u32 shared, Sums& sums) {
    Vectors vectors;
#pragma unroll
    for (u32 v = 0; v < VECTORS; ++v) vectors[v] = x + (static_cast<int>(v) < p.m ? v : p.m - 1) * p.x_m;
    if constexpr (N_MAJOR)
        add_rows(p, vectors, w, first, column, shared + LOAD * threadIdx.x, sums);
    else
        add_columns(p, vectors, w, first, column, sums);
}

// Types and activations are numbers here, as there is one of each for a result and not for an element of w.
DEVICE float any_element(int type, const void* base, long long index) {
    if (type == 0) return load_element<0>(base, index);
    return type == 1 ? load_element<1>(base, index) : load_element<2>(base, index);
}

DEVICE void finish(const GemvParams& p, float value, int matrix, int row, int column) {
    value = p.alpha == 0.0f ? 0.0f : value * p.alpha;  // with alpha 0 the product counts for nothing, NaN or not
    if (p.c) value += p.beta * any_element(p.addend, p.c, matrix * p.c_batch + row * p.c_m + column * p.c_n);
    if (p.bias) {
        const long long at = row * static_cast<long long>(p.bias_m) + column * static_cast<long long>(p.bias_n);
        value += any_element(p.bias_type, p.bias, at);
    }
    if (p.activation == 1) value = activated<1>(value);
    if (p.activation == 2) value = activated<2>(value);
    if (p.activation == 3) value = activated<3>(value);
    const long long at = matrix * p.d_batch + row * p.d_m + column * p.d_n;
    if (p.output == 0) store_element<0>(p.d, at, value);
    if (p.output == 1) store_element<1>(p.d, at, value);
    if (p.output == 2) store_element<2>(p.d, at, value);
}

// One sum of `count` at `from` in shared memory, `apart` bytes from one to the next.
template <u32 count>
DEVICE float added(u32 from, u32 apart) {
    float value = 0.0f;
#pragma unroll
    for (u32 i = 0; i < count; ++i) value += load_float(from + i * apart);
    return value;
}

// Two blocks a multiprocessor are few. But where it is not told how many, the compiler saves registers for more of
// them, and a thread waits for one load after the other. With AHEAD loads need none.
GLOBAL_KERNEL void __launch_bounds__(GEMV_THREADS, RESIDENT) __cluster_dims__(CLUSTER, 1, 1)
    gemv(const __grid_constant__ GemvParams p) {
    const u32 thread = threadIdx.x, shared = dynamic_shared(), sums_at = shared + SUMS_AT;
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int number = blockIdx.x / CLUSTER, matrix = number / p.strips, strip = number - matrix * p.strips;
    // Neighbours share a result, or with N_MAJOR a row.
    const u32 share = N_MAJOR ? thread / ACROSS : thread % SPREAD, group = N_MAJOR ? thread % ACROSS : thread / SPREAD;
    if constexpr (CLUSTER > 1) cluster_arrive();
    const Element* x = static_cast<const Element*>(p.x) + matrix * p.x_batch;
    const Element* w = static_cast<const Element*>(p.w) + matrix * p.w_batch;
    const int first = rank * SPREAD + share, column = strip * COLUMNS + group * MINE;
    if (p.next) prefetch_first(p, w, first, column);
    wait_for_previous();
    if (p.next == STARTED) allow_next();

    Sums sums = {};
    add_up(p, x, w, first, column, shared, sums);
    if (p.next == SUMMED) allow_next();

#pragma unroll
    for (u32 v = 0; v < VECTORS; ++v)
#pragma unroll
        for (u32 i = 0; i < MINE; ++i) {
#pragma unroll
            for (u32 apart = ACROSS; apart < IN_WARP; apart *= 2) sums[v][i] += shuffle_xor(sums[v][i], apart);
        }
    if (lane_id() % IN_WARP < ACROSS) {
        const u32 part = N_MAJOR ? thread / 32 : thread % SPREAD / 32;
#pragma unroll
        for (u32 v = 0; v < VECTORS; ++v)
#pragma unroll
            for (u32 i = 0; i < MINE; ++i)
                store_float(sums_at + 4 * (part * RESULTS + v * COLUMNS + group * MINE + i), sums[v][i]);
    }
    block_sync();
    if constexpr (CLUSTER > 1) {
        cluster_wait();  // until all of its blocks run
        for (u32 i = thread; i < RESULTS; i += GEMV_THREADS)
            store_float(shared + BLOCKS_AT + 4 * (rank * RESULTS + i), 0, added<PARTS>(sums_at + 4 * i, 4 * RESULTS));
        cluster_sync();
        if (rank > 0) return;
    }
    for (u32 i = thread; i < RESULTS; i += GEMV_THREADS) {
        const int row = i / COLUMNS, column = strip * COLUMNS + i % COLUMNS;
        if (row < p.m && column < p.n) {
            const u32 from = shared + (CLUSTER > 1 ? BLOCKS_AT : SUMS_AT) + 4 * i;
            finish(p, added<(CLUSTER > 1 ? CLUSTER : PARTS)>(from, 4 * RESULTS), matrix, row, column);
        }
    }
}
