// Where a consumer thread stands, and which elements of D are its own: what the main loop, the reductions and the epilogue
// need to know besides the work tile.
#pragma once
#include "pipeline.cuh"
#include "smem_layout.cuh"
#include "group_cursor.cuh"

using Pipeline = PipelineState<kNumStages>;

// Rank of a CTA among those of its cluster below each other, beside each other, and sharing K.
DEVICE u32 rank_m(u32 rank) { return rank % kClusterM; }
DEVICE u32 rank_n(u32 rank) { return rank / kClusterM % kClusterN; }
DEVICE u32 rank_k(u32 rank) { return rank / kNumMulticast; }

struct TileContext {
    u32 smem;       // 1024-aligned base of dynamic shared memory
    u32 cta_rank;   // in the cluster
    u32 warpgroup;  // among the consumers of the CTA
    u32 warp;       // in the warpgroup
    u32 lane;

    // Which part of a tile's rows the warpgroup has, of kWarpgroupsPerTile.
    DEVICE u32 tile_part() const { return kPingpong ? 0 : warpgroup; }

    DEVICE u32 full_barrier(u32 stage) const { return smem + SMEM_FULL_OFFSET + 8 * stage; }
    DEVICE u32 stage_address(u32 stage) const { return smem + stage * SMEM_STAGE_BYTES; }

    // This warp has read the stage for the last time.
    DEVICE void release(u32 stage) const {
        const u32 empty = smem + SMEM_EMPTY_OFFSET + 8 * stage;
        if constexpr (kNumMulticast > 1) {
            if (lane < kNumMulticast)
                barrier_arrive_cluster(empty, cluster_rank() / kNumMulticast * kNumMulticast + lane);
        } else {
            if (lane == 0) barrier_arrive(empty);
        }
    }
};

// The row of D, of 64, that is row `row` of wgmma's fragment where rows are shifted: the eight rows that a warp loads at once
// are in lines below each other, and a thread's two rows are neighbours.
DEVICE u32 shifted_row(u32 row) {
    return row / (8 * LINE_ROWS) * (8 * LINE_ROWS) + row % 8 * LINE_ROWS + row / 8 % LINE_ROWS;
}

// The rows of D that a thread has in a fragment of 64: this one, and the one that is kRowsApart below it.
constexpr int kRowsApart = kShiftedRows ? 1 : 8;
DEVICE u32 fragment_row(u32 warp, u32 lane) {
    const u32 row = 16 * warp + lane / 4;
    return kShiftedRows ? shifted_row(row) : row;
}

// First row and column of a CTA's tile in D; without a gate in A and B, too.
DEVICE int tile_row(const WorkTile& work, u32 rank) {
    if constexpr (kDivided == ROWS) return work.begin + rank_m(rank) * BLOCK_M;
    return (work.m_tile * kClusterM + rank_m(rank)) * BLOCK_M;
}
DEVICE int tile_column(const WorkTile& work, u32 rank) {
    if constexpr (kDivided == COLUMNS) return work.begin + rank_n(rank) * BLOCK_N;
    return (work.n_tile * kClusterN + rank_n(rank)) * TILE_N;
}

// Coordinates in D of a consumer warpgroup's rows of a tile, and of this thread's first element.
struct TileCoord {
    int row;            // this thread's first row in the first fragment of 64 rows
    int column;         // its first column; with NEIGHBOURS that of the product
    int row0, column0;  // the warpgroup's first row and column
    int batch;  // matrix of D
    int group;  // of bias and quantization scales: the batch, or the group
    int begin;  // of the group's elements of K, with DEPTH
    int end;    // of the group's rows, columns or elements of K

    DEVICE TileCoord(const WorkTile& work, TileContext ctx) {
        row0 = tile_row(work, ctx.cta_rank) + ctx.tile_part() * kNumFragments * 64;
        column0 = tile_column(work, ctx.cta_rank) + rank_k(ctx.cta_rank) * OUT_N;
        row = row0 + fragment_row(ctx.warp, ctx.lane);
        column = (kGate == NEIGHBOURS ? 2 : 1) * column0 + 2 * (ctx.lane % 4);
        batch = kWalksGroups ? 0 : work.batch;
        group = work.batch;
        begin = kDivided == DEPTH ? work.begin : 0;
        end = kDivided != NO_GROUPS ? work.end : 0;
    }

    // Where the rows and columns of D end that the tile may write.
    DEVICE int rows_end(const Params& p) const { return kDivided == ROWS ? end : p.m; }
    DEVICE int columns_end(const Params& p) const { return kDivided == COLUMNS ? end : p.n; }

    // Whether all of the warpgroup's part of the tile belongs to its group.
    DEVICE bool inside_group() const {
        const int behind = kDivided == ROWS ? row0 + 64 * static_cast<int>(kNumFragments) : column0 + static_cast<int>(BLOCK_N);
        return !kWalksGroups || behind <= end;
    }
};
