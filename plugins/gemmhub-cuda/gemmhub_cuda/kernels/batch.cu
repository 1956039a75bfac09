// d = activation(alpha * a b + beta * c + bias) for batches of small matrices of bfloat16 or float16, summed in float32;
// or d = a b of int8, summed in int32. On tensor cores, for cards of compute capability 8.0 and later. And, from 8.9 on,
// of 8-bit floats with quantization scales: d = activation(alpha * (a scale_a) (b scale_b) + beta * c + bias).
//
// A warp computes whole tiles of TILE_M x TILE_N, of one matrix each, and then goes on to the next. Warps share nothing:
// each has a ring of STAGES stages of its own, and no barrier is wider than a warp. The tiles of consecutive warps are
// consecutive, and so are a tile's operands and the next tile's in the ring: STAGES - 1 blocks of TILE_K are in flight
// while one is multiplied and while results are stored, whichever tiles they belong to.
//
//     global memory     copy_async, 16 bytes a lane                                            `Operand::load`
//     shared memory     the warp's ring
//                       load_matrices, 32 bytes of k at a time                                 `Operand::fragments`
//     registers         TILE_M / 16 x TILE_N / 8 multiplications of 16 x 8 x 32 bytes of k     `multiply`
//     shared memory     16 rows of results at a time                                           `store_sums`
//     global memory     4 contiguous elements of d a lane
//
// An operand in shared memory has rows of 16-byte chunks (chunks.cuh). ldmatrix transposes elements of 16 bits. Of
// int8 it transposes pairs: of an operand contiguous along m (n) a fragment therefore gets the even, or the odd, of 16
// rows (columns) instead of the first, or the last, eight. `row_of` and the order of stores undo that.
//
// Of 8-bit floats tensor cores keep about 14 significant bits of a sum. So the products of 128 along k are summed in
// registers of their own, and that sum is promoted: ordinary instructions, which round to nearest, add it to the
// accumulators, times the scales of its row and column in these 128 of k if there are any (`promote`).
//
// What is outside of a matrix, along m, n or k, is zeros; those results are not stored.
//
//     TILE_M, TILE_N, TILE_K   elements
//     STAGES                   of the ring of a warp
//     BLOCKS                   CTAs for which an SM must have room
#include "chunks.cuh"
#include "epilogue.cuh"

constexpr bool INTEGER = INPUT == 3, FLOAT8 = INPUT >= 4;
constexpr int SIZE = INTEGER || FLOAT8 ? 1 : 2;  // bytes of an element of a or b
constexpr int PER_CHUNK = 16 / SIZE;   // elements
constexpr int STEP_K = 32 / SIZE;      // of k that one instruction multiplies
constexpr int STEPS = TILE_K / STEP_K;
constexpr int WARPS = THREADS / 32;
static_assert(TILE_M % 16 == 0 && TILE_N % 16 == 0 && TILE_K % STEP_K == 0);
static_assert(INPUT != 2 && STAGES >= 2 && SPLIT == 0);
static_assert(!INTEGER || (OUTPUT == 3 && !SCALED && !ADDEND && BIAS == 0 && ACTIVATION == 0), "int8: a b alone");
constexpr int PROMOTED = 128;  // of k: a block of quantization scales
static_assert(SCALES == 0 || FLOAT8, "scales are those of 8-bit floats");
static_assert(!FLOAT8 || PROMOTED % TILE_K == 0, "sums of whole blocks are promoted");

template <bool>
struct Sums {
    using Type = float;
};
template <>
struct Sums<true> {
    using Type = int;
};
using Sum = Sums<INTEGER>::Type;

template <int size>
struct Elements {
    using Type = u16;
};
template <>
struct Elements<1> {
    using Type = unsigned char;
};
using Element = Elements<SIZE>::Type;

