// The pre-pass of float32 by float16 planes: splits up to two operands into scaled planes (f16_planes.cuh), in one launch.
//
// A CTA takes TILE_ROWS rows (along M or N) and one scale group of K. An operand is read with any strides and address; its
// planes are contiguous along K, or with `mn_major` along M (N). Reads and writes are each coalesced along their own
// direction: the tile goes through shared memory between them. Where both directions are the same and addresses are
// aligned (`quads`), threads keep four neighbours at a time in registers instead.
#include "source_element.cuh"
#include "f16_planes.cuh"
#include "types.cuh"

constexpr int TILE_ROWS = 64;
constexpr u32 kNumThreads = 256;
constexpr u32 kNumPlanes = 2;
constexpr int PITCH = SCALE_GROUP_K + 1;  // floats of a row of the tile in shared memory: no bank conflicts in either direction

struct F16Job {
    const float* from;
    u16* to;
    u32* marks;
    float* scales;                            // [matrix][group of K][row], scale_pitch rows
    long long from_row, from_k, from_batch;  // elements from one to the next
    long long to_ld, to_plane;                // elements; planes of a matrix, then those of the next one
    int rows, k;
    int wide_k;               // elements along K that are written: those that there are not are 0
    int tiles_rows, tiles_k;  // of one matrix
    int scale_pitch;
    int mn_major;
    int along_k;  // neighbours along K are nearer in memory than those along M (N)
    int source_format;
    int quads;  // elements are contiguous in the direction of the planes, from multiples of 16 bytes on
};

struct F16PrepassParams {
    F16Job jobs[2];
    int first_tiles;  // of the first job
    float residual, share;
    int half_limit;  // half of what rejected() allows of small elements of both operands
};
static_assert(sizeof(F16PrepassParams) == 240, "f16_planes.py has the same structure");

// The tile from memory, zeros behind its ends: neighbouring threads along the direction that is contiguous.
DEVICE void load_tile(const F16Job& job, int matrix, int row0, int k0, float (&tile)[TILE_ROWS][PITCH]) {
    constexpr int EACH = TILE_ROWS * SCALE_GROUP_K / kNumThreads;
    const int thread = threadIdx.x;
    // This thread's first element, and how far apart its elements are along the other direction.
    const int row = job.along_k ? thread / SCALE_GROUP_K : thread % TILE_ROWS;
    const int k = job.along_k ? thread % SCALE_GROUP_K : thread / TILE_ROWS;
    const int apart = kNumThreads / (job.along_k ? SCALE_GROUP_K : TILE_ROWS);
    const int to_step = apart * (job.along_k ? PITCH : 1);
    const int rows = job.rows - row0, ks = job.k - k0;
    const bool across = job.along_k ? k < ks : row < rows;
    const int count = !across ? 0 : job.along_k ? (rows - row + apart - 1) / apart : (ks - k + apart - 1) / apart;
    float* to = &tile[row][k];
    const void* base = source_matrix(job.from, matrix, job.from_batch, job.source_format);
    const SourceOffset first = source_offset(row0 + row, k0 + k, job.from_row, job.from_k, job.source_format);
    // `apart` is even, so all elements of a thread are the same part of a complex number.
    const SourceOffset next = source_offset(row0 + row + (job.along_k ? apart : 0), k0 + k + (job.along_k ? 0 : apart),
                                          job.from_row, job.from_k, job.source_format);
    const long long step = next.element - first.element;
    if (job.source_format == FROM_BF16 || job.source_format == FROM_F16) {
        const u16* from = static_cast<const u16*>(base) + first.element;
#pragma unroll 8
        for (int i = 0; i < EACH; ++i) {
            const u16 x = i < count ? from[i * step] : 0;
            to[i * to_step] = job.source_format == FROM_BF16 ? from_bf16(x) : from_f16(x);
        }
        return;
    }
    const float* from = static_cast<const float*>(base) + first.element;
#pragma unroll 8
    for (int i = 0; i < EACH; ++i) to[i * to_step] = i < count ? first.sign * from[i * step] : 0.0f;
}

// The bits of the largest magnitude of each row: four neighbouring threads share a row, and start 8 banks apart.
DEVICE u32 largest_of_row(const float (&tile)[TILE_ROWS][PITCH]) {
    const int row = threadIdx.x / 4, quarter = threadIdx.x % 4;
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < SCALE_GROUP_K / 4; ++i) {
        const u32 bits = __float_as_uint(tile[row][quarter * (SCALE_GROUP_K / 4) + (i + 8 * quarter) % (SCALE_GROUP_K / 4)]);
        largest = (bits & 0x7fffffff) > largest ? bits & 0x7fffffff : largest;
    }
    return largest_of_lanes<4>(largest);
}

