// What a launch tells the kernel besides the three tensor maps. gemmhub_hopper/launch.py has the same structure.
#pragma once
#include "pdl.cuh"
#include "ptx.cuh"

// What to divide by, as factors: the quotient of 0 <= x < 2^31 is 2 x * multiplier >> 32 >> shift. (Granlund and
// Montgomery, "Division by Invariant Integers using Multiplication", 1994.)
struct Divisor {
    u32 multiplier, shift;
};

// How tile_scheduler.cuh walks a product. Nothing is loaded before it is known which piece is the next, and five divisions
// take some 600 cycles: so what it divides by is told as factors. tile_schedule.py has the same structures.
struct TileSchedule {
    int work_tiles;                        // tiles_m * tiles_n * splits * matrices of the batch
    int tiles_m, tiles_n;                  // cluster tiles of one matrix
    int splits;                            // parts of k
    int group;                             // rows of cluster tiles walked together
    int k_blocks_per_split;                // of BLOCK_K, in the shorter parts of k; at least 1
    int longer_splits;                     // parts that have one more
    Divisor tiles, parts;                  // tiles of a matrix, parts of k
    Divisor group_tiles, rows, last_rows;  // tiles of a group, its rows, and those of the last one
};

struct Params {
    int m, n;
    int a_block, b_block;  // of the operands' maps at which they begin
    TileSchedule schedule;
    int streamed;        // results need not stay in L2
    int a_step, b_step;  // 1; 0 where one matrix serves the whole batch
    int pairs;           // two neighbours of d may be stored at once (without TMA)
    float alpha, beta;
    void* d;
    const void* c;
    const void* bias;
    Float4* partials;  // of split k
    u64* counters;     // one for each of kWarpgroupsPerTile shares of a block tile; 0 before and after (split_k.cuh)
    long long d_ld, d_batch;
    long long c_ld, c_batch;

    // Of split operands, for elements that are computed anew (repair.cuh): the operands that were split, at their k
    // number 0 of this launch; elements from one row of a (column of b) to the next, along k, along the batch.
    int k;
    int all;   // every element is computed anew
    int kept;  // bit 0 (1): a's (b's) marks are to be left as they are
    int next;  // when the next kernel may begin: LOADED, SUMMED or else at the end
    const float *a, *b;
    long long a_m, a_k, a_batch;
    long long b_n, b_k, b_batch;
    u32 *a_marks, *b_marks;
    u32* finished;  // counts consumer warpgroups that are done; 0 before and after
};
static_assert(sizeof(Params) == 288, "launch.py has the same structure");
