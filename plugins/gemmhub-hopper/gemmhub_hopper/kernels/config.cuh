// The configuration of one kernel variant.
//
// Macros with the prefix GEMM_ are defined by variants/config.py. This file turns each of them into a
// constant; no other file reads them, but for the attribute of clusters in cluster.cuh. What follows from the constants
// stands beside them; offsets in shared memory are in smem_layout.cuh.
#pragma once
#include "ptx.cuh"
#include "types.cuh"

// Tile of a CTA: BLOCK_M is a multiple of 64 kWarpgroupsPerTile, BLOCK_N a multiple of 16 up to 256.
constexpr u32 BLOCK_M = GEMM_BLOCK_M;
constexpr u32 BLOCK_N = GEMM_BLOCK_N;
constexpr u32 kNumStages = GEMM_NUM_STAGES;        // of the ring between producer and consumers; at least 2
constexpr u32 kNumConsumers = GEMM_NUM_CONSUMERS;  // consumer warpgroups: 1 or 2
constexpr bool kPingpong = GEMM_PINGPONG;  // each of two consumers has a tile of its own; else all share one tile
// CTAs of a cluster: kClusterM x kClusterN tiles below and beside each other, and kClusterK CTAs that share the K of each
// tile (1, 2, 4 or 8).
constexpr u32 kClusterM = GEMM_CLUSTER_M;
constexpr u32 kClusterN = GEMM_CLUSTER_N;
constexpr u32 kClusterK = GEMM_CLUSTER_K;

// What the tensor cores multiply. SPLIT is float32 emulated by three planes of bfloat16 (emulation.cuh), F16X3 by two scaled
// planes of float16 (f16_emulation.cuh). BF16X3 is float32 to 16 bits, by two planes of bfloat16 (bf16x3.cuh). Then A by B of
// 8 bits (eight_bit.cuh).
enum Input {
    BF16_INPUT = 0,
    F16_INPUT = 1,
    TF32_INPUT = 2,
    SPLIT_INPUT = 3,
    F16X3_INPUT = 4,
    BF16X3_INPUT = 5,
    E4M3_E4M3_INPUT = 6,
    E4M3_E5M2_INPUT = 7,
    E5M2_E4M3_INPUT = 8,
    E5M2_E5M2_INPUT = 9,
    S8_S8_INPUT = 10
};
constexpr int kInput = GEMM_INPUT;
constexpr bool kMnMajorA = GEMM_MN_MAJOR_A;  // contiguous along M; else along K
constexpr bool kMnMajorB = GEMM_MN_MAJOR_B;  // contiguous along N; else along K
// A goes through registers ("RS" wgmma): tf32 that is contiguous along M, or float32 that consumers split (fragments.cuh);
// or 16-bit or tf32 elements in rows that TMA cannot take as they are (shifted_rows.cuh).
constexpr bool kRegistersA = GEMM_REGISTERS_A;
constexpr bool kRescaled = GEMM_RESCALED;  // rescale A while splitting: its or B's split into float16 was out of range
constexpr bool kSplitPlanesB =
    GEMM_SPLIT_PLANES_B;  // B is float32, and consumers split it in shared memory (b_planes.cuh)

// tf32 that is contiguous along M, in columns that TMA cannot take as they are (shifted_rows.cuh).
constexpr bool kShiftedColumns = GEMM_SHIFTED_COLUMNS;

