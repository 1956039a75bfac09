// The parameters of a launch. gemmhub_cuda/launch.py has the same structure.
//
// A kernel computes d = activation(alpha * a b + beta * c + bias), a (m x k), b (k x n), c and d (m x n), for every
// matrix of a batch. d and c are always contiguous along n: a column-major result is computed as d^T = b^T a^T, with
// operands and sizes swapped on the host.
//
// Macros that every kernel is compiled with (gemmhub_cuda/variants/form.py):
//     A_M_MAJOR, B_N_MAJOR   1: contiguous along m (n); 0: contiguous along k
//     A_BYTES_ALIGNED,       alignment in bytes of every contiguous row, and of its length if rows are along m (n):
//     B_BYTES_ALIGNED        16, 8, 4, 2, or 1 of int8
//     INPUT, OUTPUT          0 bfloat16, 1 float16, 2 float32, 3 int8 (INPUT) or int32 (OUTPUT); INPUT 4 to 7: 8-bit floats,
//                            a e4m3 (4, 5) or e5m2 (6, 7), b e4m3 (4, 6) or e5m2 (5, 7)
//     SCALES                 quantization scales of a and b: 0 none, 1 factors of rows and columns, 2 of each 128 of k
//     SCALED                 1: alpha is used
//     ADDEND                 1: beta * c is added; c has the type of d
//     BIAS, BIAS_TYPE        0 none, 1 an element per row (m), 2 per column (n); its type as OUTPUT's
//     ACTIVATION             0 none; else a number of activations.cuh, which is generated
//     SPLIT                  1: split-K
// and those of its tile: TILE_M, TILE_N, TILE_K (elements), THREADS (of a CTA), and what else the kernel names.
//
// Grid: x = tiles_m * tiles_n * splits (tile.cuh), z = matrices of the batch; of batch.cu: any x.
#pragma once
#include "device.cuh"
#include "scales.cuh"

struct Params {
    int m, n, k;
    int splits;            // of split-K
    int tiles_m, tiles_n;  // of one matrix
    int group;             // rows of tiles walked together
    int batch;             // matrices
    float alpha, beta;
    const void *a, *b, *c;
    void* d;
    const void* bias;
    void* partials;      // of split-K: the sums of single splits
    unsigned* counters;  // of split-K: one for each tile; 0 before and after
    long long a_ld, b_ld, c_ld, d_ld;              // elements from a contiguous row to the next; 0 where there is one
    long long a_batch, b_batch, c_batch, d_batch;  // elements from matrix to matrix; 0 where one serves all
    Scales row_scales, column_scales;              // of a and of b
};
static_assert(sizeof(Params) == 240, "as the host has it");
