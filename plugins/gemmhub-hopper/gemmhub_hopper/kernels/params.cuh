// What a launch tells the kernel besides the three tensor maps. gemmhub_hopper/launch.py has the same structure.
#pragma once
#include "ptx.cuh"

struct Params {
    int m, n;
    int k_blocks;          // of 128 bytes; at least 1
    int splits;            // parts of k; at most k_blocks
    int tiles_m, tiles_n;  // cluster tiles of one matrix
    int pieces;            // tiles_m * tiles_n * splits * matrices of the batch
    int group;             // rows (columns) of cluster tiles walked together
    int along_n;           // groups are of columns
    int a_step, b_step;    // 1; 0 where one matrix serves the whole batch
    int pairs;             // two neighbours of d may be stored at once (without TMA)
    float alpha, beta;
    void* d;
    const void* c;
    const void* bias;
    Float4* partials;  // of split k
    u32* counters;     // one for each consumer warpgroup of each block tile; 0 before and after
    long long d_ld, d_batch;
    long long c_ld, c_batch;
};