// Element types of D, C and the bias: 0 bfloat16, 1 float16, 2 float32; of D alone 3, the int32 sums themselves, 4 e4m3 and
// 5 e5m2.
constexpr int kOutput = GEMM_OUTPUT;
constexpr bool kTransposedD = GEMM_TRANSPOSED_D;  // D and C are contiguous along M; else along N
constexpr bool kTmaStore = GEMM_TMA_STORE;        // TMA stores D from shared memory; else warps do
// Columns of the tile that one staging buffer holds: 16, 32 or 64, at most OUT_N and at most 128 bytes.
constexpr u32 STORE_BLOCK_N = GEMM_STORE_BLOCK_N;
constexpr u32 kNumStoreStages = GEMM_NUM_STORE_STAGES;  // staging buffers of a consumer warpgroup
constexpr bool kSplitK = GEMM_SPLIT_K;  // K may be split among CTAs, which add through memory (split_k.cuh)
// Quantization scales: 0 none, 1 factors of rows and columns in the epilogue, 2 factors of each block of K.
constexpr int kScaled = GEMM_SCALED;
constexpr bool kHasAddend = GEMM_HAS_ADDEND;  // beta * c is added
constexpr int kAddendType = GEMM_ADDEND_TYPE;
constexpr int kBias = GEMM_BIAS;  // 0 none, 1 an element per row (M), 2 an element per column (N)
constexpr int kBiasType = GEMM_BIAS_TYPE;
constexpr int kActivation = GEMM_ACTIVATION;     // 0 none; else a number of activations.cuh
// Where the two columns of the product are of which D has one, activation(gate) * up: gates are the first half of the columns,
// or the first of each two neighbours.
enum Gate { UNGATED = 0, HALVES = 1, NEIGHBOURS = 2 };
constexpr int kGate = GEMM_GATE;
constexpr bool kStoresBefore = GEMM_STORES_BEFORE;  // what the activation is applied to is stored, too
// The dimension that groups of rows, columns or elements of K divide (group_cursor.cuh).
enum Divided { NO_GROUPS = 0, ROWS = 1, COLUMNS = 2, DEPTH = 3 };
constexpr int kDivided = GEMM_DIVIDED;
// D is symmetric: the elements at and below the diagonal are computed, and stored above it as well (mirror.cuh).
constexpr bool kSymmetric = GEMM_SYMMETRIC;
constexpr u32 kSharedBytes = GEMM_SHARED_BYTES;  // dynamic shared memory of a launch

constexpr u32 kNumMulticast = kClusterM * kClusterN;  // CTAs that multicast to each other
constexpr u32 kClusterSize = kNumMulticast * kClusterK;
constexpr u32 kNumThreads = 128 * (1 + kNumConsumers);
constexpr u32 kWarpgroupsPerTile =
    kPingpong ? 1 : kNumConsumers;  // consumer warpgroups that share a tile and read a stage
constexpr u32 kNumFragments = BLOCK_M / (64 * kWarpgroupsPerTile);  // 64-row fragments, a wgmma each, of a warpgroup
constexpr u32 kNumPlanes = kInput == SPLIT_INPUT ? 3 : kInput == F16X3_INPUT ? 2 : 1;
constexpr bool kBf16x3 = kInput == BF16X3_INPUT;
constexpr bool kShiftedRows =
    kRegistersA && (kInput == BF16_INPUT || kInput == F16_INPUT || (kInput == TF32_INPUT && !kMnMajorA));
constexpr bool kShifted = kShiftedRows || kShiftedColumns;
constexpr u32 BLOCK_K_BYTES = kNumPlanes > 1 ? 64 : 128;                 // of K in a stage, of each plane
constexpr bool kFloat8 = kInput >= E4M3_E4M3_INPUT && kInput <= E5M2_E5M2_INPUT;
constexpr bool kInt8 = kInput == S8_S8_INPUT;
constexpr u32 kInputBytes = kFloat8 || kInt8 ? 1 : kInput == TF32_INPUT ? 4 : 2;  // of an element that is multiplied
constexpr u32 BLOCK_K = BLOCK_K_BYTES / kInputBytes;                     // elements of K in a stage
constexpr u32 kNumKSteps = BLOCK_K_BYTES / 32;                           // of wgmma in a stage
constexpr bool kWgmmaMnMajorB = kMnMajorB && !kSplitPlanesB;             // as wgmma reads B
constexpr bool kFloat8Result = kOutput >= 4;
constexpr u32 kOutputBytes = kFloat8Result ? 1 : kOutput >= 2 ? 4 : 2;
// Consumer 1 follows consumer 0 (f16_emulation.cuh).
constexpr bool kStaggered = ((kInput == F16X3_INPUT && !kRegistersA) || kFloat8) && kNumConsumers == 2;
constexpr bool kRepairs = kInput == SPLIT_INPUT;  // elements may be recomputed (repair.cuh)

// Columns of a tile that a CTA has sums of: all, or with kClusterK a slice. Stores take multiples of 16 columns: where
// there are too few for all CTAs, the first kNumSlices CTAs have one slice each.
DEVICE constexpr u32 num_slices() {
    u32 count = kClusterK;
    while (count > 1 && BLOCK_N % (16 * count)) count /= 2;
    return count;
}
constexpr u32 kNumSlices = num_slices();
constexpr u32 SUM_N = BLOCK_N / kNumSlices;
constexpr u32 kArity = kGate == UNGATED ? 1 : 2;  // columns of the product for each column of D
constexpr u32 TILE_N = BLOCK_N / kArity;          // columns of D of a tile
constexpr u32 OUT_N = SUM_N / kArity;             // columns of D that a CTA has