// The swizzle of 8-bit operands that are contiguous along m (n): ldmatrix reads two adjacent rows of every four.
template <int CHUNKS>
struct Paired {
    DEVICE static constexpr u32 at(u32 row, u32 chunk) {
        return 16 * (row * CHUNKS + (CHUNKS < 4 ? chunk : chunk ^ row / 4 % 4));
    }
};
template <bool paired, int CHUNKS>
struct LayoutOf {
    using Type = Swizzled<CHUNKS>;
};
template <int CHUNKS>
struct LayoutOf<true, CHUNKS> {
    using Type = Paired<CHUNKS>;
};

// One of the two operands: SIDE along m (n) and TILE_K along k. `mn`, `aligned` and `k_first` as in mma.cu.
template <int SIDE, bool mn, int aligned, bool k_first>
struct Operand {
    static constexpr bool PAIRED = SIZE == 1 && mn;
    static constexpr int ROWS = mn ? TILE_K : SIDE, CHUNKS = (mn ? SIDE : TILE_K) / PER_CHUNK;
    static constexpr u32 BYTES = 16 * ROWS * CHUNKS;
    static constexpr int STEP = 32 / CHUNKS;  // rows from one of a lane's copies to its next
    static constexpr int COPIES = ROWS / STEP;
    static_assert(ROWS % STEP == 0 && 32 % CHUNKS == 0, "all rows, and no more");
    using Layout = typename LayoutOf<PAIRED, CHUNKS>::Type;
    using Fragment = u32[SIDE / 16][4];

    const char* base;
    long long matrix_step, ld;  // bytes
    int size;                   // along m (n)
    const char* from;           // of the present tile: this lane's first chunk of its first block of k
    int inside;                 // mn: valid elements of the chunk; else: rows of the matrix from this lane's first one on

    DEVICE Operand(const void* base, long long batch, long long ld, int size)
        : base(static_cast<const char*>(base)), matrix_step(SIZE * batch), ld(SIZE * ld), size(size) {}

    DEVICE static int row() { return lane_id() / CHUNKS; }
    DEVICE static int column() { return lane_id() % CHUNKS * PER_CHUNK; }

    // Goes to the tile that begins at `first` along m (n) of a matrix.
    DEVICE void go_to(long long matrix, int first) {
        const long long outer = (mn ? 0 : first) + row(), inner = (mn ? first : 0) + column();
        from = base + matrix * matrix_step + outer * ld + SIZE * inner;
        inside = mn ? clamped(size - first - column(), PER_CHUNK) : size - first - row();
    }

    // Copies the block that begins at `k`; the matrix ends `deep` elements further along k.
    DEVICE void load(u32 stage, int k, int deep) const {
        const char* block = from + (mn ? k * ld : SIZE * k);
        if constexpr (aligned >= 4) {
#pragma unroll
            for (int i = 0; i < COPIES; ++i)
                copy_chunk<aligned, !mn>(stage + address(i), block + i * STEP * ld, valid(i, deep));
        } else {
            constexpr int SOME = COPIES < 2 ? COPIES : 2;  // at once: the more, the more registers
#pragma unroll
            for (int first = 0; first < COPIES; first += SOME) {
                Word4 staged[SOME];
#pragma unroll
                for (int i = 0; i < SOME; ++i)
                    staged[i] = load_chunk<Element>(block + (first + i) * STEP * ld, valid(first + i, deep));
#pragma unroll
                for (int i = 0; i < SOME; ++i) store_shared(stage + address(first + i), staged[i]);
            }
        }
    }

    // Valid bytes of this lane's copy number `i`.
    DEVICE int valid(int i, int deep) const {
        if constexpr (mn) return row() + i * STEP < deep ? SIZE * inside : 0;
        return i * STEP < inside ? SIZE * clamped(deep - column(), PER_CHUNK) : 0;
    }

    DEVICE static u32 address(int i) { return Layout::at(row() + i * STEP, lane_id() % CHUNKS); }

