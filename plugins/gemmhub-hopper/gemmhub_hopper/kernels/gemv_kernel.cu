// A few vectors times a matrix ("GEMV"): D (M x N) = X (M x K) times W (K x N), for each matrix of a batch, M at most
// kNumVectors.
//
// Every element of W is used once by each vector, so there is nothing to reuse: each thread reads its elements of W,
// kUnroll loads under way at a time, and multiplies. kSplitThreads threads of a CTA share the K of a column of results,
// and so do the CTAs of a cluster. So a result is one sum of each of these threads, and they are added in the order of
// lanes, warps and CTAs. X and W may have two dtypes: each element is converted to float, which is exact, where it is used.
// Products of int8 are summed in int32, modulo 2^32, four at a time where both lie along K.
//
//     N-major   a thread has kLoadElements contiguous columns of results, and every kStride-th row of W
//     K-major   a thread has kNumRows columns of results, and every kStride-th load of their rows of W; with scales for
//               blocks of K, the sum of a load, which is in one block, is multiplied by those of its row and column
//     staged    several vectors of float32: kNumRows loads of a thread are a block of 4 x 4 elements of W in both orders,
//               and the CTA keeps its elements of X in shared memory
#include "elements.cuh"
#include "pdl.cuh"
#include "scales.cuh"
#include "types.cuh"

// Macros with the prefix GEMV_ are defined by variants/gemv_kernel.py; no line but these reads them.
constexpr int kInput = GEMV_INPUT;                 // of W: 0 bfloat16, 1 float16, 2 float32, 3 e4m3, 4 e5m2, 5 int8
constexpr int kXInput = GEMV_X_INPUT;              // of X
constexpr u32 kNumVectors = GEMV_NUM_VECTORS;      // 1, 2, 4 or 8; 16 with kStaged
constexpr bool kNMajor = GEMV_N_MAJOR;             // W is contiguous along N; else along K
constexpr bool kStridedX = GEMV_STRIDED_X;         // X is not contiguous along K: its elements are loaded one by one
constexpr bool kBlockScales = GEMV_BLOCK_SCALES;   // K-major only
constexpr u32 kLoadBytes = GEMV_LOAD_BYTES;        // of a load; rows of W begin at multiples of it and are as long
constexpr u32 kSplitThreads = GEMV_SPLIT_THREADS;  // threads of a CTA that share the K of a result; a power of two
constexpr u32 kClusterSize = GEMV_CLUSTER_SIZE;    // CTAs that share the K of a result
// Loads go to shared memory by cp.async, each issued as soon as the one kUnroll before it is consumed, so that some are
// under way at all times; else to registers, and all have arrived before more are issued. Loads of 16 bytes; one vector
// N-major, or several of float32 (kStaged).
constexpr bool kCpAsync = GEMV_CP_ASYNC;
constexpr u32 kMinCtasPerSm = GEMV_MIN_CTAS_PER_SM;  // occupancy that registers must allow
constexpr u32 kSharedBytes = GEMV_SHARED_BYTES;      // dynamic shared memory of a launch

constexpr bool kStaged = kCpAsync && kNumVectors > 1;
constexpr bool kInt8 = kInput == 5;
DEVICE constexpr u32 bytes_of(int input) { return input == 2 ? 4 : input < 2 ? 2 : 1; }
constexpr u32 kNumThreads = 256, kNumRows = 4, kUnroll = kNumVectors < 8 || kStaged ? 8 : 4;
constexpr u32 kLoadElements = kLoadBytes / bytes_of(kInput);
constexpr u32 kRowThreads = kNMajor ? kNumThreads / kSplitThreads : 1;  // neighbouring threads that read one row of W
constexpr u32 kColumnsPerThread = kNMajor ? kLoadElements : kNumRows;
constexpr u32 BLOCK_N = kNumThreads / kSplitThreads * kColumnsPerThread;  // columns of results of a CTA
constexpr u32 kNumResults = kNumVectors * BLOCK_N;
constexpr u32 kLanesPerResult = kSplitThreads * kRowThreads < 32 ? kSplitThreads * kRowThreads : 32;  // and their row
constexpr u32 kWarpsPerResult = kSplitThreads * kRowThreads / kLanesPerResult;
constexpr u32 kStride = kSplitThreads * kClusterSize;