// The planes of the tile to memory, two elements at a time: rows of planes begin at multiples of 16 bytes and have room.
template <bool mn_major>
DEVICE SplitError store_tile(const F16PrepassParams& p, const F16Job& job, u16* to, int rows, int ks,
                        const float (&tile)[TILE_ROWS][PITCH], const float (&inverse)[TILE_ROWS]) {
    constexpr int WIDE = (mn_major ? TILE_ROWS : SCALE_GROUP_K) / 2, HIGH = mn_major ? SCALE_GROUP_K : TILE_ROWS;
    constexpr int APART = kNumThreads / WIDE;
    const int across = threadIdx.x % WIDE * 2, first = threadIdx.x / WIDE, end = mn_major ? ks : rows;
    SplitError error;
    if (across >= (mn_major ? rows : ks)) return error;
    to += first * job.to_ld + across;
    float scale[2] = {inverse[mn_major ? across : first], inverse[mn_major ? across + 1 : first]};
#pragma unroll 4
    for (int i = first; i < HIGH; i += APART) {
        if (i >= end) break;
        if constexpr (!mn_major) scale[0] = scale[1] = inverse[i];
        const float low = mn_major ? tile[across][i] : tile[i][across];
        const float high = mn_major ? tile[across + 1][i] : tile[i][across + 1];
        const float x[2] = {low * scale[0], high * scale[1]};
        const F16Pair planes = split_f16(x, p.residual, p.share, error);
        error.note(low, x[0]);
        error.note(high, x[1]);
        *reinterpret_cast<u32*>(to) = planes.plane[0];
        *reinterpret_cast<u32*>(to + job.to_plane) = planes.plane[1];
        to += APART * job.to_ld;
    }
    return error;
}

// Four neighbouring elements, and those of a plane.
struct alignas(16) Quad {
    float x[4];
};
struct alignas(8) PlaneQuad {
    u32 pair[2];
};

// The quads of a thread: at `across` elements along the contiguous direction, and at HIGH / APART positions along the
// other one, from `first` on.
template <bool mn_major>
struct Quads {
    static constexpr int ACROSS = mn_major ? TILE_ROWS : SCALE_GROUP_K, LANES = ACROSS / 4;
    static constexpr int APART = kNumThreads / LANES, COUNT = (mn_major ? SCALE_GROUP_K : TILE_ROWS) / APART;
    static_assert(mn_major ? LANES == 16 : LANES == 32, "how lanes share rows");

    Quad quad[COUNT];
    int across, first;

    // Zeros where the operand has no elements: behind `rows` and `ks`.
    DEVICE void load(const F16Job& job, int matrix, int row0, int k0, int rows, int ks) {
        across = threadIdx.x % LANES * 4, first = threadIdx.x / LANES;
        const int count = (mn_major ? rows : ks) - across, high = mn_major ? ks : rows;
        const long long pitch = mn_major ? job.from_k : job.from_row;
        const long long at = mn_major ? (k0 + first) * pitch + row0 + across : (row0 + first) * pitch + k0 + across;
        const float* from = job.from + matrix * job.from_batch + at;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const float* source = from + i * APART * pitch;
            if (first + i * APART < high && count >= 4)
                quad[i] = *reinterpret_cast<const Quad*>(source);
            else
#pragma unroll
                for (int j = 0; j < 4; ++j) quad[i].x[j] = first + i * APART < high && j < count ? source[j] : 0.0f;
        }
    }

    // The bits of the largest magnitude of the row of each element: of quad i, or with `mn_major` of element i of quads.
    // `shared` has a word for each warp and row.
    DEVICE void largest(u32 (&maxima)[mn_major ? 4 : COUNT], u32 (*shared)[TILE_ROWS]) const {
#pragma unroll
        for (int row = 0; row < (mn_major ? 4 : COUNT); ++row) {
            u32 maximum = 0;
#pragma unroll
            for (int i = 0; i < (mn_major ? COUNT : 4); ++i) {
                const u32 bits = __float_as_uint(mn_major ? quad[i].x[row] : quad[row].x[i]) & 0x7fffffff;
                maximum = bits > maximum ? bits : maximum;
            }
            maxima[row] = mn_major ? maximum : largest_of_lanes<32>(maximum);
        }
        if constexpr (mn_major) {
            const u32 warp = threadIdx.x / 32;
#pragma unroll
            for (int row = 0; row < 4; ++row) {
                const u32 other = __float_as_uint(shuffle_xor(__uint_as_float(maxima[row]), 16));
                if (threadIdx.x % 32 < 16) shared[warp][across + row] = other > maxima[row] ? other : maxima[row];
            }
            block_sync();
#pragma unroll
            for (int row = 0; row < 4; ++row)
                for (u32 i = 0; i < kNumThreads / 32; ++i)
                    maxima[row] = shared[i][across + row] > maxima[row] ? shared[i][across + row] : maxima[row];
        }
    }

    // The planes to memory: rows of planes begin at multiples of 16 bytes and have room.
    DEVICE SplitError store(const F16PrepassParams& p, const F16Job& job, u16* to, int rows, int ks,
                            const float (&inverse)[mn_major ? 4 : COUNT]) const {
        SplitError error;
        if (across >= (mn_major ? rows : ks)) return error;
        to += first * job.to_ld + across;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (first + i * APART >= (mn_major ? ks : rows)) break;
            PlaneQuad planes[kNumPlanes];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float x[2];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    x[j] = quad[i].x[2 * half + j] * inverse[mn_major ? 2 * half + j : i];
                    error.note(quad[i].x[2 * half + j], x[j]);
                }
                const F16Pair split = split_f16(x, p.residual, p.share, error);