// Accumulators of a thread: fragments of 64 rows, and what is left of them after a reduction across a cluster.
using Sum = Select<kInt8, int, float>;
using Accumulators = Sum[kNumFragments][BLOCK_N / 2];
using Results = Sum[kNumFragments][SUM_N / 2];

// Behind a declaration of accumulators that the first wgmma writes. Before CUDA 13 ptxas takes those without a value for
// defined within the loop, and serialises wgmma.
#if __CUDACC_VER_MAJOR__ < 13
#define WRITTEN_BY_WGMMA = {}
#else
#define WRITTEN_BY_WGMMA
#endif

static_assert(BLOCK_M % (64 * kWarpgroupsPerTile) == 0, "a consumer warpgroup takes whole fragments of 64 rows");
static_assert(BLOCK_N % 16 == 0 && BLOCK_N <= 256, "the columns of one wgmma, in whole units of 16 of a store block");
static_assert(STORE_BLOCK_N % 16 == 0 && STORE_BLOCK_N <= OUT_N && STORE_BLOCK_N * kOutputBytes <= 128,
              "a row of TMA's box");
static_assert(!kHasAddend || OUT_N % STORE_BLOCK_N == 0,
              "c may lie where d does: what was stored must not be added again");
static_assert(kNumStages >= 2, "the stage before the one in use is released");
static_assert(kClusterSize <= 8, "the largest cluster that every card takes");
static_assert(kClusterK == 1 || kSplitPlanesB || (!kPingpong && !kSplitK && kNumPlanes == 1), "not implemented");
static_assert(!kSplitPlanesB || (kInput == SPLIT_INPUT && kRegistersA && kNumMulticast == 1), "not implemented");
static_assert(!kRescaled || (kInput == SPLIT_INPUT && kRegistersA && !kSplitPlanesB && !kSplitK), "not implemented");
static_assert(kNumConsumers <= 2, "there are registers for no more");
static_assert(!kPingpong || (kNumConsumers == 2 && kNumPlanes == 1), "not implemented");
static_assert(kInput != TF32_INPUT || ((!kMnMajorA || kRegistersA) && !kMnMajorB),
              "wgmma reads tf32 from shared memory only where it is contiguous along K");
static_assert(!(kFloat8 || kInt8) || !(kMnMajorA || kMnMajorB || kRegistersA),
              "wgmma reads 8-bit operands from shared memory only where they are contiguous along K");
static_assert(!kFloat8 || !kPingpong, "not implemented");
static_assert(kScaled == 0 || kFloat8 || kInt8, "not implemented");
static_assert(kScaled != 2 || kFloat8, "int32 sums are not promoted");
static_assert(kOutput != 3 || (kInt8 && kScaled == 0 && !kHasAddend && kBias == 0 && kActivation == 0),
              "int32 results are the sums themselves");
static_assert(kGate == UNGATED || !(kHasAddend || kClusterK > 1 || kRegistersA || kNumPlanes > 1 || kDivided == COLUMNS),
              "not implemented");
static_assert(!kStoresBefore || (kGate == UNGATED && kOutput != 3 && kDivided == NO_GROUPS), "not implemented");
static_assert(kGate != HALVES || !kMnMajorB || BLOCK_N % 128 == 0, "each half of the tile consists of whole TMA boxes");
static_assert(kDivided == NO_GROUPS || !(kSplitK || kClusterK > 1 || kShifted || kBf16x3 ||
                                         (kNumPlanes > 1 && !kSplitPlanesB)),
              "not implemented");
static_assert(kDivided == NO_GROUPS || kDivided == DEPTH || !(kDivided == ROWS ? kMnMajorA : kMnMajorB),
              "TMA reads a box from any row on, not from any element of a row on");
static_assert(!kShifted || (!kTmaStore && kClusterN == 1 && kClusterK == 1), "not implemented");
static_assert(!kSymmetric || !(kTransposedD || kShifted || kDivided != NO_GROUPS || kFloat8 || kInt8), "not implemented");
static_assert(!kSymmetric || (kBias == 0 && kActivation == 0), "D would not be symmetric, or is not checked to be");
static_assert(!kSymmetric || kNumStoreStages == 2, "one staging buffer is for what is stored above the diagonal");
static_assert(!kShiftedRows || !kMnMajorA, "not implemented");
static_assert(!kShiftedColumns || (kInput == TF32_INPUT && kMnMajorA && kRegistersA), "not implemented");
