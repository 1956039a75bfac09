// What a variant is made of: macros given to the compiler by gemmhub_hopper/config.py, and what follows from them.
//
//     TILE_M, TILE_N           elements of a block tile; M a multiple of 64 SHARERS, N of 8, at most 256
//     STAGES                   of the ring, at least 2
//     CONSUMERS                consumer warpgroups: 1 to 3
//     PINGPONG                 1: each of two consumers has a tile of its own (turns.cuh); 0: all share one, one below
//                              the other
//     CLUSTER_M, CLUSTER_N     block tiles of a cluster below and beside each other; their product is at most 8
//     CLUSTER_K                blocks of a cluster that share each tile's k, 1, 2, 4 or 8 (cluster_sum.cuh)
//     A_MN, B_MN               1: neighbours along m (n) are neighbours in memory; 0: neighbours along k are
//     INPUT                    0 bfloat16, 1 float16, 2 tf32 (32 bits, k-major only), 3 float32 split into three
//                              planes of bfloat16 (split_planes.cuh)
//     A_REGISTERS              1: wgmma takes a from registers (fragments.cuh). So tf32 is m-major, and float32 is split
//                              on the way
//     B_SPLIT                  1: b comes as float32 too, and consumers split it in shared memory (b_planes.cuh)
//     OUTPUT                   0 bfloat16, 1 float16, 2 float32
//     TRANSPOSED               1: neighbours along m are neighbours in d (and c); 0: along n
//     TMA_STORE                1: d goes through shared memory and TMA; 0: stored from registers
//     CHUNK                    columns of the tile that a staging buffer holds: 16, 32 or 64, at most OUT_N of them, and
//                              128 bytes. With ADDEND they divide OUT_N
//     STAGING                  staging buffers of each consumer warpgroup, with TMA_STORE
//     SPLIT                    1: k may be split, its parts added up through memory
//     SCALED                   1: alpha is used
//     ADDEND, ADDEND_TYPE      1: beta * c is added; its type as OUTPUT's
//     BIAS, BIAS_TYPE          0 none, 1 an element per row of the tile (m), 2 per column (n); its type as OUTPUT's
//     ACTIVATION               0 none, 1 relu, 2 gelu (tanh form), 3 silu
//     SHARED_BYTES             dynamic shared memory of a launch
#pragma once
#include "smem_desc.cuh"

constexpr u32 SHARING = CLUSTER_M * CLUSTER_N;  // blocks that multicast to each other
constexpr u32 CLUSTER = SHARING * CLUSTER_K;
constexpr u32 THREADS = 128 * (1 + CONSUMERS);
constexpr u32 SHARERS = PINGPONG ? 1 : CONSUMERS;    // consumer warpgroups that share a tile, and read a stage
constexpr u32 M_BLOCKS = TILE_M / (64 * SHARERS);    // wgmmas, of 64 rows each, below each other in a warpgroup
constexpr u32 PLANES = INPUT == 3 ? 3 : 1;
constexpr u32 BLOCK_K = K_BYTES / (INPUT == 2 ? 4 : 2);  // elements of k in a stage
constexpr u32 K_STEPS = K_BYTES / 32;                    // of wgmma in a stage
constexpr u32 OUTPUT_BYTES = OUTPUT == 2 ? 4 : 2;

// The columns of a tile that a block has results of: all, or with CLUSTER_K a slice. Stores take multiples of 16: where
// there are too few for all blocks the first SLICES of them have one each.
DEVICE constexpr u32 slices() {
    u32 count = CLUSTER_K;
    while (count > 1 && TILE_N % (16 * count)) count /= 2;
    return count;
}
constexpr u32 SLICES = slices();
constexpr u32 OUT_N = TILE_N / SLICES;

// A stage: the planes of a's tile (with A_REGISTERS the tile itself, of 32-bit elements), then those of b's (with B_SPLIT
// the tile itself).
constexpr u32 A_PLANES = A_REGISTERS ? 1 : PLANES;
constexpr u32 B_PLANES = B_SPLIT ? 1 : PLANES;
constexpr u32 A_ELEMENT = A_REGISTERS || INPUT == 2 ? 4 : 2;  // bytes
constexpr u32 B_ELEMENT = B_SPLIT || INPUT == 2 ? 4 : 2;
constexpr u32 A_BYTES = A_REGISTERS ? TILE_M * BLOCK_K * A_ELEMENT : tile_bytes(A_MN, TILE_M);
constexpr bool B_READ_MN = B_MN && !B_SPLIT;  // as wgmma reads it
constexpr u32 B_BYTES = tile_bytes(B_READ_MN, TILE_N);
constexpr u32 B_AT = A_PLANES * A_BYTES;
constexpr u32 B_COLUMNS = B_MN ? (TILE_N + 31) / 32 * 32 : TILE_N;  // that are loaded, with B_SPLIT
constexpr u32 STAGE_BYTES = B_AT + (B_SPLIT ? B_COLUMNS * BLOCK_K * B_ELEMENT : PLANES * B_BYTES);
constexpr u32 A_STEP = step_bytes(A_MN);  // from one k step of wgmma to the next
constexpr u32 B_STEP = step_bytes(B_READ_MN);

