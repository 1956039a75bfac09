// d = activation(alpha * a b + beta * c + bias) in bfloat16 or float16 on tensor cores, summed in float32; for cards of
// compute capability 8.0 and later.
//
// A CTA computes a tile of TILE_M x TILE_N, each of its warps WARP_M x WARP_N of it, 16 x 8 at a time: the results of
// the instruction mma.m16n8k16. What one step of k needs is moved as follows:
//
//     global memory     copy_async, TILE_K of k at a time, STAGES - 1 tiles ahead of their use     `Operand::load`
//     shared memory     a ring of STAGES stages, each a tile of a and one of b
//                       load_matrices, 16 of k at a time, one step ahead of its use                `Operand::fragments`
//     registers         WARP_M / 16 x WARP_N / 8 multiplications in 16 x 8 x 16                    `multiply`
//     shared memory     at the end, WARP_N columns of 16 rows a time, in the warp's own part       `store_sums`
//     global memory     4 contiguous elements of d a lane
//
// Copies that a thread waits for begin before it multiplies. One barrier for each tile of k has two effects. All threads
// see the next tile, as each has waited for its own copies of it. And no thread reads the present tile any more, as its
// last fragments are in registers: its stage is free for the tile STAGES - 1 further on.
//
// A tile of an operand in shared memory has rows of 16-byte chunks, as in global memory: where it is contiguous along
// m (n), a row for each k, which ldmatrix transposes; else a row for each of m (n). Chunks are swizzled (`Swizzled`), so
// that neither the copies nor ldmatrix have bank conflicts.
//
// The part of k that is no multiple of TILE_K is taken first, with zeros beyond its end: all later tiles are full.
// What is outside of a matrix along m (n) is zeros, too; those results are not stored.
//
//     TILE_M, TILE_N, TILE_K, WARP_M, WARP_N   elements
//     STAGES                                   of the ring
//     BLOCKS                                   CTAs for which an SM must have room
#include "chunks.cuh"
#include "epilogue.cuh"
#include "split.cuh"

constexpr int WARPS_N = TILE_N / WARP_N;  // beside each other
constexpr int STEPS = TILE_K / 16;        // multiplications along k in a tile
static_assert(THREADS == 32 * (TILE_M / WARP_M) * WARPS_N, "warps fill the tile");
static_assert(TILE_M % WARP_M == 0 && TILE_N % WARP_N == 0 && WARP_M % 16 == 0 && WARP_N % 16 == 0);
static_assert(TILE_K == 32 || TILE_K == 64, "two or four steps, and at most 8 chunks in a row");
static_assert(INPUT != 2 && STAGES >= 2);

// One of the two operands: SIDE along m (n) and TILE_K along k, of which a warp needs WARP_SIDE x TILE_K. `mn`: it is
// contiguous along m (n), not along k; `aligned`: the alignment in bytes of its contiguous rows, and of their length if
// they are along m (n); `k_first`: the order of a fragment's matrices.
template <int SIDE, int WARP_SIDE, bool mn, int aligned, bool k_first>
struct Operand {
    static constexpr int ROWS = mn ? TILE_K : SIDE, CHUNKS = (mn ? SIDE : TILE_K) / 8;
    static constexpr u32 BYTES = 16 * ROWS * CHUNKS;
    static constexpr int STEP = THREADS / CHUNKS;  // rows from one of a thread's copies to its next
    static constexpr int COPIES = (ROWS + STEP - 1) / STEP;
    static constexpr int BLOCKS_16 = WARP_SIDE / 16;
    static_assert(ROWS % STEP == 0 || STEP % ROWS == 0, "all rows, and no more");
    static_assert(STEP % 8 == 0, "a thread's copies have one key");
    static_assert((WARP_SIDE & (WARP_SIDE - 1)) == 0, "a power of two");
    using Layout = Swizzled<CHUNKS>;
    using Fragment = u32[BLOCKS_16][4];

    // --- from global to shared memory: this thread has one chunk in every STEP rows ---------------------------

    const char* from;    // the first one, in the tile that comes next
    long long row_step;  // bytes from one to the next
    long long tile_step;
    int row, chunk;  // of the first
    int inside;      // mn: valid bytes of the chunk; else: rows of the matrix from this thread's first one on

    // `first`: the tile's origin along m (n), of which there are `size`; `k`: where its part of k begins.
    DEVICE Operand(const void* base, long long ld, int first, int size, int k) {
        row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
        const long long outer = (mn ? k : first) + row, inner = (mn ? first : k) + 8 * chunk;
        from = static_cast<const char*>(base) + 2 * (outer * ld + inner);
        row_step = 2 * STEP * ld, tile_step = mn ? 2 * TILE_K * ld : 2 * TILE_K;
        inside = mn ? 2 * clamped(size - first - 8 * chunk, 8) : size - first - row;
    }