DEVICE constexpr u32 larger(u32 a, u32 b) { return a > b ? a : b; }

// kStaged: blocks of a thread in flight, and those whose elements of X are in one of the two buffers, in units of 16 bytes.
constexpr u32 kNumAhead = kUnroll / kNumRows;
constexpr u32 kStagedBlocks = larger(kNumAhead, 1024 / (kNumVectors * kSplitThreads));
constexpr u32 kUnitsPerVector = kStagedBlocks * kSplitThreads, kStagedUnits = kNumVectors * kUnitsPerVector;

// Dynamic shared memory: the loads of kCpAsync, [load][thread]; the elements of X of kStaged, [buffer][vector][block][thread
// of the split]; sums of warps, with kStaged instead of both; in the first CTA of a cluster the sums of its CTAs.
constexpr u32 SMEM_X_OFFSET = kCpAsync * kUnroll * kNumThreads * kLoadBytes;
constexpr u32 SMEM_LOADED_OFFSET = SMEM_X_OFFSET + kStaged * 2 * 16 * kStagedUnits;
constexpr u32 SMEM_SUMS_OFFSET = kStaged ? 0 : SMEM_LOADED_OFFSET;
constexpr u32 SMEM_CTAS_OFFSET = larger(SMEM_LOADED_OFFSET, SMEM_SUMS_OFFSET + 4 * kWarpsPerResult * kNumResults);
constexpr u32 SMEM_END_OFFSET = SMEM_CTAS_OFFSET + (kClusterSize > 1 ? 4 * kClusterSize * kNumResults : 0);
static_assert(SMEM_END_OFFSET == kSharedBytes, "gemv_kernel.py counts as this file does");

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
    int strips;  // of BLOCK_N columns, of one matrix
    int output, addend, bias_type, activation;
    float alpha, beta;
    int next;  // PDL: when the next kernel may begin: STARTED, SUMMED or else at the end
    int padding;
    Scales row_scales, column_scales;  // 8-bit operands: of X and of W
};
static_assert(sizeof(GemvParams) == 264, "gemv_launch.py has the same structure");

template <int input>
using ElementOf = Select<input == 2, float, Select<(input < 2), u16, unsigned char>>;
using Element = ElementOf<kInput>;
using XElement = ElementOf<kXInput>;
// Of a load of X: one element for each one of W along K.
constexpr u32 kXLoadBytes = (kNMajor ? 1 : kLoadElements) * sizeof(XElement);

// Contiguous elements, as one load brings them.
template <int input, u32 bytes>
struct Elements {
    u32 words[bytes < 4 ? 1 : bytes / 4];

    // Zeros where `there` is false.
    DEVICE void load(const ElementOf<input>* from, bool there) {
        if constexpr (bytes == 1)
            load_byte_if(from, there, words);
        else if constexpr (bytes == 2)
            load_half_if(from, there, words);
        else
            load_if(from, there, words);
    }

    DEVICE float operator[](u32 i) const {
        if constexpr (input == 2) return __uint_as_float(words[i]);
        if constexpr (input == 3) {
            const u32 two = unpack_e4m3(static_cast<u16>(words[i / 4] >> 16 * (i / 2 % 2)));
            return from_f16(static_cast<u16>(two >> 16 * (i % 2)));
        }
        // An e5m2 is the upper half of a float16.
        if constexpr (input == 4) return from_f16(static_cast<u16>((words[i / 4] >> 8 * (i % 4) & 0xff) << 8));
        const u32 word = words[i / 2];
        if constexpr (input == 0) return __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
        return from_f16(static_cast<u16>(i % 2 ? word >> 16 : word));
    }

