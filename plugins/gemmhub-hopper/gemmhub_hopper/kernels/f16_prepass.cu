// The pre-pass of float32 by float16 planes: splits up to two operands into scaled planes (f16_planes.cuh), in one launch.
//
// A CTA takes TILE_ROWS rows (along M or N) and one scale group of K. An operand is read with any strides and address; its
// planes are contiguous along K, or with `mn_major` along M (N). Reads and writes are each coalesced along their own
// direction: the tile goes through shared memory between them.
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
};

struct F16PrepassParams {
    F16Job jobs[2];
    int first_tiles;  // of the first job
    float residual, share;
};
static_assert(sizeof(F16PrepassParams) == 224, "f16_prepass.py has the same structure");

// Of both directions of the tile, element i of this thread: neighbouring lanes along the direction that is contiguous.
struct Position {
    int row, k;
};
DEVICE Position position(int i, bool along_k) {
    const int index = i * static_cast<int>(kNumThreads) + static_cast<int>(threadIdx.x);
    if (along_k) return {index / SCALE_GROUP_K, index % SCALE_GROUP_K};
    return {index % TILE_ROWS, index / TILE_ROWS};
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

GLOBAL_KERNEL void __launch_bounds__(kNumThreads) f16_prepass(const __grid_constant__ F16PrepassParams p) {
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
    constexpr int EACH = TILE_ROWS * SCALE_GROUP_K / kNumThreads;
    wait_on_dependent_grids();
    launch_dependent_grids();

    const float* from = job.from + matrix * job.from_batch + row0 * job.from_row + k0 * job.from_k;
#pragma unroll 16
    for (int i = 0; i < EACH; ++i) {
        const Position at = position(i, job.along_k);
        const bool there = row0 + at.row < job.rows && k0 + at.k < job.k;
        tile[at.row][at.k] = there ? from[at.row * job.from_row + at.k * job.from_k] : 0.0f;
    }
    block_sync();
    const u32 largest = largest_of_row(tile);
    const u32 warp_largest = largest_of_lanes<32>(largest < 0x7f800000 ? largest : 0);
    if (threadIdx.x % 32 == 0) raise_to(job.marks + LARGEST_WORD, warp_largest >> 23);
    bool accurate = largest < static_cast<u32>(LARGEST_EXPONENT + 1 + 127) << 23;
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

    // Two neighbours of a plane at a time.
    u16* to = job.to + matrix * kNumPlanes * job.to_plane;
#pragma unroll 8
    for (int i = 0; i < EACH / 2; ++i) {
        const int index = i * static_cast<int>(kNumThreads) + static_cast<int>(threadIdx.x);
        int row, k;
        if (job.mn_major)
            row = index % (TILE_ROWS / 2) * 2, k = index / (TILE_ROWS / 2);
        else
            row = index / (SCALE_GROUP_K / 2), k = index % (SCALE_GROUP_K / 2) * 2;
        if (row0 + row >= job.rows || k0 + k >= job.wide_k) continue;
        const int next_row = row + (job.mn_major ? 1 : 0), next_k = k + (job.mn_major ? 0 : 1);
        const F16Planes low = split_f16(tile[row][k] * inverse[row], p.residual, p.share, accurate);
        const F16Planes high = split_f16(tile[next_row][next_k] * inverse[next_row], p.residual, p.share, accurate);
        const long long at = job.mn_major ? (k0 + k) * job.to_ld + row0 + row : (row0 + row) * job.to_ld + k0 + k;
#pragma unroll
        for (u32 plane = 0; plane < kNumPlanes; ++plane)  // rows of planes begin at multiples of 16 bytes and have room
            *reinterpret_cast<u32*>(to + plane * job.to_plane + at) = low.plane[plane] | u32(high.plane[plane]) << 16;
    }
    if (block_or(accurate ? 0 : 1) != 0 && threadIdx.x == 0) mark(job.marks, REJECTED);
}
