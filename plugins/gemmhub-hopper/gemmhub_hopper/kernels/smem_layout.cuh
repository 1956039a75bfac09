// What lies where in a CTA's shared memory, in bytes. config.py adds up the same sizes.
#pragma once
#include "config.cuh"
#include "smem_desc.cuh"

// A stage: A's tile, then B's tile. Of an operand that is split into planes beforehand, a tile of each plane. A tile that
// consumers split, or load to registers, holds 32-bit elements; but one of shifted rows or columns (shifted_rows.cuh) holds
// those of the input, and an eighth more.
constexpr u32 kNumPlanesA = kRegistersA ? 1 : kNumPlanes;
constexpr u32 kNumPlanesB = kSplitPlanesB ? 1 : kNumPlanes;
constexpr u32 kElementBytesA = kRegistersA && !kShiftedRows ? 4 : kInputBytes;
constexpr u32 kElementBytesB = kSplitPlanesB ? 4 : kInputBytes;
constexpr u32 SHIFTED_ROW_BYTES = BLOCK_K_BYTES + 16;
constexpr u32 LINE_ROWS = 16 / kInputBytes;  // shifted rows of a line; and elements of 16 bytes
constexpr u32 SMEM_A_BYTES = kShifted      ? BLOCK_M * SHIFTED_ROW_BYTES
                             : kRegistersA ? BLOCK_M * BLOCK_K * kElementBytesA
                                           : tile_bytes(kMnMajorA, BLOCK_M);
constexpr u32 SMEM_B_BYTES = tile_bytes(kWgmmaMnMajorB, BLOCK_N);  // of one plane, as wgmma reads it
constexpr u32 SMEM_B_OFFSET = kNumPlanesA * SMEM_A_BYTES;          // in a stage
constexpr u32 LOAD_BLOCK_N =
    kMnMajorB ? (BLOCK_N + 31) / 32 * 32 : BLOCK_N;  // columns that are loaded, with kSplitPlanesB
constexpr u32 SMEM_STAGE_BYTES =
    SMEM_B_OFFSET + (kSplitPlanesB ? LOAD_BLOCK_N * BLOCK_K * kElementBytesB : kNumPlanes * SMEM_B_BYTES);
constexpr u32 kStepBytesA = step_bytes(kMnMajorA);  // from one K step of wgmma to the next
constexpr u32 kStepBytesB = step_bytes(kWgmmaMnMajorB);

// A staging buffer holds 64 rows x STORE_BLOCK_N columns of the tile. Transposed, it holds STORE_BLOCK_N rows of D with 64
// elements of M: of float32 in two boxes, 32 elements of M and then the others. TMA stores one box at a time, or warps do
// where it cannot. The last buffer of a tile may begin within the one before: what both have is stored twice.
constexpr u32 kNumStoreBlocks = (OUT_N + STORE_BLOCK_N - 1) / STORE_BLOCK_N;
constexpr u32 SMEM_STORE_BYTES = 64 * STORE_BLOCK_N * kOutputBytes;
constexpr u32 STORE_ROW_BYTES =  // of a row of the buffer
    !kTransposedD ? STORE_BLOCK_N * kOutputBytes : kFloat8Result ? 64 : 128;
constexpr u32 kNumStoreBoxes = kTransposedD && kOutputBytes == 4 ? 2 : 1;
constexpr u32 STORE_BOX_BYTES = SMEM_STORE_BYTES / kNumStoreBoxes;

// With kSymmetric the second staging buffer holds the transpose of the first: STORE_BLOCK_N rows of 64 elements, of float32 in
// two boxes.
constexpr u32 kNumMirrorBoxes = kOutputBytes == 4 ? 2 : 1, MIRROR_BOX_BYTES = SMEM_STORE_BYTES / kNumMirrorBoxes;

// Offsets from the 1024-aligned base of dynamic shared memory. What a variant does not use has no bytes.
constexpr u32 SMEM_PLANES_B_BYTES = kNumPlanes * SMEM_B_BYTES;  // of one of two sets of B's planes, with kSplitPlanesB
constexpr u32 SMEM_MARKS_BYTES = 16 * 4 * kWarpgroupsPerTile;   // a word for each warp of a tile, with kSplitPlanesB
constexpr u32 SMEM_PLANES_B_OFFSET = kNumStages * SMEM_STAGE_BYTES;
constexpr u32 SMEM_STORE_OFFSET = SMEM_PLANES_B_OFFSET + (kSplitPlanesB ? 2 * SMEM_PLANES_B_BYTES : 0);
constexpr u32 SMEM_MARKS_OFFSET = SMEM_STORE_OFFSET + kNumConsumers * kNumStoreStages * SMEM_STORE_BYTES;
// Of one of two buffers of a consumer warpgroup, with F16X3_INPUT and kScaled 2: the scales of its rows, then of the tile's
// columns.
constexpr u32 SMEM_SCALES_BYTES = 4 * (64 * kNumFragments + BLOCK_N);
constexpr u32 SMEM_SCALES_OFFSET = SMEM_MARKS_OFFSET + (kSplitPlanesB ? kClusterK * SMEM_MARKS_BYTES : 0);
constexpr u32 SMEM_FULL_OFFSET = SMEM_SCALES_OFFSET + (kInput == F16X3_INPUT || kScaled == 2 ? 2 * kNumConsumers * SMEM_SCALES_BYTES : 0);
constexpr u32 SMEM_EMPTY_OFFSET = SMEM_FULL_OFFSET + 8 * kNumStages;
constexpr u32 SMEM_SUM_OFFSET = SMEM_EMPTY_OFFSET + 8 * kNumStages;
constexpr u32 SMEM_ORDER_OFFSET = SMEM_SUM_OFFSET + (kClusterK > 1 ? 8 : 0);
constexpr u32 SMEM_LEAD_OFFSET = SMEM_ORDER_OFFSET + (kPingpong ? 8 * kNumConsumers : 0);
constexpr u32 SMEM_TURN_OFFSET = SMEM_LEAD_OFFSET + (kStaggered ? 8 : 0);
constexpr bool kSplitF16Rows = kInput == F16X3_INPUT && kRegistersA;  // f16_registers.cuh
constexpr u32 SMEM_STOP_OFFSET = SMEM_TURN_OFFSET + (kSplitF16Rows ? 16 : 0);
constexpr u32 SMEM_FLAG_OFFSET = SMEM_STOP_OFFSET + (kSplitF16Rows ? 4 * kNumStages : 0);  // a word for each consumer
constexpr u32 SMEM_END_OFFSET = SMEM_FLAG_OFFSET + 4 * kNumConsumers;

static_assert(SMEM_A_BYTES % 1024 == 0 && SMEM_B_BYTES % 1024 == 0 && STORE_BOX_BYTES % 1024 == 0,
              "swizzled boxes are aligned");
static_assert(kSharedBytes == SMEM_END_OFFSET + 1024, "config.py counts as this file does; 1024 to align the base");
