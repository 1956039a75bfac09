// The pre-pass: copies operands, or splits them into bf16 planes, before the product. It handles up to two operands in one
// launch, a CTA for each tile of one.
//
//     kFormat  0: float32 is split into three planes of bfloat16; 1 (2): 32-bit (16-bit) elements are copied; 3: float32 is
//              split into two planes of bfloat16 (bf16x3.cuh), without marks; 4: 8-bit elements are copied
//
// An operand is read with any strides and address. Its direction with the smaller stride is called `fast`, the other
// one `slow`; the copy is contiguous along `fast`, or with `transposed` along `slow`, in which case a tile goes through
// shared memory. What is written begins at multiples of 16 bytes, and so do its rows.
#include "source_element.cuh"
#include "split_planes.cuh"
#include "types.cuh"

// Given to the compiler by gemmhub_hopper/variants/sources.py.
constexpr int kFormat = PREPASS_FORMAT;
using Element = Select<kFormat == 2, u16, Select<kFormat == 4, unsigned char, float>>;
constexpr u32 kNumPlanes = kFormat == 0 ? 3 : kFormat == 3 ? 2 : 1;
constexpr int BLOCK_FAST = 128, BLOCK_SLOW = 32;
constexpr u32 kNumThreads = 256;
constexpr int FAR = BLOCK_FAST + 1;  // elements of a row of the tile in shared memory

struct Job {
    const Element* from;
    void* to;
    u32* marks;                                  // with kFormat 0
    long long from_fast, from_slow, from_batch;  // elements from one to the next
    long long to_ld, to_plane;                   // elements; planes of a matrix, then those of the next one
    int fast, slow;                              // elements that there are
    int wide_fast, wide_slow;                    // that are to be written; those that there are not are 0
    int tiles_fast, tiles_slow;                  // of one matrix
    int transposed;
    int vector;     // four neighbours along `fast` can be read at once
    int rows_slow;  // `slow` is along m or n, `fast` along k
    int source_format;
};

struct PrepassParams {
    int first_tiles;  // of the first job
    Job jobs[2];
    // Marks of the kernel's A and B: nothing is done unless the pre-pass by float16 planes has rejected one. Null: always.
    const u32 *a_marks, *b_marks;
    int kept;      // bit 0 (1): A (B) is packed
    int first_is;  // the first job's operand: 0 A, 1 B
    int tiles;     // of all jobs
    int limit;     // of rejected()
    int spans[2];  // rows of A (B) in a tile of the kernel that computes rejected tiles only; 0 where it computes all
    int marked_groups[2];  // of few_rejected()
};
static_assert(sizeof(PrepassParams) == 264, "prepass.py has the same structure");

struct alignas(sizeof(Element) * 4) Four {
    Element x[4];
};
struct alignas(8) Pair {
    u32 low, high;
};

// Of one of the operands; nothing is scaled unless the float16 split of one of both was rejected.
DEVICE Rescaling rescaling(const PrepassParams& p, bool second) {
    if (kFormat != 0 || p.a_marks == nullptr) return Rescaling();
    const bool a_kept = p.kept & 1, b_kept = p.kept & 2;
    return p.first_is != second ? Rescaling(p.b_marks, p.a_marks, b_kept, a_kept)
                                : Rescaling(p.a_marks, p.b_marks, a_kept, b_kept);
}

// The planes of an element, and what is to be marked.
DEVICE void split(const Rescaling& how, float x, u16 (&plane)[3], u32& marks) {
    const float scaled = x * how.scale;
    split_planes(scaled, plane, marks, how.large);
    if (x != 0.0f && fabsf(scaled) < 0x1p-126f) marks |= LOSSY;  // scaling may have rounded
}

DEVICE Four load_four(const Job& job, int fast, int slow, long long matrix) {
    Four four = {};
    if (slow >= job.slow) return four;
    if constexpr (kFormat == 0) {
        if (job.source_format != REAL) {
            const long long from_row = job.rows_slow ? job.from_slow : job.from_fast;
            const long long from_k = job.rows_slow ? job.from_fast : job.from_slow;
            const void* from = source_matrix(job.from, matrix, job.from_batch, job.source_format);
            for (int i = 0; i < 4; ++i)
                if (fast + i < job.fast)
                    four.x[i] = source_element(from, job.rows_slow ? slow : fast + i, job.rows_slow ? fast + i : slow,
                                               from_row, from_k, job.source_format);
            return four;
        }
    }
    const Element* from = job.from + matrix * job.from_batch + slow * job.from_slow + fast * job.from_fast;
    if (job.vector && fast + 4 <= job.fast) return *reinterpret_cast<const Four*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (fast + i < job.fast) four.x[i] = from[i * job.from_fast];
    return four;
}

// Four neighbours, at an element that is a multiple of four.
DEVICE void store_four(const Job& job, long long at, const Four& four, const Rescaling& how, u32& marks) {
    if constexpr (kNumPlanes > 1) {
        u16 plane[4][3];
#pragma unroll
        for (int i = 0; i < 4; ++i) split(how, four.x[i], plane[i], marks);
#pragma unroll
        for (u32 i = 0; i < kNumPlanes; ++i) {
            const Pair pair = {plane[0][i] | u32(plane[1][i]) << 16, plane[2][i] | u32(plane[3][i]) << 16};
            *reinterpret_cast<Pair*>(static_cast<u16*>(job.to) + i * job.to_plane + at) = pair;
        }
    } else {
        *reinterpret_cast<Four*>(static_cast<Element*>(job.to) + at) = four;
    }
}

