// The persistent tile scheduler: which work tile a cluster computes next.
//
// A work tile is one cluster tile (kClusterM x kClusterN tiles of CTAs) of one matrix of the batch, over one split of K.
// Work tile i goes to cluster i % clusters. Within a matrix, tiles are ordered in groups of `group` rows of tiles: down
// the rows of a group, then on to the next column. So CTAs that run at the same time read the same tiles of A and B from
// L2. With kClusterK, `ranks` CTAs of a cluster divide each split among them.
#pragma once
#include "params.cuh"

struct WorkTile {
    int tile;            // number of the cluster tile in its matrix
    int m_tile, n_tile;  // its row and column of cluster tiles
    int split;
    int batch;
    int first_k_block;
    int k_blocks;  // at least 1, but for a group without elements of K
    // Grouped products: the tile's first row (column, element of K) in the whole operand, and the end of its group.
    int begin, end;
};

// x / by, for 0 <= x < 2^31.
DEVICE int divided(int x, Divisor by) {
    return static_cast<u32>(static_cast<u64>(2u * x) * by.multiplier >> 32) >> by.shift;
}

template <int ranks, bool split_k>
DEVICE WorkTile work_tile_at(const TileSchedule& schedule, int index, int rank) {
    WorkTile work;
    const int outer = divided(index, schedule.tiles);
    work.tile = index - outer * schedule.tiles_m * schedule.tiles_n;
    work.batch = split_k ? divided(outer, schedule.splits_divisor) : outer;
    work.split = split_k ? outer - work.batch * schedule.splits : 0;

    const int group = divided(work.tile, schedule.group_tiles);
    const int first = group * schedule.group, rest = work.tile - first * schedule.tiles_n;
    const bool last = schedule.tiles_m - first < schedule.group;
    work.n_tile = divided(rest, last ? schedule.last_rows : schedule.rows);
    work.m_tile = first + rest - work.n_tile * (last ? schedule.tiles_m - first : schedule.group);

    // The first splits have one block of K more.
    const int part = ranks * work.split + rank;
    work.first_k_block =
        part * schedule.k_blocks_per_split + (part < schedule.longer_splits ? part : schedule.longer_splits);
    work.k_blocks = schedule.k_blocks_per_split + (part < schedule.longer_splits ? 1 : 0);
    return work;
}