#pragma unroll
                for (u32 plane = 0; plane < kNumPlanes; ++plane) planes[plane].pair[half] = split.plane[plane];
            }
#pragma unroll
            for (u32 plane = 0; plane < kNumPlanes; ++plane)
                *reinterpret_cast<PlaneQuad*>(to + plane * job.to_plane) = planes[plane];
            to += APART * job.to_ld;
        }
        return error;
    }
};

// What a thread finds out about the operand, and where the CTA's warps put it together.
struct Findings {
    u32 (&of_warps)[2][kNumThreads / 32];
    u32* group;  // the word of the marks of the tile's group of rows
    u32 largest = 0;  // bits of the largest finite magnitude of a row
    bool accurate = true;

    // The exponent of the scale of a row's group whose largest magnitude has these bits.
    DEVICE int exponent(u32 of_row) {
        const bool fits = of_row < static_cast<u32>(LARGEST_EXPONENT + 1 + 127) << 23;
        accurate = accurate && fits;
        if (of_row < 0x7f800000 && of_row > largest) largest = of_row;
        return scale_exponent(fits ? of_row : 0);
    }

    // Notes the largest element. Returns whether another CTA has rejected the group of rows: then its planes are not used.
    DEVICE bool rejected(const F16Job& job) {
        put(0, largest);
        const bool marked = threadIdx.x == 0 && (load_word(group) & REJECTED) != 0;
        const bool all = block_or(marked ? 1 : 0) != 0;
        const u32 exponent = largest_of_warps(0) >> 23;  // 0 is for what is unknown
        if (threadIdx.x == 0) raise_to(job.marks + LARGEST_WORD, exponent == 0 ? 1 : exponent);
        return all;
    }

    // Notes the smallest element, and rejects the group of rows where planes are not accurate.
    DEVICE void note(const F16PrepassParams& p, const F16Job& job, const SplitError& error) {
        put(1, error.small());
        const bool all = block_or(accurate && error.excess <= 0.0f ? 0 : 1) == 0;
        if (threadIdx.x != 0) return;
        const u32 small = largest_of_warps(1);
        if (small != 0) raise_to(job.marks + SMALL_WORD, small);
        const u32 bits = all ? small_bits(small) : REJECTED;
        if (bits == 0) return;
        mark(job.marks, bits == REJECTED ? REJECTED : SMALL);
        mark(group, bits);
        // What is small in both operands together is more than half of the limit in one of them.
        if ((bits == REJECTED || static_cast<int>(small) > p.half_limit) && mark_first(group, COUNTED))
            count_up(job.marks + REJECTED_WORD);
    }

    DEVICE void put(int which, u32 value) {
        const u32 of_warp = largest_of_lanes<32>(value);
        if (threadIdx.x % 32 == 0) of_warps[which][threadIdx.x / 32] = of_warp;
    }