DEVICE void store_one(const Job& job, long long at, Element value, const Rescaling& how, u32& marks) {
    if constexpr (kNumPlanes > 1) {
        u16 plane[3];
        split(how, value, plane, marks);
#pragma unroll
        for (u32 i = 0; i < kNumPlanes; ++i) static_cast<u16*>(job.to)[i * job.to_plane + at] = plane[i];
    } else {
        static_cast<Element*>(job.to)[at] = value;
    }
}

// Whether the kernel reads rows [row, row + count) of an operand: one of its tiles that has some of them may have a rejected cell.
// So has one of each row where the other operand has a rejected group.
DEVICE bool needed(const PrepassParams& p, bool second, int row, int count, int rows, long long matrix) {
    const bool is_b = p.first_is != static_cast<int>(second);
    const int span = p.spans[is_b];
    const u32 *own = is_b ? p.b_marks : p.a_marks, *other = is_b ? p.a_marks : p.b_marks;
    if (span == 0 || row >= rows || (load_word(other) & REJECTED)) return true;
    if (!few_rejected(p.a_marks, p.b_marks, p.marked_groups)) return true;
    const int end = (row + count + span - 1) / span * span, first = matrix * ((rows + GROUP_ROWS - 1) / GROUP_ROWS);
    for (int group = row / span * span / GROUP_ROWS; group * GROUP_ROWS < (end < rows ? end : rows); ++group) {
        const u32 word = load_word(own + group_word(first + group));
        if ((word & REJECTED) || static_cast<int>(__popc(word >> SMALL_BIT) + load_word(other + SMALL_WORD)) > p.limit) return true;
    }
    return false;
}

// Tile number `index` of a job.
DEVICE void copy_tile(const PrepassParams& p, bool second, int index, const Rescaling& how, Element (&tile)[BLOCK_SLOW][FAR]) {
    const Job& job = p.jobs[second];
    const int tiles = job.tiles_fast * job.tiles_slow, matrix = index / tiles, in_matrix = index - matrix * tiles;
    const int tile_slow = in_matrix / job.tiles_fast, tile_fast = in_matrix - tile_slow * job.tiles_fast;
    const int fast0 = tile_fast * BLOCK_FAST, slow0 = tile_slow * BLOCK_SLOW;
    if (kFormat == 0 && p.a_marks != nullptr) {
        const bool slow = job.rows_slow;
        if (!needed(p, second, slow ? slow0 : fast0, slow ? BLOCK_SLOW : BLOCK_FAST, slow ? job.slow : job.fast, matrix)) return;
    }
    const long long to = matrix * kNumPlanes * job.to_plane;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 marks = 0;
    Four four[BLOCK_SLOW / 8];
#pragma unroll
    for (int i = 0; i < BLOCK_SLOW / 8; ++i) four[i] = load_four(job, fast0 + 4 * lane, slow0 + 8 * i + warp, matrix);
    if (!job.transposed) {
#pragma unroll
        for (int i = 0; i < BLOCK_SLOW / 8; ++i) {
            const int slow = slow0 + 8 * i + warp, fast = fast0 + 4 * lane;
            if (slow < job.wide_slow && fast < job.wide_fast)
                store_four(job, to + slow * job.to_ld + fast, four[i], how, marks);
        }
    } else {
#pragma unroll
        for (int i = 0; i < BLOCK_SLOW / 8; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) tile[8 * i + warp][4 * lane + j] = four[i].x[j];
        block_sync();
#pragma unroll
        for (int i = 0; i < BLOCK_FAST / 8; ++i) {
            const int fast = 8 * i + warp;
            if (slow0 + lane < job.wide_slow && fast0 + fast < job.wide_fast)
                store_one(job, to + (fast0 + fast) * job.to_ld + slow0 + lane, tile[lane][fast], how, marks);
        }
    }
    if constexpr (kFormat == 0) {
        marks = warp_or(marks);
        if (lane == 0 && marks != 0) {
            // A tile lies in one group.
            const int rows = job.rows_slow ? job.slow : job.fast, row = job.rows_slow ? slow0 : fast0;
            const int group = matrix * ((rows + GROUP_ROWS - 1) / GROUP_ROWS) + row / GROUP_ROWS;
            mark(job.marks, marks);
            mark(job.marks + group_word(group), marks);
        }
    }
}

GLOBAL_KERNEL void __launch_bounds__(kNumThreads) prepass(const __grid_constant__ PrepassParams p) {
    SHARED_MEMORY Element tile[BLOCK_SLOW][FAR];
    const bool only_rejected = p.a_marks != nullptr;
    if (only_rejected) launch_dependent_grids();  // as a rule there is nothing to do
    wait_on_dependent_grids();
    if (!only_rejected) launch_dependent_grids();
    if (kFormat == 0 && only_rejected && !rejected(p.a_marks, p.b_marks, p.limit)) return;
    // Where there may be nothing to do there are fewer CTAs than tiles: even a CTA that only looks takes time.
    for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
        const bool second = index >= p.first_tiles;
        if (index >= static_cast<int>(gridDim.x)) block_sync();  // all have read the tile before
        copy_tile(p, second, index - (second ? p.first_tiles : 0), rescaling(p, second), tile);
    }
}
