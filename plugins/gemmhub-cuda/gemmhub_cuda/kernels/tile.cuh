// Which tile of d, over which part of k, a block works on.
//
// blockIdx.x counts parts of k fastest, then tiles; blockIdx.z is the matrix of the batch. Tiles are walked in groups
// of `group` rows of tiles: down the rows of a group, then to the next column. So blocks that run at the same time
// share tiles of a and b in L2.
#pragma once
#include "device.cuh"
#include "params.cuh"

struct Piece {
    int tile;            // number of the tile in the whole batch
    int row, column;     // of d: the tile's first
    int split;           // which part of k
    int k_begin, k_end;  // the part; k_begin is a multiple of TILE_K
};

DEVICE Piece piece_at(const Params& p, int block) {
    Piece piece;
    const int index = SPLIT ? block / p.splits : block;
    piece.split = SPLIT ? block - index * p.splits : 0;
    piece.tile = blockIdx.z * p.tiles_m * p.tiles_n + index;

    const int in_group = p.group * p.tiles_n;
    const int first = index / in_group * p.group;
    const int rest = index - index / in_group * in_group;
    const int height = p.tiles_m - first < p.group ? p.tiles_m - first : p.group;
    piece.row = (first + rest % height) * TILE_M;
    piece.column = rest / height * TILE_N;

    piece.k_begin = 0, piece.k_end = p.k;
    if constexpr (SPLIT) {
        // The first `blocks % splits` parts have one block of TILE_K more.
        const int blocks = (p.k + TILE_K - 1) / TILE_K;
        const int base = blocks / p.splits, longer = blocks - base * p.splits;
        const int begin = piece.split * base + (piece.split < longer ? piece.split : longer);
        const int end = begin + base + (piece.split < longer ? 1 : 0);
        piece.k_begin = begin * TILE_K;
        piece.k_end = end * TILE_K < p.k ? end * TILE_K : p.k;
    }
    return piece;
}

DEVICE Piece piece_here(const Params& p) { return piece_at(p, blockIdx.x); }