    // Copies a tile to `stage`. Not `full`: `deep` along k of it are there.
    template <bool full>
    DEVICE void load(u32 stage, const char* tile, int deep) const {
        if (STEP > ROWS && row >= ROWS) return;
        if constexpr (aligned >= 4) {
#pragma unroll
            for (int i = 0; i < COPIES; ++i)
                copy_chunk<aligned, !mn && !full>(stage + address(i), tile + i * row_step, valid<full>(i, deep));
        } else {
            constexpr int SOME = COPIES < 2 ? COPIES : 2;  // at once: the more, the more registers
#pragma unroll
            for (int first = 0; first < COPIES; first += SOME) {
                Word4 staged[SOME];
#pragma unroll
                for (int i = 0; i < SOME; ++i)
                    staged[i] = load_chunk<u16>(tile + (first + i) * row_step, valid<full>(first + i, deep));
#pragma unroll
                for (int i = 0; i < SOME; ++i) store_shared(stage + address(first + i), staged[i]);
            }
        }
    }

    // Copies a full tile, and goes on to the next.
    DEVICE void load(u32 stage) {
        load<true>(stage, from, TILE_K);
        from += tile_step;
    }

    // Copies the tile `tiles` further on.
    DEVICE void load_last(u32 stage, int tiles, int deep) const { load<false>(stage, from + tiles * tile_step, deep); }

    // Valid bytes of this thread's copy number `i`.
    template <bool full>
    DEVICE int valid(int i, int deep) const {
        if constexpr (mn) {
            if (!full && row + i * STEP >= deep) return 0;
            return aligned < 16 ? inside : inside > 0 ? 16 : 0;
        }
        if (i * STEP >= inside) return 0;
        return full ? 16 : 2 * clamped(deep - 8 * chunk, 8);
    }

    // Where copy number `i` goes: a multiple of 8 rows on the key is the same.
    DEVICE u32 address(int i) const { return Layout::at(row, chunk) + 16 * CHUNKS * i * STEP; }

    // --- from shared memory to registers ----------------------------------------------------------------------

    // Where this lane's row of load_matrices is, for the warp's first 16 along m (n) and the first 16 of k. Of its four
    // matrices 0 is the first 8 of both and 3 the next 8 of both; `k_first`: 1 is the next 8 of k, else along m (n).
    DEVICE static u32 lane_place(int warp_first) {
        const u32 r = lane_id() % 8, one = lane_id() / 8 % 2, two = lane_id() / 16;
        const u32 next_k = k_first ? one : two, next_side = k_first ? two : one;
        return mn ? Layout::at(8 * next_k + r, warp_first / 8 + next_side)
                  : Layout::at(warp_first + 8 * next_side + r, next_k);
    }

    // The fragments of step `step` of a tile, 16 along m (n) each: a's in the order of multiply_add; b's b0 and b1 of 8
    // columns and then of the next 8, so that each pair is in consecutive registers, as the instruction takes it.
    DEVICE static void fragments(Fragment& word, u32 stage_and_lane, int step) {
#pragma unroll
        for (int i = 0; i < BLOCKS_16; ++i) {
            // Chunks on: in the swizzled bits by exclusive or. Rows on: 16 have no effect on the key.
            if constexpr (mn)
                load_matrices_transposed(
                    word[i], (stage_and_lane ^ 16 * (2 * i % 8)) + 128 * (i / 4) + 16 * CHUNKS * 16 * step);
            else
                load_matrices(word[i], (stage_and_lane ^ 16 * 2 * step) + 16 * CHUNKS * 16 * i);
        }
    }
};

using OperandA = Operand<TILE_M, WARP_M, A_M_MAJOR, A_BYTES_ALIGNED, false>;
using OperandB = Operand<TILE_N, WARP_N, B_N_MAJOR, B_BYTES_ALIGNED, true>;

constexpr u32 STAGE = OperandA::BYTES + OperandB::BYTES;
// Of a warp's part of shared memory for its results: 8 floats more than a multiple of 16 keep the pairs that 16 lanes
// store at a time in different banks.
constexpr u32 RESULT_ROW = 4 * (WARP_N + 8), RESULT_BYTES = 16 * RESULT_ROW;
constexpr u32 RING = STAGES * STAGE;
constexpr u32 FLAG_AT = THREADS / 32 * RESULT_BYTES;  // of add_parts, behind the results
static_assert(OperandA::BYTES % 128 == 0 && STAGE % 128 == 0, "swizzled bits are bits of the address");
static_assert(SHARED_BYTES == (RING > FLAG_AT + 16 ? RING : FLAG_AT + 16) + 112, "so counts mma.py; 112 for alignment");

// Sums are [16 of m][8 of n][4]: those of a multiply_add are contiguous.
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;
constexpr int SUMS = BLOCKS_M * BLOCKS_N * 4;

// What a warp needs of both operands for one step.
struct Fragments {
    OperandA::Fragment a;
    OperandB::Fragment b;

    DEVICE void load(u32 a_at, u32 b_at, int step) {
        OperandA::fragments(a, a_at, step);
        OperandB::fragments(b, b_at, step);
    }
};

DEVICE void multiply(float (&sums)[SUMS], const Fragments& f) {
#pragma unroll
    for (int j = 0; j < BLOCKS_N; ++j)
#pragma unroll
        for (int i = 0; i < BLOCKS_M; ++i) {
            // Down one column and up the next: consecutive multiplications share an operand in registers.
            const int turned = j % 2 ? BLOCKS_M - 1 - i : i;
            const u32* b = &f.b[j / 2][j % 2 * 2];
            multiply_add<INPUT>(&sums[(turned * BLOCKS_N + j) * 4], f.a[turned], b[0], b[1]);
        }
}

