// A of 16-bit or tf32 elements whose rows TMA cannot take as they are (kShiftedRows): contiguous along K, from a multiple of 16
// bytes on, but rows are not a multiple of 16 bytes apart. Copying a large A first takes longer than reading it here.
//
// Every LINE_ROWS-th row (8 of 16-bit elements, 4 of tf32) begins at a multiple of 16 bytes. So to TMA that many rows are one
// line, in which row r begins at element r ld (ld: from row to row). A box must begin at a multiple of 16 bytes; it has the
// BLOCK_K elements of a stage and 16 bytes more, as the row begins up to 15 bytes after the start of the box. A tile has a box
// for each r: line i of it is row LINE_ROWS i + r of the tile.
//
//     box r at r BLOCK_M / LINE_ROWS SHIFTED_ROW_BYTES; in it line i at SHIFTED_ROW_BYTES i. No swizzle is needed: the lines that
//     a warp reads at once are 36 words apart, in different banks
//
// wgmma cannot read that, so consumers load A to registers, and shift words by an element if one of 16 bits begins within a
// word. Elements past K belong to the next row and are made 0: B has zeros there, but 0 times NaN is NaN. Rows of wgmma's
// fragment are those of D in another order (shifted_row()), as lanes of a warp must read different lines.
//
// If M is no multiple of LINE_ROWS, the last line has only the rows r < M % LINE_ROWS, and nothing may be read past the last of
// them. So boxes of these rows use a second map, with one line more; its lines end with row M % LINE_ROWS - 1.
//
// tf32 that is contiguous along M (kShiftedColumns) is the same with K's part and M's exchanged: four columns are one line, and a
// tile has boxes of 64 of M and 8 more, four for each 64 of M, one for each remainder of k by 4: box (s, r) at (4 s + r)
// SHIFTED_COLUMNS_BYTES, in it k = 4 i + r at COLUMN_BYTES i. What follows a column of M elements is rows outside of D, and what
// follows K is 0: TMA's zeros, by the second map where K is no multiple of 4.
#pragma once
#include "fragments.cuh"
#include "tile_context.cuh"

constexpr u32 SHIFTED_BOX_BYTES = BLOCK_M / LINE_ROWS * SHIFTED_ROW_BYTES;

struct ShiftedLoader {
    static constexpr int PER_WORD = 4 / kInputBytes;  // elements

    u32 offsets[2];  // of rows h = 0 and 1: the word of k = PER_WORD t, t = lane % 4, but for the shift
    u32 shifts[2];   // bits
    int k;           // PER_WORD t

    DEVICE ShiftedLoader(const Params& p, u32 warp, u32 lane) : k(PER_WORD * (lane % 4)) {
#pragma unroll
        for (u32 h = 0; h < 2; ++h) {
            const u32 row = fragment_row(warp, lane) + h, box = row % LINE_ROWS;
            const u32 offset = box * static_cast<u32>(p.a_m) % LINE_ROWS;  // from the start of the box
            offsets[h] = box * SHIFTED_BOX_BYTES + row / LINE_ROWS * SHIFTED_ROW_BYTES + offset / PER_WORD * 4 + lane % 4 * 4;
            shifts[h] = offset % PER_WORD * 16;
        }
    }

    // Fragment number `number` of the tile at `tile`. `left`: elements of K from this stage's first one on.
    DEVICE void load(Fragment& a, u32 tile, u32 number, u32 step, int left) const {
        const u32 rows = tile + number * (64 / LINE_ROWS) * SHIFTED_ROW_BYTES + 32 * step;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 from = rows + offsets[i % 2] + i / 2 * 16, word = load_shared(from);
            a[i] = PER_WORD == 1 ? word : shift_pair(word, load_shared(from + 4), shifts[i % 2]);
        }
        if (left >= static_cast<int>(BLOCK_K)) return;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const int left_here = left - (k + PER_WORD * static_cast<int>(8 * step + 4 * (i / 2)));
            a[i] &= left_here >= PER_WORD ? 0xffffffff : left_here == 1 ? 0xffff : 0;
        }
    }
};

constexpr u32 COLUMN_BYTES = (64 + 8) * 4, SHIFTED_COLUMNS_BYTES = BLOCK_K / LINE_ROWS * COLUMN_BYTES;

// The lanes of one k read eight words side by side, and boxes begin in the same bank: so lanes of k = 2 and 3 read 4 of k on
// first, which is 8 banks on. Two lanes share a bank.
struct ShiftedColumnsLoader {
    u32 offsets[2];  // of K step 0, row g: of the k that is read first, and of the other one
    bool later;      // whether t + 4 is read first

    DEVICE ShiftedColumnsLoader(const Params& p, u32 warp, u32 lane) : later(lane % 4 >= 2) {
        const u32 t = lane % 4, row = 16 * warp + lane / 4 + t * static_cast<u32>(p.a_k) % LINE_ROWS;
#pragma unroll
        for (u32 i = 0; i < 2; ++i) offsets[i] = t * SHIFTED_COLUMNS_BYTES + (later != i) * COLUMN_BYTES + 4 * row;
    }

    // Fragment number `number` of the tile at `tile`; what it has behind K is 0.
    DEVICE void load(Fragment& a, u32 tile, u32 number, u32 step, int) const {
        const u32 from = tile + number * LINE_ROWS * SHIFTED_COLUMNS_BYTES + 2 * step * COLUMN_BYTES;
        u32 x[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) x[i] = load_shared(from + offsets[i / 2] + i % 2 * 32);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) a[i] = later ? x[i ^ 2] : x[i];
    }
};