    // Of int8.
    DEVICE int integer(u32 i) const { return static_cast<signed char>(words[i / 4] >> 8 * (i % 4) & 0xff); }
};

using Sum = Select<kInt8, int, float>;
using Sums = Sum[kNumVectors][kColumnsPerThread];

// Adds the product of element `i` of `x` and `j` of `w`.
template <class X, class W>
DEVICE void add_product(Sum& sum, const X& x, u32 i, const W& w, u32 j) {
    if constexpr (kInt8)
        sum = static_cast<int>(static_cast<u32>(sum) + static_cast<u32>(x.integer(i) * w.integer(j)));
    else
        sum += x[i] * w[j];
}

// Sums between threads, as bits.
DEVICE float bits_of(float sum) { return sum; }
DEVICE float bits_of(int sum) { return __uint_as_float(static_cast<u32>(sum)); }
DEVICE void add_bits(float& sum, float bits) { sum += bits; }
DEVICE void add_bits(int& sum, float bits) { sum = static_cast<int>(static_cast<u32>(sum) + __float_as_uint(bits)); }

// Where the vectors begin; vectors beyond the last are read as the last one.
using Vectors = const XElement* [kNumVectors];
// Elements of the vectors for kUnroll rows.
using Factors = Elements<kXInput, sizeof(XElement)>[kUnroll][kNumVectors];

// Each of the following sums a thread's share of K, number `first` of kStride, in the columns from `column` on.

DEVICE void load_factors(const GemvParams& p, const Vectors& x, int base, int first, Factors& factors) {
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u) {
        const int at = base + u * kStride + first;
#pragma unroll
        for (u32 v = 0; v < kNumVectors; ++v) factors[u][v].load(x[v] + at * p.x_k, at < p.k);
    }
}

// The thread's loads are at `address` in shared memory, which no other thread reads.
DEVICE void add_rows_async(const GemvParams& p, const Vectors& x, const Element* w, int first, int column, u32 address,
                           Sums& sums) {
    constexpr u32 LOAD_STRIDE = kNumThreads * kLoadBytes;
    const Element* from = w + first * p.w_ld + column;
    const long long stride = kStride * p.w_ld;
    int row = column < p.n ? first : p.k;  // of the next load
    const auto issue = [&](u32 u) {
        copy_async(address + u * LOAD_STRIDE, from, row < p.k);
        copy_commit();
        from += stride, row += kStride;
    };
#pragma unroll
    for (u32 u = 0; u < kUnroll; ++u) issue(u);
    Factors factors, next;
    load_factors(p, x, 0, first, factors);
#pragma unroll 1
    for (int base = 0; base < p.k; base += kUnroll * kStride) {
        load_factors(p, x, base + kUnroll * kStride, first, next);
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) {
            copy_wait<kUnroll - 1>();
            const Float4 four = load_four(address + u * LOAD_STRIDE);
            const Elements<kInput, 16> loaded = {
                {__float_as_uint(four.x), __float_as_uint(four.y), __float_as_uint(four.z), __float_as_uint(four.w)}};
            issue(u);
#pragma unroll
            for (u32 v = 0; v < kNumVectors; ++v)
#pragma unroll
                for (u32 i = 0; i < kLoadElements; ++i) add_product(sums[v][i], factors[u][v], 0, loaded, i);
        }
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u)
#pragma unroll
            for (u32 v = 0; v < kNumVectors; ++v) factors[u][v] = next[u][v];
    }
}