    // The fragments of step `step` of a block, 16 along m (n) each: a's in the order of multiply_add; b's b0 and b1 of 8
    // columns and then of the next 8.
    DEVICE static void fragments(Fragment& word, u32 stage, int step) {
        const u32 r = lane_id() % 8, one = lane_id() / 8 % 2, two = lane_id() / 16;
        const u32 next_k = k_first ? one : two, next_side = k_first ? two : one;
#pragma unroll
        for (int i = 0; i < SIDE / 16; ++i) {
            if constexpr (PAIRED) {
                // Matrices 0 and 1 have the first 16 rows of k, 2 and 3 the next 16. Of every four rows, 0 and 2 have
                // the first two, 1 and 3 the other two.
                u32 pair[4];
                load_matrices_transposed(pair,
                                         stage + Layout::at(STEP_K * step + 16 * two + 4 * (r / 2) + 2 * one + r % 2, i));
                const u32 even[2] = {even_bytes(pair[0], pair[1]), even_bytes(pair[2], pair[3])};
                const u32 odd[2] = {odd_bytes(pair[0], pair[1]), odd_bytes(pair[2], pair[3])};
                word[i][0] = even[0], word[i][3] = odd[1];
                word[i][1] = k_first ? even[1] : odd[0], word[i][2] = k_first ? odd[0] : even[1];
            } else if constexpr (mn) {
                load_matrices_transposed(word[i], stage + Layout::at(STEP_K * step + 8 * next_k + r, 2 * i + next_side));
            } else {
                load_matrices(word[i], stage + Layout::at(16 * i + 8 * next_side + r, 2 * step + next_k));
            }
        }
    }
};

using OperandA = Operand<TILE_M, A_M_MAJOR, A_BYTES_ALIGNED, false>;
using OperandB = Operand<TILE_N, B_N_MAJOR, B_BYTES_ALIGNED, true>;

constexpr u32 STAGE = OperandA::BYTES + OperandB::BYTES;
// A row has 8 words more than a multiple of 16: the pairs that 16 lanes store at a time are in different banks.
constexpr u32 RESULT_ROW = 4 * (TILE_N + 8), RESULT_BYTES = 16 * RESULT_ROW;
constexpr u32 WARP_BYTES = STAGES * STAGE + RESULT_BYTES;
static_assert(STAGE % 128 == 0 && RESULT_BYTES % 128 == 0, "stages begin at multiples of 128 bytes");
static_assert(SHARED_BYTES == WARPS * WARP_BYTES + 112, "as in batch.py; 112 for alignment");

// Sums are [16 of m][8 of n][4]: those of a multiply_add are contiguous.
constexpr int BLOCKS_M = TILE_M / 16, BLOCKS_N = TILE_N / 8;