// The warp's origin in the tile.
DEVICE int warp_row(u32 warp) { return warp / WARPS_N * WARP_M; }
DEVICE int warp_column(u32 warp) { return warp % WARPS_N * WARP_N; }

// Stores a tile to d through the warp's own part of shared memory, so that adjacent lanes store adjacent elements.
DEVICE void store_sums(const Params& p, const float (&sums)[SUMS], u32 shared, const Piece& piece) {
    const Result result(p, 4);
    const u32 thread = opaque(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const u32 part = shared + warp * RESULT_BYTES;
    const int row = piece.row + warp_row(warp), column = piece.column + warp_column(warp);
    constexpr int FOURS = WARP_N / 4;  // in a row
#pragma unroll
    for (int i = 0; i < BLOCKS_M; ++i) {
        if (i > 0) warp_sync();
#pragma unroll
        for (int j = 0; j < BLOCKS_N; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* pair = &sums[(i * BLOCKS_N + j) * 4 + 2 * half];
                store_shared(part + (lane / 4 + 8 * half) * RESULT_ROW + 4 * (8 * j + 2 * (lane % 4)),
                             Word2{__float_as_uint(pair[0]), __float_as_uint(pair[1])});
            }
        warp_sync();
#pragma unroll 2  // all at once would need many registers, and a lot of code
        for (int four = 0; four < 16 * FOURS / 32; ++four) {
            const int r = (32 * four + lane) / FOURS, c = 4 * ((32 * four + lane) % FOURS);
            const Float4 all = load_shared<Float4>(part + r * RESULT_ROW + 4 * c);
            const float run[4] = {all.x, all.y, all.z, all.w};
            result.store(row + 16 * i + r, column + c, run);
        }
    }
}

// A full tile of both operands.
DEVICE void load_tile(OperandA& a, OperandB& b, u32 stage) {
    a.load(stage);
    b.load(stage + OperandA::BYTES);
}

DEVICE u32 next_stage(u32 stage, u32 ring) { return stage == ring + RING - STAGE ? ring : stage + STAGE; }

GLOBAL_KERNEL void __launch_bounds__(THREADS, BLOCKS) gemm(const __grid_constant__ Params p) {
    const Piece piece = piece_here(p);
    const u32 ring = (dynamic_shared() + 127) / 128 * 128;
    const u32 warp = warp_id();

    const long long matrix = blockIdx.z;
    OperandA a(static_cast<const u16*>(p.a) + matrix * p.a_batch, p.a_ld, piece.row, p.m, piece.k_begin);
    OperandB b(static_cast<const u16*>(p.b) + matrix * p.b_batch, p.b_ld, piece.column, p.n, piece.k_begin);

    // The first of `tiles` is the last one along k, of which `rest` are there.
    const int deep = piece.k_end - piece.k_begin, tiles = (deep + TILE_K - 1) / TILE_K;
    const int rest = deep - (tiles - 1) * TILE_K;
    if (tiles > 0) {
        a.load_last(ring, tiles - 1, rest);
        b.load_last(ring + OperandA::BYTES, tiles - 1, rest);
    }
    copy_commit();
#pragma unroll
    for (int stage = 1; stage < STAGES - 1; ++stage) {
        if (stage < tiles) load_tile(a, b, ring + stage * STAGE);
        copy_commit();
    }

    float sums[SUMS] = {};
    Fragments fragments[2];
    const u32 a_lane = OperandA::lane_place(warp_row(warp));
    const u32 b_lane = OperandA::BYTES + OperandB::lane_place(warp_column(warp));
    u32 reading = ring, writing = ring + (STAGES - 1) * STAGE;  // stages
    copy_wait<STAGES - 2>();
    block_sync();
    if (tiles > 0) fragments[0].load(reading + a_lane, reading + b_lane, 0);

#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int next = (step + 1) % STEPS;
            if (next == 0) {
                // After the last tile its first fragments are read again, for nothing: a condition would cost more.
                if (tile + 1 < tiles) reading = next_stage(reading, ring);
                copy_wait<STAGES - 2>();
                block_sync();
            }
            fragments[(step + 1) % 2].load(reading + a_lane, reading + b_lane, next);
            if (step == 0) {
                if (tile + STAGES - 1 < tiles) load_tile(a, b, writing);
                copy_commit();  // an empty group at the end: so the count of open ones stays right
                writing = next_stage(writing, ring);
            }
            multiply(sums, fragments[step % 2]);
        }
    }

    block_sync();  // no thread reads the ring any more, and all copies to it have been waited for
    // The piece is computed again: the loop has no registers to spare for what only the end needs.
    const Piece same = piece_at(p, opaque(blockIdx.x));
    if constexpr (SPLIT) {
        if (p.splits > 1 && !add_parts(p, same, sums, ring + FLAG_AT)) return;
    }
    store_sums(p, sums, ring, same);
}
