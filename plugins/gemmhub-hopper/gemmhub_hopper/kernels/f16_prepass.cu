// The pre-pass of float32 by float16 planes: splits up to two operands into scaled planes (f16_planes.cuh), in one launch.
//
// A CTA takes TILE_ROWS rows (along M or N) and one scale group of K. An operand is read with any strides and address; its
// planes are contiguous along K, or with `mn_major` along M (N). Reads and writes are each coalesced along their own
// direction: the tile goes through shared memory between them.
#include "source_element.cuh"
#include "f16_planes.cuh"
#include "types.cuh"

constexpr int TILE_ROWS = 64;
constexpr u32 kNumThreads = 256;
constexpr u32 kNumPlanes = 2;
constexpr int PITCH = SCALE_GROUP_K + 1;  // floats of a row of the tile in shared memory: no bank conflicts either way

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
    int source_kind;
};

struct F16PrepassParams {
    F16Job jobs[2];
    int first_tiles;  // of the first job
    float residual, share;
};
static_assert(sizeof(F16PrepassParams) == 240, "f16_prepass.py has the same structure");

// The tile from memory, zeros behind its ends: neighbouring threads along the direction that is contiguous.
DEVICE void load_tile(const F16Job& job, int matrix, int row0, int k0, float (&tile)[TILE_ROWS][PITCH]) {
    constexpr int EACH = TILE_ROWS * SCALE_GROUP_K / kNumThreads;
    const int thread = threadIdx.x;
    // This thread's first element, and how far apart its elements are along the other direction.
    const int row = job.along_k ? thread / SCALE_GROUP_K : thread % TILE_ROWS;
    const int k = job.along_k ? thread % SCALE_GROUP_K : thread / TILE_ROWS;
    const int apart = kNumThreads / (job.along_k ? SCALE_GROUP_K : TILE_ROWS);
    const long long step = apart * (job.along_k ? job.from_row : job.from_k);
    const int to_step = apart * (job.along_k ? PITCH : 1);
    const int rows = job.rows - row0, ks = job.k - k0;
    const bool across = job.along_k ? k < ks : row < rows;
    const int count = !across ? 0 : job.along_k ? (rows - row + apart - 1) / apart : (ks - k + apart - 1) / apart;
    float* to = &tile[row][k];
    if (job.source_kind != REAL) {
        const void* from = source_matrix(job.from, matrix, job.from_batch, job.source_kind);
        for (int i = 0; i < EACH; ++i) {
            const int at_row = row0 + row + (job.along_k ? i * apart : 0), at_k = k0 + k + (job.along_k ? 0 : i * apart);
            to[i * to_step] =
                i < count ? source_element(from, at_row, at_k, job.from_row, job.from_k, job.source_kind) : 0.0f;
        }
        return;
    }
    const float* from = job.from + matrix * job.from_batch + (row0 + row) * job.from_row + (k0 + k) * job.from_k;
#pragma unroll 8
    for (int i = 0; i < EACH; ++i) to[i * to_step] = i < count ? from[i * step] : 0.0f;
}

// The largest of `count` neighbouring lanes.
template <u32 count>
DEVICE u32 largest_of_lanes(u32 largest) {
#pragma unroll
    for (u32 lanes = 1; lanes < count; lanes *= 2) {
        const u32 other = __float_as_uint(shuffle_xor(__uint_as_float(largest), lanes));
        largest = other > largest ? other : largest;
    }
    return largest;
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

GLOBAL_KERNEL void __launch_bounds__(kNumThreads, 6) f16_prepass(const __grid_constant__ F16PrepassParams p) {
    SHARED_MEMORY float tile[TILE_ROWS][PITCH];
    SHARED_MEMORY float inverse[TILE_ROWS];  // of the rows' scales
    const bool second = static_cast<int>(blockIdx.x) >= p.first_tiles;
    const F16Job& job = p.jobs[second];
    const int index = blockIdx.x - (second ? p.first_tiles : 0);
    const int tiles = job.tiles_rows * job.tiles_k, matrix = index / tiles, in_matrix = index - matrix * tiles;
    // Neighbouring CTAs read what is near in memory.
    const int tile_row = job.along_k ? in_matrix / job.tiles_k : in_matrix % job.tiles_rows;
    const int tile_k = job.along_k ? in_matrix % job.tiles_k : in_matrix / job.tiles_rows;
    const int row0 = tile_row * TILE_ROWS, k0 = tile_k * SCALE_GROUP_K;
    wait_on_dependent_grids();
    launch_dependent_grids();

    load_tile(job, matrix, row0, k0, tile);
    block_sync();
    const u32 largest = largest_of_row(tile);
    const u32 warp_largest = largest_of_lanes<32>(largest < 0x7f800000 ? largest : 0);
    if (threadIdx.x % 32 == 0) raise_to(job.marks + LARGEST_WORD, warp_largest >> 23);
    const bool accurate = largest < static_cast<u32>(LARGEST_EXPONENT + 1 + 127) << 23;
    const int exponent = scale_exponent(accurate ? largest : 0);
    if (threadIdx.x % 4 == 0) {
        const int row = threadIdx.x / 4;
        inverse[row] = power_of_two(-exponent);
        if (row0 + row < job.rows)
            job.scales[(static_cast<long long>(matrix) * job.tiles_k + tile_k) * job.scale_pitch + row0 + row] =
                power_of_two(exponent);
    }
    // Where another CTA has rejected the operand, its planes are not used.
    const bool rejected = threadIdx.x == 0 && (load_word(job.marks) & REJECTED) != 0;
    if (block_or(rejected ? 1 : 0) != 0) return;

    u16* to = job.to + matrix * kNumPlanes * job.to_plane;
    const int rows = job.rows - row0, ks = job.wide_k - k0;
    const SplitError error = job.mn_major
                                 ? store_tile<true>(p, job, to + k0 * job.to_ld + row0, rows, ks, tile, inverse)
                                 : store_tile<false>(p, job, to + row0 * job.to_ld + k0, rows, ks, tile, inverse);
    const u32 small = largest_of_lanes<32>(error.small());
    if (small != 0 && threadIdx.x % 32 == 0) raise_to(job.marks + SMALL_WORD, small);
    if (block_or(accurate && error.excess <= 0.0f ? 0 : 1) != 0 && threadIdx.x == 0) mark(job.marks, REJECTED);
}