    DEVICE u32 largest_of_warps(int which) const {
        u32 maximum = 0;
        for (u32 i = 0; i < kNumThreads / 32; ++i) maximum = of_warps[which][i] > maximum ? of_warps[which][i] : maximum;
        return maximum;
    }
};

// A CTA's tile of one operand.
struct Tile {
    int matrix, row0, k0, rows, ks;  // there are as many rows; as many elements along K are written
    float* scales;                   // of the first row
    u16* to;                         // its own first element of plane 0
};

template <bool mn_major>
DEVICE void split_quads(const F16PrepassParams& p, const F16Job& job, const Tile& at, Findings& findings,
                        u32 (*shared)[TILE_ROWS]) {
    using Own = Quads<mn_major>;
    constexpr int ROWS = mn_major ? 4 : Own::COUNT;
    Own own;
    own.load(job, at.matrix, at.row0, at.k0, at.rows, job.k - at.k0);
    u32 largest[ROWS];
    own.largest(largest, shared);
    float inverse[ROWS];
    const bool writes = mn_major ? own.first == 0 : own.across == 0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int exponent = findings.exponent(largest[i]), row = mn_major ? own.across + i : own.first + i * Own::APART;
        inverse[i] = power_of_two(-exponent);
        if (writes && row < at.rows) at.scales[row] = power_of_two(exponent);
    }
    if (findings.rejected(job)) return;
    findings.note(p, job, own.store(p, job, at.to, at.rows, at.ks, inverse));
}

DEVICE void split_through_shared(const F16PrepassParams& p, const F16Job& job, const Tile& at, Findings& findings,
                                 float (&tile)[TILE_ROWS][PITCH], float (&inverse)[TILE_ROWS]) {
    load_tile(job, at.matrix, at.row0, at.k0, tile);
    block_sync();
    const int exponent = findings.exponent(largest_of_row(tile));
    if (threadIdx.x % 4 == 0) {
        const int row = threadIdx.x / 4;
        inverse[row] = power_of_two(-exponent);
        if (row < at.rows) at.scales[row] = power_of_two(exponent);
    }
    if (findings.rejected(job)) return;
    findings.note(p, job, job.mn_major ? store_tile<true>(p, job, at.to, at.rows, at.ks, tile, inverse)
                                       : store_tile<false>(p, job, at.to, at.rows, at.ks, tile, inverse));
}

GLOBAL_KERNEL void __launch_bounds__(kNumThreads, 4) f16_prepass(const __grid_constant__ F16PrepassParams p) {
    SHARED_MEMORY float tile[TILE_ROWS][PITCH];
    SHARED_MEMORY float inverse[TILE_ROWS];  // of the rows' scales
    SHARED_MEMORY u32 of_rows[kNumThreads / 32][TILE_ROWS];
    SHARED_MEMORY u32 of_warps[2][kNumThreads / 32];
    const bool second = static_cast<int>(blockIdx.x) >= p.first_tiles;
    const F16Job& job = p.jobs[second];
    const int index = blockIdx.x - (second ? p.first_tiles : 0);
    const int tiles = job.tiles_rows * job.tiles_k, matrix = index / tiles, in_matrix = index - matrix * tiles;
    // Neighbouring CTAs read what is near in memory.
    const int tile_row = job.along_k ? in_matrix / job.tiles_k : in_matrix % job.tiles_rows;
    const int tile_k = job.along_k ? in_matrix % job.tiles_k : in_matrix / job.tiles_rows;
    const int row0 = tile_row * TILE_ROWS, k0 = tile_k * SCALE_GROUP_K;
    const Tile at = {
        matrix, row0, k0, job.rows - row0, job.wide_k - k0,
        job.scales + (static_cast<long long>(matrix) * job.tiles_k + tile_k) * job.scale_pitch + row0,
        job.to + matrix * kNumPlanes * job.to_plane + (job.mn_major ? k0 * job.to_ld + row0 : row0 * job.to_ld + k0),
    };
    const int groups = (job.rows + GROUP_ROWS - 1) / GROUP_ROWS;
    Findings findings{of_warps, job.marks + group_word(matrix * groups + row0 / GROUP_ROWS)};
    wait_on_dependent_grids();
    launch_dependent_grids();
    if (!job.quads)
        split_through_shared(p, job, at, findings, tile, inverse);
    else if (job.mn_major)
        split_quads<true>(p, job, at, findings, of_rows);
    else
        split_quads<false>(p, job, at, findings, of_rows);
}
