// Grouped products: groups of rows of A and D, each multiplied by a matrix of B of its own (kDivided ROWS), or the same of
// columns (COLUMNS), where operands are swapped; or groups of elements of K, each with a matrix of D of its own (DEPTH). The
// ends of groups are in device memory, and only the kernel reads them: the host knows a bound of the work tiles, and launches
// as many CTAs as run at once.
//
// Rows and columns: work tiles are numbered through all groups; a group has as many rows of cluster tiles as its rows need. Each of the
// producer and the consumers has a cursor, which goes through the groups once. Within a group the order is that of
// tile_scheduler.cuh, so that a group's matrix is read once for `group` rows of tiles.
//
// A tile reads past the end of its group, from rows of the next one or, behind the operand, zeros; a row of D depends on no
// other row of A. What it has past the end is not stored. Rows of D behind the last end are zeros.
//
// Elements of K: the matrix of a work tile is its group, which has a number of stages of its own. What the last stage has past
// the end of the group is cleared in shared memory (group_depth.cuh). A group without elements has one stage, all of it clear.
//
// Ends that decrease, or lie beyond the operand, are the caller's error: they count as the end before, or as the operand's
// end, so that nothing outside D is written.
#pragma once
#include "config.cuh"
#include "tile_scheduler.cuh"

constexpr bool kWalksGroups = kDivided == ROWS || kDivided == COLUMNS;

// The end of a group that begins at `begin`, of `extent` elements along the divided dimension.
DEVICE int end_of_group(const int* ends, int group, int begin, int extent) {
    const int end = ends[group];
    return end < begin ? begin : end < extent ? end : extent;
}

struct GroupCursor {
    int group = 0, first_tile = 0;  // the group, and the number of its first work tile
    int begin = 0, end = 0;

    DEVICE explicit GroupCursor(const Params& p) {
        if constexpr (kDivided != NO_GROUPS) end = end_of_group(p.ends, 0, 0, extent(p));
    }

    DEVICE static int extent(const Params& p) { return kDivided == ROWS ? p.m : kDivided == COLUMNS ? p.n : p.k; }

    DEVICE void next_group(const Params& p) {
        ++group;
        begin = end, end = end_of_group(p.ends, group, begin, extent(p));
    }

    // Whether there is a work tile of this number, no lower than at the call before: then in `work`.
    DEVICE bool find(const Params& p, int index, WorkTile& work) {
        constexpr int HIGH = kDivided == ROWS ? BLOCK_M * kClusterM : BLOCK_N * kClusterN;
        const TileSchedule& schedule = p.schedule;
        int tiles = (end - begin + HIGH - 1) / HIGH;
        while (index >= first_tile + tiles * schedule.tiles_n) {
            if (group + 1 >= p.groups) return false;
            first_tile += tiles * schedule.tiles_n;
            next_group(p);
            tiles = (end - begin + HIGH - 1) / HIGH;
        }
        const int in_group = index - first_tile, block = divided(in_group, schedule.group_tiles);
        const int first = block * schedule.group, rest = in_group - first * schedule.tiles_n;
        const int rows = tiles - first < schedule.group ? tiles - first : schedule.group;
        const int across = rest / rows, along = first + rest - across * rows;
        work.m_tile = kDivided == ROWS ? along : across, work.n_tile = kDivided == ROWS ? across : along;
        work.tile = in_group, work.split = 0, work.batch = group;
        work.first_k_block = 0, work.k_blocks = schedule.k_blocks_per_split;
        work.begin = begin + along * HIGH, work.end = end;
        return true;
    }

    // With DEPTH: the elements of K of a work tile, whose group is no lower than at the call before.
    DEVICE void take_depth(const Params& p, WorkTile& work) {
        if constexpr (kDivided == DEPTH) {
            while (group < work.batch) next_group(p);
            const int blocks = (end - begin + static_cast<int>(BLOCK_K) - 1) / static_cast<int>(BLOCK_K);
            work.begin = begin, work.end = end;
            work.first_k_block = 0, work.k_blocks = blocks > 0 ? blocks : 1;
        }
    }
};