// `deep` along k of the block are there. A step of zeros truncates sums of 8-bit floats once more: their bits would depend
// on TILE_K.
DEVICE void multiply(Sum (&sums)[BLOCKS_M * BLOCKS_N * 4], u32 stage, int deep) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        if (FLOAT8 && STEP_K * step >= deep) break;
        OperandA::Fragment a;
        OperandB::Fragment b;
        OperandA::fragments(a, stage, step);
        OperandB::fragments(b, stage + OperandA::BYTES, step);
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j)
#pragma unroll
            for (int i = 0; i < BLOCKS_M; ++i)
                multiply_add<INPUT>(&sums[(i * BLOCKS_N + j) * 4], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

DEVICE u32 bits_of(float value) { return __float_as_uint(value); }
DEVICE u32 bits_of(int value) { return value; }

// The row of a lane's pair `half` in 16 rows of results.
DEVICE int row_of(int half) {
    const int group = lane_id() / 4;
    return OperandA::PAIRED ? 2 * group + half : group + 8 * half;
}

// The column of a lane's element `one` of a pair in 8-column block `j` of results.
DEVICE int column_of(int j, int one) {
    const int quad = lane_id() % 4;
    return OperandB::PAIRED ? 8 * (j - j % 2) + 4 * quad + 2 * one + j % 2 : 8 * j + 2 * quad + one;
}

// The factor of a row (column) in block `block` of k; of one beyond the last, of which there are `end`, any.
DEVICE float scale_at(const Scales& scales, int element, int end, int block, int matrix) {
    return scales.at == nullptr ? 1.0f : load_global(scales.find(element < end ? element : end - 1, block, matrix));
}

// Adds the sums of block `block` of k, times its scales, to the accumulators of a tile.
DEVICE void promote(const Params& p, Sum (&sums)[BLOCKS_M * BLOCKS_N * 4], const Sum (&part)[BLOCKS_M * BLOCKS_N * 4],
                    int matrix, int row, int column, int block) {
    if constexpr (SCALES != 2) {
#pragma unroll
        for (int i = 0; i < BLOCKS_M * BLOCKS_N * 4; ++i) sums[i] += part[i];
        return;
    }
    float rows[BLOCKS_M][2];
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS_M; ++i)
        rows[i / 2][i % 2] = scale_at(p.row_scales, row + 16 * (i / 2) + row_of(i % 2), p.m, block, matrix);
#pragma unroll
    for (int j = 0; j < BLOCKS_N; ++j)
#pragma unroll
        for (int one = 0; one < 2; ++one) {
            const float of_column = scale_at(p.column_scales, column + column_of(j, one), p.n, block, matrix);
#pragma unroll
            for (int i = 0; i < 2 * BLOCKS_M; ++i) {
                const int at = (i / 2 * BLOCKS_N + j) * 4 + 2 * (i % 2) + one;
                sums[at] = fmaf(part[at], rows[i / 2][i % 2] * of_column, sums[at]);
            }
        }
}

// Stores 16 rows of results, number `i`, to the warp's part of shared memory.
DEVICE void stage_sums(const Sum (&sums)[BLOCKS_M * BLOCKS_N * 4], u32 part, int i) {
    const int quad = lane_id() % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < BLOCKS_N; j += 2) {
            const Sum* one = &sums[(i * BLOCKS_N + j) * 4 + 2 * half];
            const Sum* two = one + 4;
            const u32 to = part + row_of(half) * RESULT_ROW + 4 * 8 * j;
            if constexpr (OperandB::PAIRED) {
                store_shared(to + 16 * quad, Word4{bits_of(one[0]), bits_of(two[0]), bits_of(one[1]), bits_of(two[1])});
            } else {
                store_shared(to + 8 * quad, Word2{bits_of(one[0]), bits_of(one[1])});
                store_shared(to + 32 + 8 * quad, Word2{bits_of(two[0]), bits_of(two[1])});
            }
        }
}

// Stores four integers of one row, without those that are outside of d.
DEVICE void store_integers(const Result& result, int row, int column, const Word4& v) {
    const Params& p = result.p;
    if (row >= p.m || column >= p.n) return;
    u32* to = static_cast<u32*>(result.d) + row * p.d_ld + column;
    if (result.wide && column + 4 <= p.n) {
        store_global(reinterpret_cast<Word4*>(to), v);
    } else {
        const u32 each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (column + i < p.n) store_global(to + i, each[i]);
    }
}

// Stores a tile to d through the warp's part of shared memory, so that adjacent lanes store adjacent elements.
DEVICE void store_sums(const Params& p, const Sum (&sums)[BLOCKS_M * BLOCKS_N * 4], u32 part, long long matrix, int row,
                       int column) {
    const Result result(p, 4, matrix);
    constexpr int FOURS = TILE_N / 4;  // in a row
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
        if (i > 0 && row + 16 * i >= p.m) break;
        warp_sync();
        stage_sums(sums, part, i);
        warp_sync();
#pragma unroll 2
        for (int four = 0; four < 16 * FOURS / 32; ++four) {
            const int r = (32 * four + lane_id()) / FOURS, c = 4 * ((32 * four + lane_id()) % FOURS);
            const u32 at = part + r * RESULT_ROW + 4 * c;
            if constexpr (INTEGER) {
                store_integers(result, row + 16 * i + r, column + c, load_shared<Word4>(at));
            } else {
                const Float4 all = load_shared<Float4>(at);
                const float run[4] = {all.x, all.y, all.z, all.w};
                result.store(row + 16 * i + r, column + c, run);
            }
        }
    }
}

