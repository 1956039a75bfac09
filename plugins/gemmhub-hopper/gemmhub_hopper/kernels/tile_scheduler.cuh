// Which piece of the product a cluster works on, and in which order pieces are given out.
//
// A piece is one cluster tile (kClusterM x kClusterN block tiles) of one matrix of the batch, over one part of k.
// Piece i goes to cluster i % clusters. Within a matrix, tiles are walked in groups of `group` rows of tiles: down the
// rows of a group, then to the next column. So blocks that run at the same time share tiles of A and of B in L2.
// Of a part, `ranks` blocks of a cluster may have a part each. Without `split` there is one.
#pragma once
#include "params.cuh"

struct WorkTile {
    int tile;         // number of the cluster tile in its matrix
    int row, column;  // of the cluster tile
    int split;
    int batch;
    int first_block;  // of k
    int blocks;       // of k; at least 1
};

// x / by, for 0 <= x < 2^31.
DEVICE int divided(int x, Divisor by) {
    return static_cast<u32>(static_cast<u64>(2u * x) * by.multiplier >> 32) >> by.shift;
}

template <int ranks, bool split>
DEVICE WorkTile work_tile_at(const TileSchedule& schedule, int index, int rank) {
    WorkTile work;
    const int outer = divided(index, schedule.tiles);
    work.tile = index - outer * schedule.tiles_m * schedule.tiles_n;
    work.batch = split ? divided(outer, schedule.parts) : outer;
    work.split = split ? outer - work.batch * schedule.splits : 0;

    const int group = divided(work.tile, schedule.group_tiles);
    const int first = group * schedule.group, rest = work.tile - first * schedule.tiles_n;
    const bool last = schedule.tiles_m - first < schedule.group;
    work.column = divided(rest, last ? schedule.last_rows : schedule.rows);
    work.row = first + rest - work.column * (last ? schedule.tiles_m - first : schedule.group);

    // The first parts have one block more.
    const int part = ranks * work.split + rank;
    work.first_block =
        part * schedule.k_blocks_per_split + (part < schedule.longer_splits ? part : schedule.longer_splits);
    work.blocks = schedule.k_blocks_per_split + (part < schedule.longer_splits ? 1 : 0);
    return work;
}