// A staging buffer holds 64 rows x CHUNK columns of the tile; transposed, CHUNK rows of d with 64 elements of m: of
// float32 in two halves, 32 elements of m and then the others. TMA stores a box at a time: the buffer, or one half.
// The last chunk may begin within the one before: what both have is stored twice.
constexpr u32 CHUNKS = (OUT_N + CHUNK - 1) / CHUNK;
constexpr u32 CHUNK_BYTES = 64 * CHUNK * OUTPUT_BYTES;
constexpr u32 CHUNK_WIDTH = TRANSPOSED ? 128 : CHUNK * OUTPUT_BYTES;  // bytes of a row of the buffer
constexpr u32 BOXES = TRANSPOSED && OUTPUT == 2 ? 2 : 1;
constexpr u32 BOX_BYTES = CHUNK_BYTES / BOXES;

// Offsets from the 1024-aligned base of dynamic shared memory.
constexpr u32 SET_BYTES = PLANES * B_BYTES;  // of b's planes, with B_SPLIT
constexpr u32 SETS_AT = STAGES * STAGE_BYTES;
constexpr u32 STAGING_AT = SETS_AT + (B_SPLIT ? 2 * SET_BYTES : 0);
constexpr u32 MARKS_AT = STAGING_AT + (TMA_STORE ? CONSUMERS * STAGING * CHUNK_BYTES : 0);
constexpr u32 MARK_BYTES = 16 * 4 * SHARERS;  // of the marks that the consumers of a tile have found, with B_SPLIT
constexpr u32 FULL_AT = MARKS_AT + (B_SPLIT ? CLUSTER_K * MARK_BYTES : 0);
constexpr u32 EMPTY_AT = FULL_AT + 8 * STAGES;
constexpr u32 SUM_AT = EMPTY_AT + 8 * STAGES;
constexpr u32 TURN_AT = SUM_AT + (CLUSTER_K > 1 ? 8 : 0);
constexpr u32 LAST_AT = TURN_AT + (PINGPONG ? 8 * CONSUMERS : 0);  // a word for each consumer warpgroup
constexpr u32 END_AT = LAST_AT + 4 * CONSUMERS;

static_assert(TILE_M % (64 * SHARERS) == 0, "a consumer warpgroup takes whole blocks of 64 rows");
static_assert(TILE_N % 8 == 0 && TILE_N <= 256, "the columns of one wgmma");
static_assert(CHUNK % 16 == 0 && CHUNK <= OUT_N && CHUNK * OUTPUT_BYTES <= 128, "a row of TMA's box");
static_assert(!ADDEND || OUT_N % CHUNK == 0, "c may lie where d does: what was stored must not be added again");
static_assert(STAGES >= 2, "the stage before the one in use is released");
static_assert(CLUSTER <= 8, "the largest that every card takes");
static_assert(CLUSTER_K == 1 || B_SPLIT || (!PINGPONG && !SPLIT && INPUT != 3), "not written for others");
static_assert(!B_SPLIT || (INPUT == 3 && A_REGISTERS && SHARING == 1), "not written for others");
static_assert(CONSUMERS <= 2 || (CONSUMERS == 3 && INPUT != 3 && !A_REGISTERS), "there are registers for no more");
static_assert(!PINGPONG || (CONSUMERS == 2 && INPUT != 3), "not written for others");
static_assert(INPUT != 2 || (A_MN == A_REGISTERS && !B_MN), "wgmma takes k-major tf32 only, but from registers");
static_assert(!A_REGISTERS || INPUT >= 2, "16-bit elements are read where they lie");
static_assert(A_BYTES % 1024 == 0 && B_BYTES % 1024 == 0 && BOX_BYTES % 1024 == 0, "swizzled slabs are aligned");
static_assert(SHARED_BYTES == END_AT + 1024, "config.py counts as this file does; 1024 to align the base");