// The tiles of a warp, in turn.
struct Tiles {
    const Params& p;
    int tile, step, end;
    long long matrix;
    int row, column;

    DEVICE explicit Tiles(const Params& p, u32 warp)
        : p(p), tile(blockIdx.x * WARPS + warp), step(gridDim.x * WARPS), end(p.tiles_m * p.tiles_n * p.batch) {
        find();
    }

    DEVICE bool there() const { return tile < end; }

    DEVICE void next() {
        tile += step;
        find();
    }

   private:
    // In groups of rows of tiles, as tile.cuh walks them, so that warps that run at the same time share operands in L2.
    DEVICE void find_in_group(int number) {
        const int in_group = p.group * p.tiles_n, first = number / in_group * p.group;
        const int rest = number % in_group, left = p.tiles_m - first, height = left < p.group ? left : p.group;
        row = (first + rest % height) * TILE_M, column = rest / height * TILE_N;
    }

    DEVICE void find() {
        const int each = p.tiles_m * p.tiles_n;
        matrix = tile, row = 0, column = 0;
        if (each > 1) {
            const int of = tile / each, number = tile - of * each;
            matrix = of, row = number / p.tiles_n * TILE_M, column = number % p.tiles_n * TILE_N;
            if constexpr (FLOAT8) find_in_group(number);
        }
    }
};

GLOBAL_KERNEL void __launch_bounds__(THREADS, BLOCKS) gemm(const __grid_constant__ Params p) {
    const u32 warp = warp_id();
    const u32 ring = (dynamic_shared() + 127) / 128 * 128 + warp * WARP_BYTES, results = ring + STAGES * STAGE;
    OperandA a(p.a, p.a_batch, p.a_ld, p.m);
    OperandB b(p.b, p.b_batch, p.b_ld, p.n);
    Tiles loading(p, warp), present(p, warp);
    int loading_k = 0;

    // Copies the next block, if there is one.
    auto load_next = [&](u32 stage) {
        if (loading.there()) {
            if (loading_k == 0) {
                a.go_to(loading.matrix, loading.row);
                b.go_to(loading.matrix, loading.column);
            }
            a.load(stage, loading_k, p.k - loading_k);
            b.load(stage + OperandA::BYTES, loading_k, p.k - loading_k);
            loading_k += TILE_K;
            if (loading_k >= p.k) loading.next(), loading_k = 0;
        }
        copy_commit();  // an empty group at the end, as copy_wait() counts groups
    };

#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) load_next(ring + stage * STAGE);
    u32 reading = ring, writing = ring + (STAGES - 1) * STAGE;
#pragma unroll 1
    for (; present.there(); present.next()) {
        Sum sums[BLOCKS_M * BLOCKS_N * 4] = {}, part[BLOCKS_M * BLOCKS_N * 4] = {};  // of a block of k, to promote
        int k = 0;
        do {
            copy_wait<STAGES - 2>();
            warp_sync();  // all lanes' copies are there, and no lane reads the stage before any more
            load_next(writing);
            if constexpr (FLOAT8) {
                multiply(part, reading, p.k - k);
                if ((k + TILE_K) % PROMOTED == 0 || k + TILE_K >= p.k) {
                    promote(p, sums, part, static_cast<int>(present.matrix), present.row, present.column, k / PROMOTED);
#pragma unroll
                    for (int i = 0; i < BLOCKS_M * BLOCKS_N * 4; ++i) part[i] = Sum(0);
                }
            } else {
                multiply(sums, reading, p.k - k);
            }
            writing = reading;
            reading = reading + STAGE == results ? ring : reading + STAGE;
            k += TILE_K;
        } while (k < p.k);
        store_sums(p, sums, results, present.matrix, present.row, present.column);
    }
}
