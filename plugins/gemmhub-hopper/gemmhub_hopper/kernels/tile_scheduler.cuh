// Which piece of the product a cluster works on, and in which order pieces are given out.
//
// A piece is one cluster tile (CLUSTER_M x CLUSTER_N block tiles) of one matrix of the batch, over one part of k.
// Piece i goes to cluster i % clusters. Within a matrix, tiles are walked in groups of `group` rows of tiles: down the
// rows of a group, then to the next column. So blocks that run at the same time share tiles of A and of B in L2.
// Of a part, `ranks` blocks of a cluster may have a part each.
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

template <int ranks = 1>
DEVICE Piece piece_at(const Params& p, int index, int rank = 0) {
    Piece piece;
    const int tiles = p.tiles_m * p.tiles_n;
    const int outer = index / tiles;
    piece.tile = index - outer * tiles;
    piece.batch = outer / p.splits;
    piece.split = outer - piece.batch * p.splits;

    const int in_group = p.group * p.tiles_n;
    const int first = piece.tile / in_group * p.group;
    const int rest = piece.tile - piece.tile / in_group * in_group;
    const int height = p.tiles_m - first < p.group ? p.tiles_m - first : p.group;
    piece.row = first + rest % height;
    piece.column = rest / height;

    // The first k_blocks % parts parts have one block more.
    const int parts = ranks * p.splits, part = ranks * piece.split + rank;
    const int base = p.k_blocks / parts;
    const int longer = p.k_blocks - base * parts;
    piece.first_block = part * base + (part < longer ? part : longer);
    piece.blocks = base + (part < longer ? 1 : 0);
    return piece;
}
