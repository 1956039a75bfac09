// The producer's TMA loads of one stage. In a cluster, CTAs beside each other share A's tile and CTAs below each other share
// B's tile: each of them loads its part of the shared tile and multicasts it to all.
#pragma once
#include "shifted_rows.cuh"
#include "bf16x3.cuh"
#include "tile_context.cuh"

// The CTAs of a cluster that receive what this CTA loads, as bit masks of ranks.
struct Multicast {
    u32 cta_rank;
    u32 mask_a, mask_b;

    DEVICE explicit Multicast(u32 cta_rank) : cta_rank(cta_rank) {
        const u32 first = rank_k(cta_rank) * kNumMulticast;  // of the CTAs that have the same part of K
        mask_a = row_mask() << first + rank_m(cta_rank);
        mask_b = (1u << kClusterM) - 1 << first + rank_n(cta_rank) * kClusterM;
    }

    // One CTA of each column of the cluster's CTAs: kClusterN bits, kClusterM apart.
    DEVICE static constexpr u32 row_mask() {
        u32 mask = 0;
        for (u32 column = 0; column < kClusterN; ++column) mask |= 1u << column * kClusterM;
        return mask;
    }
};

// One operand's tile: `rows` elements of `size` bytes along M (N) from `first` on, and a stage's elements along K from `k` on.
// `parts` CTAs, those in the bit mask `receivers`, share it; this CTA loads part number `part` for all of them.
template <bool mn_major, u32 rows, u32 size, u32 parts>
DEVICE void load_tile(const TensorMap* map, u32 to, int first, int k, int z, u32 barrier, u32 part,
                      u32 receivers) {
    if constexpr (mn_major) {
        constexpr u32 wide = MN_ROW_BYTES / size, deep = BLOCK_K / parts;  // elements of a box along M (N) and K
#pragma unroll
        for (u32 box = 0; box < (rows + wide - 1) / wide; ++box) {
            const u32 address = to + (box * BLOCK_K + part * deep) * MN_ROW_BYTES;
            const int x = first + wide * box, y = k + part * deep;
            if constexpr (parts > 1)
                tma_load_multicast(address, map, x, y, z, barrier, receivers);
            else
                tma_load(address, map, x, y, z, barrier);
        }
    } else {
        constexpr u32 high = rows / parts;
        const u32 address = to + part * high * BLOCK_K * size;
        const int x = k, y = first + part * high;
        if constexpr (parts > 1)
            tma_load_multicast(address, map, x, y, z, barrier, receivers);
        else
            tma_load(address, map, x, y, z, barrier);
    }
}

// B's tile of plane or matrix `z`, for columns of D from `n` on. With HALVES it is two tiles: columns of gates, then columns of ups.
DEVICE void load_b(const Params& p, const TensorMap* map, u32 to, int n, int k, int z, u32 barrier, const Multicast& receivers) {
    constexpr u32 PARTS = kGate == HALVES ? 2 : 1, WIDTH = BLOCK_N / PARTS;
    const int first = kGate == NEIGHBOURS ? 2 * n : n;
#pragma unroll
    for (u32 part = 0; part < PARTS; ++part)
        load_tile<kMnMajorB, WIDTH, kElementBytesB, kClusterM>(
            map, to + part * WIDTH * BLOCK_K * kElementBytesB, first + static_cast<int>(part) * p.n, k, z, barrier,
            rank_m(receivers.cta_rank), receivers.mask_b);
}

// The maps of both operands; `last_rows`: of A with kShifted, the rows (columns) that its last line has.
struct OperandMaps {
    const TensorMap *a, *b, *last_rows;
};

// A's tile where rows are shifted. `k`: of its first element.
DEVICE void load_shifted_rows(const Params& p, const OperandMaps& maps, u32 to, int m, int k, int z, u32 barrier) {
    const int last_rows = p.m % static_cast<int>(LINE_ROWS);
#pragma unroll 1
    for (int row = 0; row < static_cast<int>(LINE_ROWS); ++row) {
        const int begin = row * static_cast<int>(p.a_m);
        tma_load(to + row * SHIFTED_BOX_BYTES, row < last_rows ? maps.last_rows : maps.a,
                 begin - begin % static_cast<int>(LINE_ROWS) + k, m / static_cast<int>(LINE_ROWS), z, barrier);
    }
}

// A's tile where columns are shifted. `k`: of its first element, a multiple of BLOCK_K.
DEVICE void load_shifted_columns(const Params& p, const OperandMaps& maps, u32 to, int m, int k, int z, u32 barrier) {
    const int last_columns = p.k % static_cast<int>(LINE_ROWS);
#pragma unroll 1
    for (u32 box = 0; box < BLOCK_M / 64 * LINE_ROWS; ++box) {
        const int column = box % LINE_ROWS, begin = column * static_cast<int>(p.a_k);
        tma_load(to + box * SHIFTED_COLUMNS_BYTES, column < last_columns ? maps.last_rows : maps.a,
                 begin - begin % static_cast<int>(LINE_ROWS) + m + 64 * static_cast<int>(box / LINE_ROWS),
                 k / static_cast<int>(LINE_ROWS), z, barrier);
    }
}

// Both tiles of the stage at `stage`, for row `m` and column `n` of D and those after it: block number `block` of a work tile. An operand
// split into planes has a tile of each plane, with kBf16x3 of the one that is multiplied: a map's third coordinate is a
// matrix, or the planes of a matrix times the matrix plus the plane.
DEVICE void load_stage(const Params& p, const OperandMaps& maps, u32 stage, int m, int n, const WorkTile& work, int block,
                       u32 barrier, const Multicast& to) {
    constexpr int PLANES_A = kBf16x3 ? kStoredPlanes : kNumPlanesA, PLANES_B = kBf16x3 ? kStoredPlanes : kNumPlanesB;
    const PlaneProduct product = plane_product_of(block, work);
    const int begin = kDivided == DEPTH ? work.begin : 0;
    const int matrix_a = work.batch * p.a_step, matrix_b = work.batch * p.b_step;
#pragma unroll 1  // the producer has 40 registers
    for (u32 plane = 0; plane < kNumPlanes; ++plane) {
        const int k = begin + (product.k_block + p.a_block) * static_cast<int>(BLOCK_K);
        const int k_of_b = begin + (product.k_block + p.b_block) * static_cast<int>(BLOCK_K);
        if constexpr (kShiftedRows)
            load_shifted_rows(p, maps, stage, m, k, matrix_a, barrier);
        else if constexpr (kShiftedColumns)
            load_shifted_columns(p, maps, stage, m, k, matrix_a, barrier);
        else if (plane < kNumPlanesA)
            load_tile<kMnMajorA, BLOCK_M, kElementBytesA, kClusterN>(
                maps.a, stage + plane * SMEM_A_BYTES, m, k,
                matrix_a * PLANES_A + plane + product.a_plane, barrier, rank_n(to.cta_rank), to.mask_a);
        if (plane < kNumPlanesB)
            load_b(p, maps.b, stage + SMEM_B_OFFSET + plane * SMEM_B_BYTES, n, k_of_b,
                   matrix_b * PLANES_B + plane + product.b_plane, barrier, to);
    }
}
