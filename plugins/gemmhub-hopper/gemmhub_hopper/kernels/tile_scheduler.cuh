// Which piece of the product a cluster works on, and in which order pieces are given out.
//
// A piece is one cluster tile (CLUSTER_M x CLUSTER_N block tiles) of one matrix of the batch, over one part of k.
// Piece i goes to cluster i % clusters. Within a matrix, tiles are walked in groups of `group` rows of tiles: down the
// rows of a group, then to the next column. So blocks that run at the same time share tiles of A and of B in L2.
// Of a part, `ranks` blocks of a cluster may have a part each. Without `split` there is one.
#pragma once
#include "params.cuh"

struct Piece {
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
DEVICE Piece piece_at(const Walk& walk, int index, int rank) {
    Piece piece;
    const int outer = divided(index, walk.tiles);
    piece.tile = index - outer * walk.tiles_m * walk.tiles_n;
    piece.batch = split ? divided(outer, walk.parts) : outer;
    piece.split = split ? outer - piece.batch * walk.splits : 0;

    const int group = divided(piece.tile, walk.group_tiles);
    const int first = group * walk.group, rest = piece.tile - first * walk.tiles_n;
    const bool last = walk.tiles_m - first < walk.group;
    piece.column = divided(rest, last ? walk.last_rows : walk.rows);
    piece.row = first + rest - piece.column * (last ? walk.tiles_m - first : walk.group);

    // The first parts have one block more.
    const int part = ranks * piece.split + rank;
    piece.first_block = part * walk.part_blocks + (part < walk.longer ? part : walk.longer);
    piece.blocks = walk.part_blocks + (part < walk.longer ? 1 : 0);
    return piece;
}
