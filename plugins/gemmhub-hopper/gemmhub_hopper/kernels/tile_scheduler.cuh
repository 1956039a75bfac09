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

// The greatest common divisor.
DEVICE constexpr int greatest_divisor(int x, int y) {
    while (x != y) (x > y ? x : y) -= x > y ? y : x;
    return x;
}

// The cluster tiles of a symmetric product that have elements at or below the diagonal, of `height` x `width` elements.
//
// Bands of `group` rows of tiles, a multiple of ROWS: in units of ROWS rows and COLUMNS columns, which are as high as they
// are wide, the matrix is square. A band has a rectangle of whole units, walked as a group of other products is; then, row by
// row, the tiles of the units that the diagonal crosses.
template <int height, int width>
struct Triangle {
    static constexpr int UNIT = greatest_divisor(height, width), ROWS = width / UNIT, COLUMNS = height / UNIT;
    static constexpr int DIAGONAL = (COLUMNS * (ROWS + 1) + ROWS - 1) / 2;  // tiles of a unit that the diagonal crosses

    // Tiles above unit `unit` of rows; fewer than 2^32 for one behind that of a tile.
    DEVICE static u32 before(u32 unit) {
        return unit * DIAGONAL + ROWS * COLUMNS * static_cast<u32>(static_cast<u64>(unit) * (unit - 1) / 2);
    }

    // The row and column of tile `tile` of a matrix.
    DEVICE static void find(const TileSchedule& schedule, WorkTile& work) {
        const int units = schedule.group / ROWS;
        // The solution of before(x) = tile; rounding is put right below.
        constexpr float HALF = 0.5f * ROWS * COLUMNS, LINEAR = DIAGONAL - HALF;
        const float root = sqrtf(LINEAR * LINEAR + 4.0f * HALF * static_cast<float>(work.tile));
        int band = static_cast<int>((root - LINEAR) / (2.0f * HALF)) / units;
        const u32 tile = work.tile;
        while (before(band * units) > tile) --band;
        while ((band + 1) * schedule.group < schedule.tiles_m && before((band + 1) * units) <= tile) ++band;

        const int first = band * schedule.group, columns = band * units * COLUMNS;
        const bool last = schedule.tiles_m - first < schedule.group;
        const int rows = last ? schedule.tiles_m - first : schedule.group;
        int rest = work.tile - static_cast<int>(before(band * units));
        if (rest < rows * columns) {
            work.n_tile = divided(rest, last ? schedule.last_rows : schedule.rows);
            work.m_tile = first + rest - work.n_tile * rows;
            return;
        }
        rest -= rows * columns;
        int row = 0;
        for (;; ++row) {
            const int reached = ((row + 1) * height + width - 1) / width, there = schedule.tiles_n - columns;
            const int count = reached < there ? reached : there;
            if (rest < count) break;
            rest -= count;
        }
        work.m_tile = first + row, work.n_tile = columns + rest;
    }
};

// `height`, `width`: of a cluster tile of a symmetric product; 0 where all tiles are computed.
template <int ranks, bool split_k, int height = 0, int width = 0>
DEVICE WorkTile work_tile_at(const TileSchedule& schedule, int index, int rank) {
    WorkTile work;
    const int outer = divided(index, schedule.tiles);
    work.tile = index - outer * schedule.matrix_tiles;
    work.batch = split_k ? divided(outer, schedule.splits_divisor) : outer;
    work.split = split_k ? outer - work.batch * schedule.splits : 0;

    if constexpr (height > 0) {
        Triangle<height, width>::find(schedule, work);
    } else {
        const int group = divided(work.tile, schedule.group_tiles);
        const int first = group * schedule.group, rest = work.tile - first * schedule.tiles_n;
        const bool last = schedule.tiles_m - first < schedule.group;
        work.n_tile = divided(rest, last ? schedule.last_rows : schedule.rows);
        work.m_tile = first + rest - work.n_tile * (last ? schedule.tiles_m - first : schedule.group);
    }

    // The first splits have one block of K more.
    const int part = ranks * work.split + rank;
    work.first_k_block =
        part * schedule.k_blocks_per_split + (part < schedule.longer_splits ? part : schedule.longer_splits);
    work.k_blocks = schedule.k_blocks_per_split + (part < schedule.longer_splits ? 1 : 0);
    return work;
}