DEVICE void add_rows(const GemvParams& p, const Vectors& x, const Element* w, int first, int column, Sums& sums) {
    const bool there = column < p.n;
#pragma unroll 1
    for (int base = 0; base < p.k; base += kUnroll * kStride) {
        Elements<kInput, kLoadBytes> loaded[kUnroll];
        Factors factors;
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u) {
            const int at = base + u * kStride + first;
            loaded[u].load(w + at * p.w_ld + column, there && at < p.k);
#pragma unroll
            for (u32 v = 0; v < kNumVectors; ++v) factors[u][v].load(x[v] + at * p.x_k, at < p.k);
        }
#pragma unroll
        for (u32 u = 0; u < kUnroll; ++u)
#pragma unroll
            for (u32 v = 0; v < kNumVectors; ++v)
#pragma unroll
                for (u32 i = 0; i < kLoadElements; ++i) add_product(sums[v][i], factors[u][v], 0, loaded[u], i);
    }
}

// Several vectors of float32. K is a multiple of four, and rows of X begin at multiples of 16 bytes. `share` is the thread's
// number among those of the CTA that share K.
DEVICE void add_blocks(const GemvParams& p, const XElement* x, const Element* w, int first, int share, int column, u32 shared,
                       Sums& sums) {
    static_assert(!kStaged || (kInput == 2 && kXInput == 2 && kLoadBytes == 16 && !kStridedX),
                  "blocks are 4 x 4 elements of float32");
    constexpr u32 LOAD_STRIDE = kNumThreads * kLoadBytes, BUFFER_BYTES = 16 * kStagedUnits;
    constexpr int kPerBlock = 4 * kStride;  // along K, of all threads that share it
    const u32 address = shared + kLoadBytes * threadIdx.x, x_address = shared + SMEM_X_OFFSET;
    const u32 blocks = (p.k + kPerBlock - 1) / kPerBlock;
    long long offsets[kNumRows];  // of the loads of a block
#pragma unroll
    for (u32 r = 0; r < kNumRows; ++r)
        offsets[r] = (kNMajor ? r : column + static_cast<int>(r) < p.n ? column + r : p.n - 1) * p.w_ld;
    const Element* from = w + (kNMajor ? 4 * first * p.w_ld + column : 4 * first);
    int row = kNMajor && column >= p.n ? p.k : 4 * first;  // of the next load
    const auto issue = [&](u32 block) {
#pragma unroll
        for (u32 r = 0; r < kNumRows; ++r)
            copy_async(address + (block % kNumAhead * kNumRows + r) * LOAD_STRIDE, from + offsets[r], row < p.k);
        copy_commit();
        from += kNMajor ? kPerBlock * p.w_ld : kPerBlock, row += kPerBlock;
    };
    const auto issue_x = [&](u32 chunk) {
#pragma unroll
        for (u32 i = 0; i < kStagedUnits / kNumThreads; ++i) {
            const u32 unit = i * kNumThreads + threadIdx.x, vector = unit / kUnitsPerVector, rest = unit % kUnitsPerVector;
            const u32 block = chunk * kStagedBlocks + rest / kSplitThreads;
            const int at = block * kPerBlock + 4 * (first - share + static_cast<int>(rest % kSplitThreads));
            copy_async(x_address + chunk % 2 * BUFFER_BYTES + 16 * unit, x + vector * p.x_m + at,
                       static_cast<int>(vector) < p.m && at < p.k);
        }
    };
    issue_x(0);
#pragma unroll
    for (u32 block = 0; block < kNumAhead; ++block) issue(block);
#pragma unroll 1
    for (u32 block = 0; block < blocks; ++block) {
        const u32 chunk = block / kStagedBlocks;
        copy_wait<kNumAhead - 1>();
        if (block % kStagedBlocks == 0) {  // X has arrived for all threads, and none reads the other buffer any more
            block_sync();
            issue_x(chunk + 1);
        }
        Float4 loaded[kNumRows];
#pragma unroll
        for (u32 r = 0; r < kNumRows; ++r)
            loaded[r] = load_four(address + (block % kNumAhead * kNumRows + r) * LOAD_STRIDE);
        issue(block + kNumAhead);
        const u32 factors = x_address + chunk % 2 * BUFFER_BYTES + 16 * (block % kStagedBlocks * kSplitThreads + share);
#pragma unroll
        for (u32 v = 0; v < kNumVectors; ++v) {
            const Float4 four = load_four(factors + v * 16 * kUnitsPerVector);
            const float factor[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (u32 r = 0; r < kNumRows; ++r) {
                const float element[4] = {loaded[r].x, loaded[r].y, loaded[r].z, loaded[r].w};
#pragma unroll
                for (u32 i = 0; i < 4; ++i) sums[v][kNMajor ? i : r] += static_cast<Sum>(factor[kNMajor ? r : i] * element[i]);
            }
        }
    }
    copy_wait<0>();
    block_sync();  // sums overwrite what was loaded
}

// Adds the products of int8 loads, four at a time.
template <class Factors, class Loaded>
DEVICE void add_fours(const Factors& factors, const Loaded& loaded, Sums& sums) {
    constexpr u32 COUNT = kLoadBytes < 4 ? 1 : kLoadBytes / 4;
#pragma unroll
    for (u32 i = 0; i < COUNT; ++i)
#pragma unroll
        for (u32 v = 0; v < kNumVectors; ++v)
#pragma unroll
            for (u32 r = 0; r < kNumRows; ++r) sums[v][r] = dot_int8(factors[v].words[i], loaded[r].words[i], sums[v][r]);
}

// The scale of row (column) `element`, of which there are `end`, at element `at` of K; 0 behind K, whose products are 0.
DEVICE float block_scale(const GemvParams& p, const Scales& scales, int element, int end, int at, int matrix) {
    if (at >= p.k) return 0.0f;
    return scales.at ? *scales.find(element < end ? element : end - 1, at >> 7, matrix) : 1.0f;
}

DEVICE void add_columns(const GemvParams& p, const Vectors& x, const Element* w, int first, int column, int matrix,
                        Sums& sums) {
    constexpr u32 kNumSteps = kUnroll / kNumRows;
    long long row[kNumRows];
#pragma unroll
    for (u32 r = 0; r < kNumRows; ++r) row[r] = (column + static_cast<int>(r) < p.n ? column + r : p.n - 1) * p.w_ld;
#pragma unroll 1
    for (int base = 0; base < p.k; base += kNumSteps * kStride * kLoadElements) {
        Elements<kInput, kLoadBytes> loaded[kNumSteps][kNumRows];
        Elements<kXInput, kXLoadBytes> factors[kNumSteps][kNumVectors];
        // With kStridedX instead of factors.
        Elements<kXInput, sizeof(XElement)> single[kNumSteps][kNumVectors][kLoadElements];
        float of_x[kNumSteps][kNumVectors], of_w[kNumSteps][kNumRows];  // kBlockScales
#pragma unroll
        for (u32 s = 0; s < kNumSteps; ++s) {
            const int here = base + (s * kStride + first) * kLoadElements;
#pragma unroll
            for (u32 v = 0; v < kNumVectors; ++v) {
                if constexpr (kStridedX) {
#pragma unroll
                    for (u32 i = 0; i < kLoadElements; ++i) single[s][v][i].load(x[v] + (here + i) * p.x_k, here < p.k);
                } else {
                    factors[s][v].load(x[v] + here, here < p.k);
                }
            }
#pragma unroll
            for (u32 r = 0; r < kNumRows; ++r) loaded[s][r].load(w + row[r] + here, here < p.k);
            if constexpr (kBlockScales) {
#pragma unroll
                for (u32 v = 0; v < kNumVectors; ++v)
                    of_x[s][v] = block_scale(p, p.row_scales, static_cast<int>(v), p.m, here, matrix);
#pragma unroll
                for (u32 r = 0; r < kNumRows; ++r)
                    of_w[s][r] = block_scale(p, p.column_scales, column + static_cast<int>(r), p.n, here, matrix);
            }
        }
#pragma unroll
        for (u32 s = 0; s < kNumSteps; ++s) {
            Sums part = {};
            Sums& to = kBlockScales ? part : sums;
            if constexpr (kInt8) {
                add_fours(factors[s], loaded[s], to);
            } else {
#pragma unroll
                for (u32 i = 0; i < kLoadElements; ++i)
#pragma unroll
                    for (u32 v = 0; v < kNumVectors; ++v) {
                        const float factor = kStridedX ? single[s][v][i][0] : factors[s][v][i];
#pragma unroll
                        for (u32 r = 0; r < kNumRows; ++r) to[v][r] += factor * loaded[s][r][i];
                    }
            }
            if constexpr (kBlockScales) {
#pragma unroll
                for (u32 v = 0; v < kNumVectors; ++v)
#pragma unroll
                    for (u32 r = 0; r < kNumRows; ++r)
                        sums[v][r] = fmaf(part[v][r], of_x[s][v] * of_w[s][r], sums[v][r]);
            }
        }
    }
}

// The first load of a thread.
DEVICE void prefetch_first(const GemvParams& p, const Element* w, int first, int column) {
    const int at = kNMajor ? first : first * static_cast<int>(kLoadElements);
    if (at < p.k && column < p.n) prefetch(w + (kNMajor ? at * p.w_ld + column : column * p.w_ld + at));
}

DEVICE void add_up(const GemvParams& p, const XElement* x, const Element* w, int first, int share, int column, int matrix,
                   u32 shared, Sums& sums) {
    if constexpr (kStaged) return add_blocks(p, x, w, first, share, column, shared, sums);
    Vectors vectors;
#pragma unroll
    for (u32 v = 0; v < kNumVectors; ++v) vectors[v] = x + (static_cast<int>(v) < p.m ? v : p.m - 1) * p.x_m;
    if constexpr (kNMajor && kCpAsync && !kStaged)
        add_rows_async(p, vectors, w, first, column, shared + kLoadBytes * threadIdx.x, sums);
    else if constexpr (kNMajor)
        add_rows(p, vectors, w, first, column, sums);
    else
        add_columns(p, vectors, w, first, column, matrix, sums);
}

// Types and activations are run-time numbers here: they matter once a result, not once an element of W.
DEVICE float any_element(int type, const void* base, long long index) {
    if (type == 0) return load_element<0>(base, index);
    return type == 1 ? load_element<1>(base, index) : load_element<2>(base, index);
}

template <int largest>
DEVICE float any_activated(int activation, float x) {
    if constexpr (largest > 0) {
        if (activation == largest) x = activated<largest>(x);
        return any_activated<largest - 1>(activation, x);  // one test after another: nested ones take registers
    }
    return x;
}

// The scale of row (column) `element`, where results are multiplied by it.
DEVICE float result_scale(const Scales& scales, int element, int matrix) {
    return scales.at ? *scales.find(element, 0, matrix) : 1.0f;
}

DEVICE void finish(const GemvParams& p, Sum sum, int matrix, int row, int column) {
    const long long to = matrix * p.d_batch + row * p.d_m + column * p.d_n;
    if (kInt8 && p.output == 3) {
        static_cast<int*>(p.d)[to] = static_cast<int>(sum);
        return;
    }
    float value = static_cast<float>(sum);
    if (bytes_of(kInput) == 1 && !kBlockScales && p.alpha != 0.0f)
        value *= result_scale(p.row_scales, row, matrix) * result_scale(p.column_scales, column, matrix);
    value = p.alpha == 0.0f ? 0.0f : value * p.alpha;  // with alpha 0 the product is ignored, even NaN
    if (p.c) value += p.beta * any_element(p.addend, p.c, matrix * p.c_batch + row * p.c_m + column * p.c_n);
    if (p.bias) {
        const long long at = row * static_cast<long long>(p.bias_m) + column * static_cast<long long>(p.bias_n);
        value += any_element(p.bias_type, p.bias, at);
    }
    value = any_activated<kNumActivations>(p.activation, value);
    if (p.output == 0) store_element<0>(p.d, to, value);
    if (p.output == 1) store_element<1>(p.d, to, value);
    if (p.output == 2) store_element<2>(p.d, to, value);
}

// One sum of `count` at `from` in shared memory, `apart` bytes from one to the next.
template <u32 count>
DEVICE Sum added(u32 from, u32 apart) {
    Sum value = 0;
#pragma unroll
    for (u32 i = 0; i < count; ++i) add_bits(value, load_float(from + i * apart));
    return value;
}

// Without a minimum of CTAs per multiprocessor the compiler saves registers for more of them, and a thread waits for one load
// after the other. With kCpAsync loads need no registers.
GLOBAL_KERNEL void __launch_bounds__(kNumThreads, kMinCtasPerSm) __cluster_dims__(kClusterSize, 1, 1)
    gemv(const __grid_constant__ GemvParams p) {
    const u32 thread = threadIdx.x, shared = dynamic_shared(), sums_at = shared + SMEM_SUMS_OFFSET;
    const u32 rank = kClusterSize > 1 ? cluster_rank() : 0;
    const int number = blockIdx.x / kClusterSize, matrix = number / p.strips, strip = number - matrix * p.strips;
    // Neighbouring threads share a result, or with kNMajor a row of W.
    const u32 share = kNMajor ? thread / kRowThreads : thread % kSplitThreads,
              group = kNMajor ? thread % kRowThreads : thread / kSplitThreads;
    if constexpr (kClusterSize > 1) cluster_arrive();
    const XElement* x = static_cast<const XElement*>(p.x) + matrix * p.x_batch;
    const Element* w = static_cast<const Element*>(p.w) + matrix * p.w_batch;
    const int first = rank * kSplitThreads + share, column = strip * BLOCK_N + group * kColumnsPerThread;
    if (p.next) prefetch_first(p, w, first, column);
    wait_on_dependent_grids();
    if (p.next == STARTED) launch_dependent_grids();

    Sums sums = {};
    add_up(p, x, w, first, share, column, matrix, shared, sums);
    if (p.next == SUMMED) launch_dependent_grids();

#pragma unroll
    for (u32 v = 0; v < kNumVectors; ++v)
#pragma unroll
        for (u32 i = 0; i < kColumnsPerThread; ++i) {
#pragma unroll
            for (u32 apart = kRowThreads; apart < kLanesPerResult; apart *= 2)
                add_bits(sums[v][i], shuffle_xor(bits_of(sums[v][i]), apart));
        }
    if (lane_id() % kLanesPerResult < kRowThreads) {
        const u32 part = kNMajor ? thread / 32 : thread % kSplitThreads / 32;
#pragma unroll
        for (u32 v = 0; v < kNumVectors; ++v)
#pragma unroll
            for (u32 i = 0; i < kColumnsPerThread; ++i)
                store_float(sums_at + 4 * (part * kNumResults + v * BLOCK_N + group * kColumnsPerThread + i),
                            bits_of(sums[v][i]));
    }
    block_sync();
    if constexpr (kClusterSize > 1) {
        cluster_wait();  // until all of its CTAs run
        for (u32 i = thread; i < kNumResults; i += kNumThreads)
            store_float(shared + SMEM_CTAS_OFFSET + 4 * (rank * kNumResults + i), 0,
                        bits_of(added<kWarpsPerResult>(sums_at + 4 * i, 4 * kNumResults)));
        cluster_sync();
        if (rank > 0) return;
    }
    for (u32 i = thread; i < kNumResults; i += kNumThreads) {
        const int row = i / BLOCK_N, column = strip * BLOCK_N + i % BLOCK_N;
        if (row < p.m && column < p.n) {
            const u32 from = shared + (kClusterSize > 1 ? SMEM_CTAS_OFFSET : SMEM_SUMS_OFFSET) + 4 * i;
            finish(p, added<(kClusterSize > 1 ? kClusterSize : kWarpsPerResult)>(from, 4 * kNumResults), matrix, row,
                   column);
        }
    }
}
