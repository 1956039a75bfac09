// The parameters of a launch besides the three tensor maps. gemmhub_hopper/launches/launch.py has the same structure.
#pragma once
#include "pdl.cuh"
#include "ptx.cuh"
#include "scales.cuh"

// A divisor as factors: the quotient of 0 <= x < 2^31 is 2 x * multiplier >> 32 >> shift. (Granlund and Montgomery,
// "Division by Invariant Integers using Multiplication", 1994.)
struct Divisor {
    u32 multiplier, shift;
};

// The order of work tiles (tile_scheduler.cuh). Nothing is loaded before the next work tile is known, and five divisions
// take about 600 cycles: so the host passes divisors as factors. gemmhub_hopper has the same structures in Python.
struct TileSchedule {
    int work_tiles;                        // matrix_tiles * splits * matrices of the batch
    int matrix_tiles;                      // tiles_m * tiles_n; of a symmetric product those that are computed
    int tiles_m, tiles_n;                  // cluster tiles of one matrix; of groups: along the divided dimension, and across
    int splits;                            // of K
    int group;                             // rows of cluster tiles in a group
    int k_blocks_per_split;                // blocks of BLOCK_K in the shorter splits; at least 1
    int longer_splits;                     // number of splits that have one block more
    Divisor tiles, splits_divisor;         // matrix_tiles; splits
    Divisor group_tiles, rows, last_rows;  // tiles of a group, its rows, and the rows of the last group
};

// Bits of Params::redo: a product by bfloat16 planes that computes only what float16 planes reject; and that each tile is
// rejected for itself (rejected_tiles.cuh), where else one group of rows rejects the whole product.
constexpr int ONLY_REJECTED = 1, BY_TILES = 2;

struct Params {
    int m, n;              // rows and columns of D
    int a_block, b_block;  // first blocks of K in the operands' maps
    TileSchedule schedule;
    int streamed;        // D need not stay in L2
    int a_step, b_step;  // 1; 0 where one matrix serves the whole batch
    int pairs;           // two neighbours of D may be stored at once (without TMA)
    float alpha, beta;
    void* d;
    const void* c;
    const void* bias;
    Float4* partials;  // partial sums of split-K
    u64* counters;     // split-K: one for each consumer warpgroup of a tile; 0 before and after (split_k.cuh)
    long long d_ld, d_batch;
    long long c_ld, c_batch;

    // Float32 emulation: the operands as they were before they were split, for elements that are recomputed (repair.cuh).
    // Addresses are those of the first element along K of this launch; strides are from one row of A (column of B) to the
    // next, along K, and along the batch.
    int k;
    int all;   // every element is recomputed
    int kept;  // bit 0 (1): the marks of A (B) are to be left as they are
    int next;  // PDL: when the next kernel may begin: STARTED, LOADED, SUMMED or else at the end
    const float *a, *b;
    long long a_m, a_k, a_batch;
    long long b_n, b_k, b_batch;
    u32 *a_marks, *b_marks;
    u32* finished;  // counts consumer warpgroups that are done; 0 before and after

    // Products by float16 planes (f16_planes.cuh): the scales of operands from the pre-pass, [matrix][group of K][row].
    const float *a_scales, *b_scales;
    int a_scale_pitch, b_scale_pitch;  // rows
    int scale_groups;                  // of K
    int a_source, b_source;          // source_element.cuh
    int small_limit;                   // of rejected()
    float min_scaled;  // the smallest scaled element that planes represent accurately, where A is split in registers
    int redo;          // bits: ONLY_REJECTED, BY_TILES
    int marked_groups[2];  // of few_rejected()

    Scales row_scales, column_scales;  // 8-bit operands: of A and of B

    // Results of 8-bit floats; null where there are none.
    const float* result_scale;  // multiplies them
    u32* largest;               // raised to the bits of their largest magnitude before that; 0 before the launch

    // Grouped products (group_cursor.cuh): the end of each group along the dimension that they divide.
    const int* ends;
    long long bias_group;  // elements from the bias of one group to that of the next; 0 where all share one
    int groups;
    int unused;

    // With kStoresBefore: the matrix of what the activation is applied to, in the order and of the type of D.
    void* before;
    long long before_ld, before_batch;
};
static_assert(sizeof(Params) == 488, "launch.py has the same structure");
